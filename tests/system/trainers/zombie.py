#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer that is stopped while it has a session and goes on when another process has taken its rank.

    zombie.py ENDPOINT JOB RANK WORKLOAD-JSON

Pushes the first micro-batch, stops itself, and when it is continued writes garbage into all it had mapped and pushes it. Prints
what it is told, then keeps writing garbage until its standard input ends.
"""
import os
import pathlib
import select
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import GaccError, Rank  # noqa: E402
from workload import Workload  # noqa: E402


def write_garbage(trainer):
    for number in range(trainer.registered.slots):
        for view in trainer.slot(number).values():
            view[:] = 1e30


def main():
    endpoint, job, rank, json = sys.argv[1:]
    work = Workload.from_json(json)
    trainer = Rank(endpoint, int(job), int(rank), work.tensors, work.ranks)
    trainer.start(work.initial())
    work.push(trainer, trainer.params(), 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    write_garbage(trainer)
    try:
        trainer.push(micro=1, weight=1, timeout=20)
        print("counted", flush=True)
    except GaccError as e:
        print(e.reason, flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        write_garbage(trainer)


if __name__ == "__main__":
    main()
