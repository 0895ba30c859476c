# SPDX-License-Identifier: Apache-2.0
"""What goes wrong, or is done in another way, with gradients on a GPU and slots on the host: a rank for tests/system/test_gpu_python.py, on its fake driver.

    gpu_cases.py CASE

It pushes one gradient of ones, whose copy is late, into slots with other numbers, and prints the parameters that come of it."""
import ctypes
import os
import signal
import struct
import sys
import time

import numpy as np

import gacc

N = 1000
cuda = ctypes.CDLL("libcuda.so.1")


def must(code):
    assert code == 0, code


def context():
    it = ctypes.c_void_p()
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(it), 0))
    must(cuda.cuCtxSetCurrent(it))


def new_stream():
    stream = ctypes.c_void_p()
    must(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    return stream


def ones():
    """The address of N ones on the device."""
    host, device, stream = ctypes.c_void_p(), ctypes.c_uint64(), new_stream()
    must(cuda.cuMemHostAlloc(ctypes.byref(host), 4 * N, 1))
    must(cuda.cuMemAlloc_v2(ctypes.byref(device), ctypes.c_size_t(4 * N)))
    a = np.ones(N, np.float32)
    ctypes.memmove(host, a.ctypes.data, a.nbytes)
    must(cuda.cuMemcpyHtoDAsync_v2(device, host, ctypes.c_size_t(4 * N), stream))
    must(cuda.cuStreamSynchronize(stream))
    return device.value


def write(session, source, stream):
    """Straight to slot 0, by a stream that gacc does not know of."""
    at = session.slot(0)["w"].ctypes.data
    must(cuda.cuMemcpyDtoHAsync_v2(ctypes.c_void_p(at), ctypes.c_uint64(source), ctypes.c_size_t(4 * N), stream))


def refusal(call, kind=gacc.GaccError):
    try:
        call()
    except kind as e:
        return e
    raise AssertionError("it was taken")


# ---- before the push that counts ----

def a_push_from_a_stream_that_is_captured(session, source):
    graph, stream = ctypes.c_void_p(), new_stream()
    session.copy("w", source)
    must(cuda.cuStreamBeginCapture_v2(stream, 0))
    assert refusal(lambda: session.push(stream=stream.value)).reason == "NOT_SUPPORTED"
    must(cuda.cuStreamEndCapture(stream, ctypes.byref(graph)))


def a_push_that_cannot_be_written(session, source):
    session.copy("w", source)
    refusal(lambda: session.push(micro=-1), struct.error)


def a_push_from_the_callers_stream_that_cannot_be_written(session, source):
    stream = new_stream()
    write(session, source, stream)
    refusal(lambda: session.push(slot=0, micro=-1, stream=stream.value), struct.error)


def a_copy_that_has_been_waited_for(session, source):
    session.copy("w", source)
    session.finish_copies()
    assert (session.slot()["w"] == 1).all()


def what_cannot_be(session, source):
    assert refusal(lambda: session.copy("w", source, nbytes=2 * N)).reason == "INVALID_ARGUMENT"
    for slot in (-1, 2):
        assert refusal(lambda: session.push(slot=slot, stream=0)).reason == "BAD_SLOT"
    session.copy("w", source, nbytes=4 * N)


CASES = {f.__name__: f for f in (a_push_from_a_stream_that_is_captured, a_push_that_cannot_be_written, a_push_from_the_callers_stream_that_cannot_be_written,
                                    a_copy_that_has_been_waited_for, what_cannot_be)}


def main(case):
    context()
    with gacc.attach() as session:
        session.register({"w": ("f32", (N,))})
        session.upload({"w": np.zeros(N, np.float32)})
        session.ready()
        if case == "pages_that_cannot_be_pinned":  # the driver refuses once
            assert refusal(session.use_gpu).reason == "NO_MEMORY"
            assert session.has_mailbox
        assert session.use_gpu() and session.has_mailbox
        source = ones()
        for i in range(2):
            session.slot(i)["w"][:] = 100 + i
        if case == "a_stream_of_the_caller_at_the_end":
            stream = new_stream()
            write(session, source, stream)
            assert session._link.memory.is_quiet()  # which detach() tells gaccd
            must(cuda.cuStreamQuery(stream))
            session.detach(done=False)
            return print("done", flush=True)
        if case == "a_context_that_fails":
            session.copy("w", source)
            began = time.monotonic()
            assert "cuStreamQuery" in str(refusal(session.push))
            assert time.monotonic() - began < 30
            return print("done", flush=True)
        if case == "a_gpu_that_hangs":
            session.copy("w", source)
            for wait in (lambda: session.push(timeout=1.0), lambda: session.push(timeout=1.0)):  # the second by RPC, as the first may still be answered
                assert refusal(wait).reason == "DEADLINE"
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            refusal(session.finish_copies, KeyboardInterrupt)
            print("done", flush=True)
            os._exit(0)  # whoever closes this waits for the GPU
        if case == "a_stream_of_the_caller_when_slots_are_exchanged":
            stream = new_stream()
            print("restart", flush=True)
            sys.stdin.readline()
            write(session, source, stream)
            session.saved_state()  # any call attaches anew
            session.push(slot=0, stream=stream.value)
        else:
            CASES.get(case, lambda session, source: session.copy("w", source))(session, source)
            session.push()
        session.wait(timeout=60)
        print(set(np.asarray(session.parameters["w"]).tolist()), flush=True)


main(sys.argv[1])
