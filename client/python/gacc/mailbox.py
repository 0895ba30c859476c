# SPDX-License-Identifier: Apache-2.0
"""The trainer's side of a mailbox (proto/mailbox.h): pushes and waits through shared memory, without RPC.

A fast path and nothing else. Whatever is not OK here, or takes too long, is repeated by RPC: a micro-batch counts once in any case. One thread.
"""
from __future__ import annotations

import ctypes
import mmap
import os
import select
import socket
import struct
import time
import zlib
from typing import NamedTuple, Optional

from .errors import GaccError
from .gpu_slots import Words
from .memory import ANSWER as ANSWER_BELL
from .memory import MAILBOX, SUBMIT

PUSH, WAIT = 1, 2  # kinds of a request
ZERO_AFTER = 1  # flag of a push
CELLS, REQUEST, ANSWER, STEP, PRESENT = 8, 128, 1152, 1664, 8192  # how many; where each begins
MAGIC, HEADER = 0x31584F4243434147, struct.Struct("=QIIQIIQ")
SEQ, CHECK, BELL = struct.Struct("=Q"), struct.Struct("=I"), struct.pack("=Q", 1)
BODY = struct.Struct("=IIQIIddQdIIIIQd28x")  # of a request, between seq and check
ANSWER_BYTES, STEP_BYTES = struct.Struct("=QIIQIIqII12xI"), struct.Struct("=QQIIdddddQIIqQdII76xI")
ASKED = struct.Struct("=Q")


class Answer(NamedTuple):
    seq: int
    status: int
    result: int
    window: int
    counted: int
    micro_size: int
    parked_ns: int
    waited_for: int
    half: int
    check: int


class Block(NamedTuple):
    """The step block: the result of the window that is over."""
    window: int
    applied_step: int
    outcome: int
    skip_reason: int
    total_weight: float
    divisor: float
    grad_norm: float
    lr: float
    mean_loss: float
    micro_count: int
    last_rank: int
    final: int
    last_lag_ns: int
    params_digest: int
    next_loss_scale: float
    next_micro_size: int
    half: int
    check: int


