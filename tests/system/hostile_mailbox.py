# SPDX-License-Identifier: Apache-2.0
"""One rank that scribbles over its mailbox, in a process of its own, and gives its micro-batches by RPC, so that its job goes on.

    hostile_mailbox.py ENDPOINT JOB RANK STEPS MICRO-SIZE ELEMENTS MS SEED

Before each micro-batch it writes for MS: requests with right checksums and any fields, in any cell, also into those that are parked; any bytes
anywhere, also in what others write; bells without end. Of what may count, only the weight is chosen: it is sane, because it is this rank's
own, and a NaN would be in the sum of all. Its gradients are 0 but for its own part of the ledger. MS 0: no scribbles. At the end it prints
how many it has written, and how many of them the engine has answered.
"""
import os
import random
import struct
import sys
import time

import numpy as np

from by_mailbox import mailbox
from harness import GaccError, Rank

BIG = [0, 1, 2, 3, 7, 8, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
REAL = [0.0, -1.0, 1.0, float("nan"), float("inf"), 5e-324, 1e300]


class Scribbler:
    def __init__(self, rank, seed):
        self.rank, self.box, self.random = rank, rank.box.box, random.Random(seed)
        self.written = self.answered = 0
        self.last = [0] * mailbox.CELLS

    def request(self, micro):
        """One of this moment's micro-batch that may well be taken, with some fields that are wrong."""
        pick = self.random
        window = self.rank.window + pick.choice([0, 0, 0, 0, 1, -1, 5]) & (1 << 64) - 1
        fields = [mailbox.PUSH if pick.random() < 0.8 else pick.choice([mailbox.WAIT, 0, 3, 1 << 31]), pick.choice([0, 0, 1, 2, 3, 4]), window,
                  max(0, micro + pick.choice([0, 0, 0, 1, -1])), pick.choice([0, 0, 0, 1, 2, 5]), pick.choice([0.25, 1.0, 3.0]), pick.choice(REAL),
                  pick.getrandbits(64), 1.0, 0, 0, 0, 0, 0, 0.0]
        for _ in range(pick.choice([0, 0, 1, 2])):  # not the weight, not the learning rate: they may count
            at = pick.choice([0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13])
            fields[at] = (pick.choice(REAL) if isinstance(fields[at], float) else pick.choice(BIG) & (1 << (64 if at in (2, 7, 13) else 32)) - 1)
        if pick.random() < 0.1:
            fields[5] = pick.choice([0.0, -1.0, float("nan"), float("inf")])
        return mailbox.BODY.pack(*fields)

    def store(self, micro):
        pick, cell = self.random, self.random.randrange(mailbox.CELLS)
        at, answer = mailbox.REQUEST + 128 * cell, mailbox.ANSWER + 64 * cell
        self.answered += self.last[cell] != 0 and self.box.bytes[answer:answer + 8] == mailbox.SEQ.pack(self.last[cell])
        seq = pick.choice([self.written + 1, self.written + 1, self.written + 1, pick.getrandbits(64), self.last[cell], 0])
        body, head = self.request(micro), mailbox.SEQ.pack(seq)
        self.box.bytes[at:at + 128] = head + body + mailbox.CHECK.pack(mailbox.zlib.crc32(head + body))
        self.last[cell] = seq
        self.written += 1

    def scrawl(self):
        at = self.random.randrange(len(self.box.bytes) - 64)
        self.box.bytes[at:at + 64] = self.random.randbytes(64)

    def ring(self):
        try:
            os.write(self.box.submit, struct.pack("=Q", 1 if self.random.random() < 0.999 else 1 << 61))
        except BlockingIOError:
            pass

    def go(self, micro, ms):
        if self.rank.box and self.rank.box.box is not self.box:  # of another gaccd
            self.box, self.last = self.rank.box.box, [0] * mailbox.CELLS
        end = time.monotonic() + ms / 1000
        while time.monotonic() < end:
            self.store(micro)
            self.scrawl() if self.random.random() < 0.1 else None
            for _ in range(self.random.choice([0, 1, 1, 10])):
                self.ring()


def give(rank, micro, again):
    """By RPC. `again`: while a scribble is parked in its place, or has its slot, until that is counted or gone."""
    end = time.monotonic() + 60
    while True:
        try:
            return rank.gacc.rpc.Push(rank.push_request(micro=micro, window=rank.window))
        except GaccError as e:
            if e.reason in ("WINDOW_CLOSED", "JOB_ENDED"):
                return None
            if not again or time.monotonic() > end:
                raise
        time.sleep(0.002)


def main():
    endpoint, job, number = sys.argv[1], *map(int, sys.argv[2:4])
    steps, micro_size, elements, ms, seed = map(int, sys.argv[4:])
    ranks = 4
    rank = Rank(endpoint, job, number, [("ledger", [steps * micro_size * ranks]), ("body", [elements])], ranks, mailbox=True)
    rank.start()
    assert rank.box
    scribbler, ledger, done = Scribbler(rank, seed), rank.slot()["ledger"], False
    rank.slot()["body"][:] = 0
    ledger[:] = 0
    while not done:
        for micro in rank.missing:
            if ms:
                ledger[number::ranks] = scribbler.random.random()
                scribbler.go(micro, ms)
            give(rank, micro, again=ms > 0)
        step = rank.gacc.rpc.WaitStep(session=rank.session, window=rank.window)
        rank.window, rank.missing, done = rank.window + 1, range(step.micro_size), step.job_done
    print(scribbler.written, scribbler.answered, flush=True)
    rank.detach()
    rank.close()


if __name__ == "__main__":
    main()
