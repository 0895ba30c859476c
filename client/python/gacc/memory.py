# SPDX-License-Identifier: Apache-2.0
"""gaccd's shared memory in this process: descriptors from the attach socket (proto/gacc/v1/attach.proto), mapped.

What was mapped stays at its address for as long as the process lives: when gaccd offers other memory after a restart, it is mapped over the
old one, so arrays that the caller keeps never show memory that nobody reads any more.
"""
from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import socket
from typing import Any, Iterator, Optional

import numpy as np

from .device import DeviceMapping, Driver
from .dtypes import Array
from .errors import GaccError
from .gpu_slots import PinnedSlots, Words, full
from .messages import types

SLOT, PARAMETERS, STATUS, REDUCED, MAILBOX, SUBMIT, ANSWER = range(1, 8)  # gacc.v1.SegmentKind
PACKET, FDS, ANSWER_S = 8192, 16, 30
PORTION = 64 << 20
MAP_FIXED = 0x10  # on Linux, whatever the processor

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def _fail(reason: str, what: str, code: str = "") -> GaccError:
    return GaccError(f"attach socket: {what}", reason=reason, code=code)


def ask(path: str, session: Any, wants_mailbox: bool, device: bool = False, gpu: str = "") -> tuple[socket.socket, Any, list[int]]:
    """(the connection, MapResponse, descriptors). The connection is the session's lifeline. `device`: a device writes to the slots; `gpu`: they are
    in its memory."""
    known = types()
    fds: list[int] = []
    lifeline = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        lifeline.settimeout(ANSWER_S)
        try:
            lifeline.connect(path)
            lifeline.send(known.MapRequest(version=1, session=session, wants_mailbox=wants_mailbox, device=device, gpu=gpu).SerializeToString())
            packet, fds, flags, _ = socket.recv_fds(lifeline, PACKET, FDS, socket.MSG_CMSG_CLOEXEC)
        except PermissionError as e:
            raise _fail("PERMISSION_DENIED", f"{path}: {e.strerror}") from None
        except OSError as e:
            raise _fail("UNAVAILABLE", f"{path}: {e}", "UNAVAILABLE") from None
        if not packet:
            raise _fail("UNAVAILABLE", "closed by gaccd", "UNAVAILABLE")
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise _fail("MALFORMED", "an answer that is too long")
        answer = known.MapResponse.FromString(packet)
        if answer.reason:
            raise _fail(answer.reason, answer.message)
        if len(fds) != len(answer.segments):
            raise _fail("MALFORMED", "descriptors do not match the segments")
        lifeline.settimeout(None)
        return lifeline, answer, fds
    except BaseException:
        lifeline.close()
        for fd in fds:
            os.close(fd)
        raise


class Mapping:
    """One segment. `data` is its bytes from the layout's offset 0 on, as a numpy array that keeps the memory alive."""

    def __init__(self, fd: int, length: int, offset: int, writable: bool):
        stat = os.fstat(fd)
        if not length or stat.st_size < length or offset > length:
            raise _fail("SEGMENT_CORRUPT", "a segment is not as large as announced")
        self._identity, self._shape = (stat.st_dev, stat.st_ino), (length, offset, writable)
        self._length = length
        self._prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        whole = np.frombuffer(mmap.mmap(fd, length, mmap.MAP_SHARED, self._prot), np.uint8)
        self._address, self.data = whole.ctypes.data, whole[offset:]

    @property
    def pages(self) -> tuple[int, int]:
        """(address, bytes) of all of it."""
        return self._address, self._length

    def follow(self, fd: int, length: int, offset: int, writable: bool) -> None:
        """Other memory comes into the place of this one. What the trainer has written to a slot moves along: a push of it may have to be
        repeated."""
        if (length, offset, writable) != self._shape:
            raise _fail("LAYOUT_MISMATCH", "sizes changed over a restart")
        stat = os.fstat(fd)
        if self._identity == (stat.st_dev, stat.st_ino):
            return
        if writable:
            fresh = Mapping(fd, length, offset, writable)
            fresh.data[:] = self.data
        at = _libc.mmap(self._address, length, self._prot, mmap.MAP_SHARED | MAP_FIXED, fd, 0)
        if at != self._address:
            raise GaccError(f"mmap: {os.strerror(ctypes.get_errno())}", reason="NO_MEMORY")
        self._identity = (stat.st_dev, stat.st_ino)