class Mailbox:
    """One session's."""

    def __init__(self, bells: dict[int, int], job: int, rank: int, generation: int, lifeline: socket.socket):
        """Takes the descriptors, {kind: descriptor}. GaccError if it is not in order, or another session's."""
        self._submit, self._waits = bells.get(SUBMIT, -1), None
        self.words: Optional[Words] = None  # if a device writes them
        try:
            if len(bells) < 3:
                raise GaccError("the mailbox lacks descriptors", reason="MALFORMED")
            self._bytes = mmap.mmap(bells[MAILBOX], 0)
            self._waits = select.epoll.fromfd(bells[ANSWER_BELL])
            self._check_header(job, rank, generation)
            self._lifeline = lifeline.fileno()
            self._waits.register(self._lifeline, select.EPOLLRDHUP)
        except BaseException:
            self.close()
            if ANSWER_BELL in bells and not self._waits:
                os.close(bells[ANSWER_BELL])
            raise
        finally:
            if MAILBOX in bells:
                os.close(bells[MAILBOX])
        self._stride = (len(self._bytes) - PRESENT) // CELLS
        self._adopt()
        self._waiting: Optional[tuple[int, int, int]] = None  # window, cell, seq of a wait that nobody has heard the end of
        self._gone = False

    def _check_header(self, job: int, rank: int, generation: int) -> None:
        magic, version, cells, its_job, its_rank, _, sgen = HEADER.unpack_from(self._bytes)
        if (magic, version, cells) != (MAGIC, 1, CELLS) or (its_job, its_rank, sgen) != (job, rank, generation):
            raise GaccError(f"no mailbox of version 1 of this session: version {version}, job {its_job}, rank {its_rank}", reason="VERSION_SKEW")

    def _adopt(self) -> None:
        """Numbers go on where a process of this session may have stopped; what it left open stays so until it is answered."""
        asked = [ASKED.unpack_from(self._bytes, REQUEST + 128 * i)[0] for i in range(CELLS)]
        answered = [ASKED.unpack_from(self._bytes, ANSWER + 64 * i)[0] for i in range(CELLS)]
        self._seq = max(asked)
        self._open = [q if q != a else 0 for q, a in zip(asked, answered)]
        self._late = {i for i in range(CELLS) if self._open[i]}  # nobody waits for these answers any more

    def usable(self) -> bool:
        """While an answer is late, all goes by RPC, so that nothing overtakes what lies in that cell."""
        if self._gone or self.closed():
            return False
        for cell in list(self._late):
            if self._answer(cell) is None:
                return False
        return 0 in self._open

    def closed(self) -> bool:
        return self._bytes[40:44] != b"\0\0\0\0"

    def _publish(self, kind: int, window: int, micro: int = 0, slot: int = 0, weight: float = 0.0, loss: float = 0.0, data_key: int = 0,
                 loss_scale: float = 0.0, present: bytes = b"", lr: float = 0.0, flags: int = 0, ready: tuple[int, int] = (0, 0)) -> int:
        """Fills a free cell and rings. What was stored before the system call is seen by the engine that it wakes."""
        cell = self._open.index(0)
        self._seq += 1
        if present:
            at = PRESENT + cell * self._stride
            self._bytes[at:at + len(present)] = present
        head = SEQ.pack(self._seq)
        body = BODY.pack(kind, flags, window, micro, slot, weight, loss, data_key, loss_scale, len(present), zlib.crc32(present),
                         ready[0], 0, ready[1], lr)
        at = REQUEST + 128 * cell
        self._open[cell] = self._seq
        self._bytes[at + 8:at + 128] = body + CHECK.pack(zlib.crc32(body, zlib.crc32(head)))
        self._bytes[at:at + 8] = head
        os.write(self._submit, BELL)
        return cell

    def _answer(self, cell: int) -> Optional[Answer]:
        """The answer to the request in this cell; None: it is not there."""
        at = ANSWER + 64 * cell
        copy = self._bytes[at:at + 64]
        if copy[:8] != SEQ.pack(self._open[cell]) or zlib.crc32(copy[:60]) != CHECK.unpack_from(copy, 60)[0]:
            return None
        self._open[cell] = 0
        self._late.discard(cell)
        return Answer._make(ANSWER_BYTES.unpack(copy))

    def _await(self, cell: int, timeout: float) -> Optional[Answer]:
        """None: go to RPC, because the time is over, the mailbox is closed, or gaccd is gone."""
        end = time.monotonic() + timeout
        self._late.add(cell)  # unless it is answered: also if Ctrl-C ends the wait
        while True:
            over = self.closed() or self._gone  # asked first: answers came before it
            answer = self._answer(cell)
            left = end - time.monotonic()
            if answer or over or left <= 0:
                return answer
            assert self._waits
            self._gone = any(fd == self._lifeline for fd, _ in self._waits.poll(left))

    def send(self, window: int, micro: int, slot: int, weight: float, loss: float, data_key: int, loss_scale: float, present: bytes, lr: float,
             zero_after: bool, ready: Optional[tuple[int, int]] = None) -> Optional[int]:
        """One push into a cell, whose number is for answer_to(). None: by RPC. `ready`: the slot is full when this word has this value."""
        if len(present) > self._stride or not self.usable():
            return None
        return self._publish(PUSH, window, micro, slot, weight, loss, data_key, loss_scale, present, lr, ZERO_AFTER if zero_after else 0, ready or (0, 0))

    def answer_to(self, cell: int, timeout: float) -> Optional[Answer]:
        """Status 0: the push counts. Else, and with None, repeat it by RPC, which tells why."""
        return self._await(cell, timeout)

    def wait(self, timeout: float, window: int) -> Optional[Block]:
        """The result of this window when it is over. None: ask WaitStep. Another wait for the same window goes on with the request that lies
        there."""
        if self._waiting and self._waiting[0] == window and self._open[self._waiting[1]] == self._waiting[2]:
            cell = self._waiting[1]
        elif self.usable():
            cell = self._publish(WAIT, window)
        else:
            return None
        self._waiting = window, cell, self._open[cell]
        answer = self._await(cell, timeout)
        if not answer or answer.status != 0 or answer.result != 1:
            return None
        copy = self._bytes[STEP:STEP + 192]
        block = Block._make(STEP_BYTES.unpack(copy))
        sound = block.check == zlib.crc32(copy[:188]) and block.window == window and 1 <= block.outcome <= 4
        return block if sound and block.half <= 1 and (block.next_micro_size or block.final) else None

    @property
    def gone(self) -> bool:
        """gaccd's end of the attach socket has closed: attach anew."""
        return self._gone

    @property
    def address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self._bytes))

    def close(self) -> None:
        if self.words:
            self.words.close()
            self.words = None
        if self._submit >= 0:
            os.close(self._submit)
            self._submit = -1
        if self._waits:
            self._waits.close()
            self._waits = None
        if hasattr(self, "_bytes"):
            self._bytes.close()
