# SPDX-License-Identifier: Apache-2.0
"""Slots and parameters in the memory of a GPU, of jobs with slots_on: device: imported from gaccd's descriptors by the driver itself (libcuda.so.1).

The context is the one that is current on this thread, which torch.cuda.init(), cupy and cudaSetDevice make; without one the primary context of the
first device that this process sees. It must be of the job's GPU.

torch.as_tensor(session.slot()["weight"], device="cuda") is the slot itself, no copy (__cuda_array_interface__); bf16 comes as its bits, to be seen as
.view(torch.bfloat16). np.asarray(..) copies to the host, and session.slot()["weight"][...] = x copies from there or from the device.
"""
from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from typing import Any, Iterator, Optional

import numpy as np

from .dtypes import Array
from .errors import GaccError

PINNED, DESCRIPTOR, ON_DEVICE, RECOMMENDED = 1, 1, 1, 1  # cuda.h: of a CUmemAllocationProp, and of what is asked about it
READ, READ_WRITE = 1, 3  # CU_MEM_ACCESS_FLAGS_PROT_..
MAY_RDMA = 110  # CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
WRITES_WORDS = 122  # CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
PORTABLE_AND_MAPPED = 3  # CU_MEMHOSTREGISTER_PORTABLE, _DEVICEMAP
INVALID_VALUE, OUT_OF_MEMORY, NOT_READY = 1, 2, 600  # CUresult


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Allocation(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", _Location), ("win32", ctypes.c_void_p),
                ("compression", ctypes.c_ubyte), ("may_rdma", ctypes.c_ubyte), ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 4)]


