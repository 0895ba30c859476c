# SPDX-License-Identifier: Apache-2.0
"""The trainer's side of a mailbox (proto/mailbox.h) in pure Python: pushes and waits through shared memory, without RPC.

What is not OK here, or takes too long, is repeated by RPC: Push and WaitStep say why, and a micro-batch counts once in any case.
"""
import collections
import mmap
import os
import select
import struct
import time
import zlib

PUSH, WAIT = 1, 2  # kinds of a request
ZERO_AFTER, RINGS = 1, 2  # flags of a push
COUNTED, DUPLICATE, ALREADY_COMMITTED, VOID = 1, 2, 3, 4  # results of a push: gacc.v1.PushResult

CELLS, REQUEST, ANSWER, STEP, READY, PRESENT = 8, 128, 1152, 1664, 4096, 8192  # how many; where each begins
MAGIC, HEADER = 0x31584F4243434147, struct.Struct("=QIIQIIQ")
SEQ, CHECK, BELL = struct.Struct("=Q"), struct.Struct("=I"), struct.pack("=Q", 1)
BODY = struct.Struct("=IIQIIddQdIIIIQd28x")  # of a request, between seq and check
ANSWER_BYTES, STEP_BYTES = struct.Struct("=QIIQIIqII12xI"), struct.Struct("=QQIIdddddQIIqQdII76xI")

Answer = collections.namedtuple("Answer", "seq status result window counted micro_size parked_ns waited_for half check")
Step = collections.namedtuple("Step", "window applied_step outcome skip_reason total_weight divisor grad_norm lr mean_loss micro_count "
                                      "last_rank final last_lag_ns params_digest next_loss_scale next_micro_size half check")


class Mailbox:
    """One session's. Takes three descriptors: the memory, the eventfd that rings the engine, the epoll that waits for its bell.
    `attach_socket` is the lifeline that map_session has returned."""

    def __init__(self, memory, submit, waits, attach_socket=None):
        self.bytes = mmap.mmap(memory, 0)
        self.submit, self.waits = submit, select.epoll.fromfd(waits)
        magic, version, cells, self.job, self.rank, self.slots, self.sgen = HEADER.unpack_from(self.bytes)
        if (magic, version, cells) != (MAGIC, 1, CELLS):
            raise ValueError(f"no mailbox of version 1: {magic:x} {version} {cells}")
        self.stride = (len(self.bytes) - PRESENT) // CELLS
        self.seq, self.open = 0, [0] * CELLS  # numbers: given last; of the requests whose answers were not read
        self.given_up = set()  # cells whose answers nobody waits for any more
        self.gone, self.lifeline = False, None
        if attach_socket is not None:
            self.lifeline = attach_socket.fileno()
            self.waits.register(self.lifeline, select.EPOLLRDHUP)

    def free_cell(self):
        """A cell whose answer was read here, or that was not used; None: there is none."""
        self.given_up = {cell for cell in self.given_up if self.answer(cell, self.open[cell]) is None}
        return next((cell for cell, seq in enumerate(self.open) if not seq), None)

    def publish(self, cell, kind, window, micro=0, slot=0, weight=0.0, loss=0.0, data_key=0, loss_scale=0.0, present=b"", ready_at=0,
                ready_value=0, lr=0.0, flags=0):
        """Fills a free cell; the engine looks at it after ring(). Returns the request's number."""
        self.seq += 1
        self.open[cell] = self.seq
        if present:
            at = PRESENT + cell * self.stride
            self.bytes[at:at + len(present)] = present
        head = SEQ.pack(self.seq)
        body = BODY.pack(kind, flags, window, micro, slot, weight, loss, data_key, loss_scale, len(present), zlib.crc32(present),
                         ready_at, 0, ready_value, lr)
        at = REQUEST + 128 * cell
        self.bytes[at + 8:at + 128] = body + CHECK.pack(zlib.crc32(body, zlib.crc32(head)))
        self.bytes[at:at + 8] = head
        return self.seq

    def ring(self):
        """What was stored before this system call is seen by the engine that it wakes."""
        os.write(self.submit, BELL)

    def set_ready(self, word, value):
        """Ready word 1 to 8: the gradients of pushes that name it and this value, or one before, are complete."""
        SEQ.pack_into(self.bytes, READY + 64 * (word - 1), value)

    def answer(self, cell, seq):
        """The answer to this request; None: it is not there."""
        at = ANSWER + 64 * cell
        copy = self.bytes[at:at + 64]
        if copy[:8] != SEQ.pack(seq) or zlib.crc32(copy[:60]) != CHECK.unpack_from(copy, 60)[0]:
            return None
        self.open[cell] = 0
        return Answer._make(ANSWER_BYTES.unpack(copy))

    def wait(self, cell, seq, timeout_s=None):
        """Until the request is answered. None: go to RPC, because the time is over, the mailbox is closed, or gaccd is gone. A cell
        that is given up like this is free again when its answer has come."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while (answer := self.answer(cell, seq)) is None:
            left = -1 if end is None else end - time.monotonic()
            if self.closed() or self.gone or (end is not None and left <= 0):
                self.given_up.add(cell)
                return None
            self.gone = any(fd == self.lifeline for fd, _ in self.waits.poll(left))
        return answer

    def closed(self):
        return self.bytes[40:44] != b"\0\0\0\0"

    def step(self, window):
        """The result of this window after its WAIT was answered; None: ask WaitStep."""
        copy = self.bytes[STEP:STEP + 192]
        step = Step._make(STEP_BYTES.unpack(copy))
        return step if step.check == zlib.crc32(copy[:188]) and step.window == window else None

    def push(self, window, micro, slot, weight, loss, timeout_s=None, **more):
        """One push, acknowledged: its answer, or None: as wait()."""
        cell = self.free_cell()
        if cell is None:
            return None
        seq = self.publish(cell, PUSH, window, micro, slot, weight, loss, **more)
        self.ring()
        return self.wait(cell, seq, timeout_s)

    def wait_step(self, window, timeout_s=None):
        """The result of this window, when it is over; None: ask WaitStep."""
        cell = self.free_cell()
        if cell is None:
            return None
        seq = self.publish(cell, WAIT, window)
        self.ring()
        answer = self.wait(cell, seq, timeout_s)
        return self.step(window) if answer and answer.status == 0 else None
