# SPDX-License-Identifier: Apache-2.0
"""A rank that trains with the Python package, for tests/system/test_device_slots.py:

    device_rank.py WINDOWS [alters] [copies] [streams]

Its gradients are drawn by window, micro-batch and rank; slots and parameters are where the job has them, on the GPU of LOCAL_RANK if that is set.
"window N" is written when window N is over and a line is awaited then; at the end the parameters, as hexadecimal digits. alters: in the middle of
window 2 it writes to a parameter, for which it gives itself access. copies: slots are on the host and gradients in memory of the device's own, from where
they are copied behind a stream. streams: slots are on the device, and filled from there on a stream that push() is told. Both: pushes are asynchronous."""
import ctypes
import os
import sys

import numpy as np

import gacc
import gacc.device

TENSORS = {"w": ("f32", (37, 5)), "b": ("bf16", (11,)), "s": ("f32", ())}


def gradient(window, micro, name, shape, rank=0):
    return np.random.default_rng([window, micro, rank, len(name), *name.encode()]).standard_normal(shape).astype(np.float32)


def alter(parameter):
    """One element becomes 1."""
    memory = parameter.owner
    access = gacc.device._Access(memory.driver._location, gacc.device.READ_WRITE)
    with memory.driver.current():
        memory.driver._call("cuMemSetAccess", ctypes.c_uint64(memory._address), ctypes.c_size_t(memory._length), ctypes.byref(access), ctypes.c_size_t(1))
    memory.driver.to_device(parameter.address, np.array([0x3f80], np.uint16))


def use(device):
    """Its primary context becomes this thread's, as by torch.cuda.set_device()."""
    driver, number, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
    assert not driver.cuInit(0) and not driver.cuDeviceGet(ctypes.byref(number), device)
    assert not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number) and not driver.cuCtxSetCurrent(context)


class Source:
    """Gradients in memory of the device, complete when a stream of their own has come so far: what torch has, without torch. For each slot another
    memory: it stays as it is until the slot's push is answered."""
    def __init__(self, session):
        self.cuda, self.session, self.stream, self.memory = ctypes.CDLL("libcuda.so.1"), session, ctypes.c_void_p(), {}
        assert not self.cuda.cuStreamCreate(ctypes.byref(self.stream), 1)

    def memory_for(self, place, n):
        """Pinned memory of the host, and as much of the device."""
        at = getattr(place, "address", None) or place.ctypes.data
        if at not in self.memory:
            self.memory[at] = ctypes.c_void_p(), ctypes.c_uint64()
            assert not self.cuda.cuMemHostAlloc(ctypes.byref(self.memory[at][0]), n, 1) and not self.cuda.cuMemAlloc_v2(ctypes.byref(self.memory[at][1]), n)
        return self.memory[at]

    def fill(self, gradients):
        for name, value in gradients.items():
            wire = gacc.dtypes.to_bf16(value) if TENSORS[name][0] == "bf16" else np.ascontiguousarray(value)
            place, n = self.session.slot()[name], ctypes.c_size_t(wire.nbytes)
            host, device = self.memory_for(place, n)
            ctypes.memmove(host, wire.ctypes.data, wire.nbytes)
            assert not self.cuda.cuMemcpyHtoDAsync_v2(device, host, n, self.stream)
            if isinstance(place, gacc.device.DeviceArray):
                assert not self.cuda.cuMemcpyDtoDAsync_v2(ctypes.c_uint64(place.address), device, n, self.stream)
            else:
                self.session.copy(name, device.value, self.stream.value)


def train(windows, alters=False, copies=False, streams=False):
    if "LOCAL_RANK" in os.environ or copies or streams:
        use(int(os.environ.get("LOCAL_RANK", 0)))
    with gacc.attach() as session:
        session.register(TENSORS)
        session.upload({name: gradient(10 ** 6, 0, name, shape) for name, (_, shape) in TENSORS.items()})
        assert not copies or session.use_gpu()
        source = Source(session) if copies or streams else None
        while session.window < windows:
            for micro in session.missing:
                if alters and session.window == 2 and micro == 1:
                    alter(session.parameters["b"])
                given = {name: gradient(session.window, micro, name, shape, session.rank) for name, (_, shape) in TENSORS.items()}
                if source:
                    source.fill(given)
                    session.push(weight=1.0 + micro, asynchronous=True, stream=source.stream.value if streams else None)
                else:
                    session.fill(given)
                    session.push(weight=1.0 + micro)
            step = session.wait()
            print("window", step.window, flush=True)
            sys.stdin.readline()
        print("".join(np.asarray(session.parameters[name]).tobytes().hex() for name in TENSORS), flush=True)


def refusals():
    """What an array on the device does not do; and a context that is current is the one that is used."""
    driver, context, current = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    assert not driver.cuInit(0) and not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) and not driver.cuCtxSetCurrent(context)
    with gacc.attach() as session:
        session.register(TENSORS)
        session.upload({name: gradient(10 ** 6, 0, name, shape) for name, (_, shape) in TENSORS.items()})
        slot, parameters = session.slot(), session.parameters
        assert not driver.cuCtxGetCurrent(ctypes.byref(current)) and current.value == context.value
        there = slot["w"].__cuda_array_interface__
        assert there["shape"] == (37, 5) and there["typestr"] == "<f4" and there["data"][0] == slot["w"].address and not there["strides"]
        slot["w"][...] = np.arange(185, dtype=np.float32).reshape(37, 5)
        assert (np.asarray(slot["w"]) == np.arange(185).reshape(37, 5)).all() and np.asarray(slot["w"], np.float64).dtype == np.float64
        session.slot(1)["w"][...] = slot["w"]  # from one to the other, on the device
        assert (np.asarray(session.slot(1)["w"]) == np.arange(185).reshape(37, 5)).all()
        slot["s"][...] = 3.5
        assert float(np.asarray(slot["s"])) == 3.5
        set_it = gacc.device.DeviceArray.__setitem__
        for wrong in (lambda: set_it(slot["w"], 0, 1.0), lambda: set_it(slot["w"], Ellipsis, slot["b"]), lambda: set_it(slot["w"], Ellipsis, np.zeros(7)),
                      lambda: set_it(parameters["w"], Ellipsis, 1.0), lambda: slot["w"].__array__(copy=False), lambda: slot["w"].view(np.int16),
                      lambda: set_it(slot["w"], Ellipsis, slot["w"].view(np.int32))):  # the bits of other numbers
            try:
                wrong()
            except (ValueError, IndexError):
                continue
            raise AssertionError("it was taken")
        before = ctypes.c_void_p()
        assert not driver.cuCtxSetCurrent(None)
        session._link.memory.driver.settle()
        with session._link.memory.driver.current(), session._link.memory.driver.current():  # as when a mapping is collected meanwhile
            pass
        assert not driver.cuCtxGetCurrent(ctypes.byref(before)) and not before.value  # the caller's is as it was
        session.detach(done=False)
    print("refused", flush=True)


if sys.argv[1] == "refusals":
    refusals()
else:
    train(int(sys.argv[1]), **{what: what in sys.argv for what in ("alters", "copies", "streams")})