class _Access(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


_size, _word = ctypes.c_size_t, ctypes.c_uint64


class Driver:
    """One context of the driver, and a stream for our copies."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise GaccError("there is no NVIDIA driver here: libcuda.so.1 is not found", reason="NOT_SUPPORTED",
                            hint="run where the job's GPU is, or submit the job with slots_on: host") from None
        self._call("cuInit", 0)
        self._context = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(self._context))
        self._device, self._pid = ctypes.c_int(), os.getpid()
        self._stream, self._event = ctypes.c_void_p(), ctypes.c_void_p()
        self._is_retained = not self._context
        if self._is_retained:
            self._call("cuDeviceGet", ctypes.byref(self._device), 0)
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        with self.current():
            self._call("cuCtxGetDevice", ctypes.byref(self._device))
            uuid = (ctypes.c_ubyte * 16)()
            self._call("cuDeviceGetUuid_v2", uuid, self._device)
            may_rdma = self._attribute(MAY_RDMA)
            self.writes_words = bool(self._attribute(WRITES_WORDS))
            self._call("cuEventCreate", ctypes.byref(self._event), 2)  # without times
            self._call("cuStreamCreate", ctypes.byref(self._stream), 1)  # which no other stream waits for
            self._location = _Location(ON_DEVICE, self._device)
            made_so, grain = _Allocation(PINNED, DESCRIPTOR, self._location, None, 0, bool(may_rdma)), _size()
            self._call("cuMemGetAllocationGranularity", ctypes.byref(grain), ctypes.byref(made_so), RECOMMENDED)
            self._grain = grain.value
        digits = bytes(uuid).hex()
        self.gpu = "GPU-" + "-".join(digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))

    def _attribute(self, number: int) -> int:
        """0: a driver that does not know of it has not got it."""
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device, but=INVALID_VALUE)
        return value.value

    def _call(self, name: str, *arguments: Any, but: int = 0) -> int:
        """0, or `but`; what else it answers is raised."""
        code = int(getattr(self._library, name)(*arguments))
        if code in (0, but):
            return code
        text = ctypes.c_char_p()
        known = not self._library.cuGetErrorName(code, ctypes.byref(text)) and text.value
        raise GaccError(f"{name}: {known.decode() if known else f'CUDA error {code}'}", reason="NO_MEMORY" if code == OUT_OF_MEMORY else "INTERNAL",
                        hint="see what the program did on the device before")

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """The context is this thread's, and afterwards what was before. Nested as you like: a mapping may be collected anywhere."""
        before = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(before))
        other = before.value != self._context.value
        if other:
            self._call("cuCtxSetCurrent", self._context)
        try:
            yield
        finally:
            if other:
                self._call("cuCtxSetCurrent", before)

    def settle(self) -> None:
        """All that was queued in the context has been done."""
        with self.current():
            self._call("cuCtxSynchronize")

    def bytes_of(self, length: int) -> int:
        return -(-length // self._grain) * self._grain

    def adopt(self, fd: int) -> ctypes.c_uint64:
        handle = _word()
        self._call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), DESCRIPTOR)
        return handle

    def reserve(self, length: int) -> int:
        at = _word()
        self._call("cuMemAddressReserve", ctypes.byref(at), _size(length), _size(0), _word(0), _word(0))
        return at.value

    def map(self, at: int, length: int, handle: ctypes.c_uint64, writable: bool) -> None:
        self._call("cuMemMap", _word(at), _size(length), _size(0), handle, _word(0))
        access = _Access(self._location, READ_WRITE if writable else READ)
        self._call("cuMemSetAccess", _word(at), _size(length), ctypes.byref(access), _size(1))

    def unmap(self, at: int, length: int) -> None:
        self._call("cuMemUnmap", _word(at), _size(length))

    def release(self, handle: ctypes.c_uint64) -> None:
        self._call("cuMemRelease", handle)

    def free(self, at: int, length: int) -> None:
        self._call("cuMemAddressFree", _word(at), _size(length))

    def __del__(self) -> None:
        if sys.is_finalizing() or not getattr(self, "_stream", None) or os.getpid() != self._pid:
            return
        with contextlib.suppress(GaccError), self.current():
            self._call("cuStreamDestroy_v2", self._stream)
            self._call("cuEventDestroy_v2", self._event)
        if self._is_retained:
            self._library.cuDevicePrimaryCtxRelease_v2(self._device)

    # ---- our stream: what gradients take on their way to slots; in the context ----

    @property
    def stream(self) -> int:
        """Its handle, as torch.cuda.ExternalStream takes it."""
        return int(self._stream.value or 0)

    def follow(self, stream: int) -> None:
        """What comes on our stream from now on is behind all that is on that one now."""
        capture = ctypes.c_int()
        self._call("cuStreamIsCapturing", ctypes.c_void_p(stream), ctypes.byref(capture))
        if capture.value:
            raise GaccError("the stream is being captured into a graph", reason="NOT_SUPPORTED", hint="copy and push outside of the capture")
        self._call("cuEventRecord", self._event, ctypes.c_void_p(stream))
        self._call("cuStreamWaitEvent", self._stream, self._event, 0)

    def bring(self, to: int, source: int, n: int) -> None:
        """A copy to pinned memory of the host. Nobody waits for it."""
        self._call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(to), _word(source), _size(n), self._stream)

    def write(self, at: int, value: int) -> None:
        """A word, when all that is on our stream now has been done and can be seen."""
        self._call("cuStreamWriteValue64_v2", self._stream, _word(at), _word(value), 0)

    def finish(self, timeout: Optional[float] = None) -> None:
        """All that is on our stream has been done. Ctrl-C ends it, as it would not end the driver's own wait."""
        begun, pause = time.monotonic(), 20e-6
        while not self.is_done():
            if timeout is not None and time.monotonic() - begun >= timeout:
                raise GaccError(f"the GPU has not made the copies to the slot within {timeout:g} s", reason="DEADLINE",
                                hint="wait for what it does before them")
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)

    def is_done(self) -> bool:
        """All that is on our stream has been done. Raises if the context has failed."""
        return self._call("cuStreamQuery", self._stream, but=NOT_READY) == 0

    def pin(self, at: int, length: int) -> int:
        """Where the device sees these pages."""
        there = _word()
        self._call("cuMemHostRegister_v2", ctypes.c_void_p(at), _size(length), PORTABLE_AND_MAPPED)
        try:
            self._call("cuMemHostGetDevicePointer_v2", ctypes.byref(there), ctypes.c_void_p(at), 0)
        except BaseException:
            self.unpin(at)
            raise
        return there.value

    def unpin(self, at: int) -> None:
        self._call("cuMemHostUnregister", ctypes.c_void_p(at))

    def _copy(self, name: str, to: Any, source: Any, n: int) -> None:
        """Behind all that was queued in the context, whose streams we do not know."""
        if not n:
            return
        with self.current():
            self._call("cuCtxSynchronize")
            self._call(name, to, source, _size(n), self._stream)
            self._call("cuStreamSynchronize", self._stream)

    def to_host(self, to: Array, source: int) -> None:
        self._copy("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(to.ctypes.data), _word(source), to.nbytes)

    def to_device(self, to: int, source: Array) -> None:
        self._copy("cuMemcpyHtoDAsync_v2", _word(to), ctypes.c_void_p(source.ctypes.data), source.nbytes)

    def on_device(self, to: int, source: int, n: int) -> None:
        self._copy("cuMemcpyDtoDAsync_v2", _word(to), _word(source), n)


class DeviceArray:
    """An array on the device, contiguous, of memory that is the daemon's. Its bytes are not this process's to touch: use it on the device, by
    __cuda_array_interface__, or copy."""

    def __init__(self, owner: "DeviceMapping", address: int, shape: tuple[int, ...], dtype: Any, writable: bool):
        self.owner, self.address, self.shape, self.dtype, self.writable = owner, address, tuple(shape), np.dtype(dtype), writable

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.size * int(self.dtype.itemsize)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        # never "read-only", which torch refuses: a kernel that writes to parameters ends the context, as they are mapped so
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False), "strides": None, "version": 3}

    def __repr__(self) -> str:
        return f"DeviceArray({self.address:#x}, shape={self.shape}, dtype={self.dtype})"

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice) -> "DeviceArray":
        """Of bytes, in one dimension."""
        first, last, step = part.indices(self.size)
        if len(self.shape) != 1 or step != 1:
            raise IndexError("only a part [a:b] of one dimension is an array on the device")
        return DeviceArray(self.owner, self.address + first * self.dtype.itemsize, (max(0, last - first),), self.dtype, self.writable)

    def view(self, dtype: Any) -> "DeviceArray":
        """As numpy's: of the same shape, or in one dimension."""
        kind = np.dtype(dtype)
        if kind.itemsize != self.dtype.itemsize and len(self.shape) != 1:
            raise ValueError(f"a view of {self.shape} with elements of another size")
        shape = self.shape if kind.itemsize == self.dtype.itemsize else (self.nbytes // kind.itemsize,)
        return DeviceArray(self.owner, self.address, shape, kind, self.writable)

    def reshape(self, shape: Any) -> "DeviceArray":
        return DeviceArray(self.owner, self.address, tuple(shape), self.dtype, self.writable)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Array:
        if copy is False:
            raise ValueError("an array on the device is copied to the host")
        host = np.empty(self.shape, self.dtype)
        self.owner.driver.to_host(host, self.address)
        return host if dtype is None else host.astype(dtype)

    def __setitem__(self, part: Any, value: Any) -> None:
        """All of it: x[...] = value, from the host or from the device, when all that was queued in the context has been done."""
        if part is not Ellipsis and part != slice(None):
            raise IndexError("an array on the device is set as a whole: x[...] = value")
        if not self.writable:
            raise ValueError("the parameters are read-only")
        there = getattr(value, "__cuda_array_interface__", None)
        if there is None:
            self.owner.driver.to_device(self.address, np.ascontiguousarray(np.broadcast_to(np.asarray(value, self.dtype), self.shape)))
            return
        size, strides, kind = int(np.prod(there["shape"], dtype=np.int64)), there.get("strides"), np.dtype(there["typestr"])
        is_bits = self.dtype == np.uint16 and kind == np.int16  # bf16, as torch shows it
        if size != self.size or (kind != self.dtype and not is_bits) or strides:
            raise ValueError(f"{there['shape']} of {there['typestr']}{', not contiguous' if strides else ''} into {self.shape} of {self.dtype.str}")
        self.owner.driver.on_device(self.address, there["data"][0], self.nbytes)


class DeviceMapping:
    """One segment of the device, as memory.Mapping is one of the host. `data` is its bytes from the layout's offset 0 on."""

    def __init__(self, driver: Driver, fd: int, segment: Any, writable: bool):
        self.driver, self._pid, self._identity = driver, os.getpid(), segment.identity
        self._shape, self._length = (segment.bytes, segment.data_offset, writable), driver.bytes_of(segment.bytes)
        self._address, self._is_mapped = 0, False
        with driver.current():
            self._handle = driver.adopt(fd)
            self._address = driver.reserve(self._length)
            driver.map(self._address, self._length, self._handle, writable)
            self._is_mapped = True

    @property
    def data(self) -> DeviceArray:
        length, offset, writable = self._shape
        return DeviceArray(self, self._address + offset, (length - offset,), np.uint8, writable)

    def follow(self, fd: int, segment: Any, writable: bool) -> None:
        """Other memory comes into the place of this one, with what is in it if it is a slot: a push of it may have to be repeated."""
        if (segment.bytes, segment.data_offset, writable) != self._shape:
            raise GaccError("attach socket: sizes changed over a restart", reason="LAYOUT_MISMATCH")
        if segment.identity == self._identity:
            return
        self.driver.settle()
        fresh = DeviceMapping(self.driver, fd, segment, writable)
        if writable:
            self.driver.on_device(fresh.data.address, self.data.address, self.data.nbytes)
        with self.driver.current():
            self.driver.unmap(fresh._address, self._length)
            self.driver.unmap(self._address, self._length)
            self._is_mapped = fresh._is_mapped = False
            self._handle, fresh._handle = fresh._handle, self._handle  # the old memory goes with it
            self.driver.map(self._address, self._length, self._handle, writable)
            self._is_mapped = True
        self._identity = segment.identity

    def __del__(self) -> None:
        if sys.is_finalizing() or not hasattr(self, "_handle") or os.getpid() != self._pid:
            return
        with contextlib.suppress(GaccError), self.driver.current():  # a context that has failed has nothing to give back
            if self._is_mapped:
                self.driver.unmap(self._address, self._length)
            if self._address:
                self.driver.free(self._address, self._length)
            self.driver.release(self._handle)