class Memory:
    """All that one session has mapped: segments[kind, index]. The lifeline's end is this process's end for gaccd."""

    def __init__(self) -> None:
        self.segments: dict[tuple[int, int], Any] = {}  # Mapping, DeviceMapping
        self.driver: Optional[Driver] = None  # of a job whose slots are on a device
        self.pinned: Optional[PinnedSlots] = None  # of one whose slots are not, and whose gradients are
        self.lifeline: Optional[socket.socket] = None
        self.ends = select.poll()  # has something to say when the lifeline has ended

    def map(self, path: str, session: Any, wants_mailbox: bool) -> dict[int, int]:
        """Maps, or after a restart maps anew. Returns the descriptors of a mailbox, which the caller owns: {kind: descriptor}, or {}."""
        has_device = bool(self.driver or self.pinned)
        lifeline, answer, fds = ask(path, session, wants_mailbox, has_device, self.driver.gpu if self.driver else "")
        bells: dict[int, int] = {}
        try:
            if self.pinned:
                self.pinned.leave()
            for segment, fd in zip(answer.segments, fds):
                if segment.kind in (MAILBOX, SUBMIT, ANSWER):
                    bells[segment.kind] = fd
                elif segment.kind in (SLOT, PARAMETERS, STATUS, REDUCED):  # a later gaccd may have more
                    self._take(segment, fd)
            if self.pinned:
                self.pinned.take({index: s.pages for (kind, index), s in self.segments.items() if kind == SLOT})
        except BaseException:
            lifeline.close()
            for fd in fds:
                os.close(fd)
            raise
        for fd in set(fds) - set(bells.values()):
            os.close(fd)
        self.close()
        self.lifeline = lifeline
        self.ends.register(lifeline, 0)  # hang-ups and errors are told in any case
        return bells

    def _take(self, segment: Any, fd: int) -> None:
        key, writable = (segment.kind, segment.index), segment.kind == SLOT
        if segment.on_device:
            if not self.driver:
                raise GaccError("attach socket: memory on a GPU, which nobody has asked for", reason="MALFORMED")
            if key in self.segments:
                self.segments[key].follow(fd, segment, writable)
            else:
                self.segments[key] = DeviceMapping(self.driver, fd, segment, writable)
            return
        how = (fd, segment.bytes, segment.data_offset, writable)
        if segment.kind != STATUS and key in self.segments:
            self.segments[key].follow(*how)
        else:
            self.segments[key] = Mapping(*how)

    def private(self, layout: Any, reduced: bool) -> None:
        """Without shared memory: memory of this process, whose bytes travel in messages."""
        for i in range(layout.slots):
            self.segments[SLOT, i] = Private(layout.slot_bytes)
        self.segments[PARAMETERS, 0] = Private(layout.param_bytes)
        if reduced:
            self.segments[REDUCED, 0] = Private(layout.accum_bytes)

    def read_only(self, kind: int, index: int) -> Any:
        data = self.data(kind, index)
        if not self.driver:
            data = data.view()
            data.flags.writeable = False
        return data

    def portion(self, length: int) -> int:
        """How much of a slot is filled at a time by on_host()."""
        return min(length, PORTION) if self.driver else length

    @contextlib.contextmanager
    def on_host(self, data: Any) -> Iterator[Array]:
        """Where on the host to write what is to be in these bytes of a slot."""
        if not self.driver:
            yield data
            return
        piece = np.empty(data.size, np.uint8)
        yield piece
        data[...] = piece

    def full(self, slot: int, stream: Optional[int], words: Optional[Words], timeout: Optional[float]) -> Optional[tuple[int, int]]:
        """Of a slot that is pushed now: the ready word and the value that say when it is full, or None: it is. `stream`: what was written to it by a
        device is on this stream; None: of memory on a device, anywhere in the context."""
        if self.pinned:
            return self.pinned.full(slot, stream, words, timeout)
        if not self.driver:
            return None
        if stream is not None:
            return full(self.driver, slot, stream, words, timeout)
        self.driver.settle()
        return None

    def finish(self, timeout: Optional[float] = None) -> None:
        """What was to be in slots when their ready words came is there."""
        if self.pinned:
            self.pinned.finish(timeout)
        elif self.driver:
            with self.driver.current():
                self.driver.finish(timeout)

    def check(self) -> None:
        """Raises if the context has failed: what a device was to write will never be there."""
        driver = self.pinned.driver if self.pinned else self.driver
        if driver:
            with driver.current():
                driver.is_done()

    def is_quiet(self) -> bool:
        """A device that writes to slots has done all that it was told."""
        if not (self.driver or self.pinned):
            return False
        try:
            driver = self.pinned.driver if self.pinned else self.driver
            assert driver
            driver.settle()
        except GaccError:  # the context has failed: gaccd gives these slots to nobody else
            return False
        return True

    def data(self, kind: int, index: int = 0) -> Any:
        if (kind, index) not in self.segments:
            raise GaccError("this session has no such memory", reason="BAD_SLOT" if kind == SLOT else "NOT_SUPPORTED")
        return self.segments[kind, index].data

    def leave(self) -> None:
        """No device writes here any more. Of a context that has failed there is nothing to take back."""
        if self.pinned:
            with contextlib.suppress(GaccError):
                self.pinned.leave()

    def close(self) -> None:
        """The lifeline alone: arrays of the caller may still show the memory, which goes with the last of them."""
        if self.lifeline:
            self.ends.unregister(self.lifeline)
            self.lifeline.close()
            self.lifeline = None


class Private(Mapping):
    """Memory that nobody shares."""

    def __init__(self, length: int):
        self.data = np.zeros(length, np.uint8)
