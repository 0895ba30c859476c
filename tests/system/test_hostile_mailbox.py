# SPDX-License-Identifier: Apache-2.0
"""A rank that scribbles over its mailbox (hostile_mailbox.py) while engines are killed: the sums of the honest ranks of its job are exact, and
neither another job nor gaccd nor the other job's engine suffers.

GACC_HOSTILE_MS: of scribbles before each of the rank's micro-batches (10). GACC_SEED: of what it writes; a failing run prints its own.
"""
import os
import pathlib
import random
import subprocess
import sys
import time

import numpy as np

from harness import Daemon, build_dir, wait_until

RANKS, HOSTILE, MICRO, STEPS, ELEMENTS = 4, 1, 2, 150, 3000
MS = int(os.environ.get("GACC_HOSTILE_MS", "10"))
SEED = int(os.environ.get("GACC_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
KILL_EVERY_S = 0.5
LONGEST_S = 300 + STEPS * MS / 10  # of the job; it takes some seconds, and longer where MS is more
SHARE = 5  # for so many steps of the hostile rank's job the other one makes a step of its own, at least
SPEC = {"micro_size": MICRO, "slots_per_rank": 1, "reduction": "sum", "optimizer": {"type": "sgd", "lr": 1}}


class Honest:
    """Ranks of a job as fault_trainer has them."""

    def __init__(self, daemon, job, ranks, world, steps):
        self.out, self.log = daemon.dir / f"out.{job}", daemon.dir / f"honest.{job}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [build_dir() / "bin/fault_trainer", daemon.endpoint, str(job), ",".join(map(str, ranks)), str(world), str(steps), str(MICRO), str(ELEMENTS), self.out],
                stdout=log, stderr=log, env={**os.environ, "GACC_TEST": str(daemon.dir)})
        self.ranks = ranks

    def results(self):
        assert self.process.wait(120) == 0, self.log.read_text()
        return [self.out.with_name(f"{self.out.name}.{r}").read_bytes()[8:] for r in self.ranks]


def start(daemon, ms):
    """A job with a hostile rank: (its number, the honest ranks, the hostile process)."""
    job = daemon.submit({**SPEC, "ranks": RANKS, "steps": STEPS})
    honest = Honest(daemon, job, [r for r in range(RANKS) if r != HOSTILE], RANKS, STEPS)
    arguments = [daemon.endpoint, job, HOSTILE, STEPS, MICRO, ELEMENTS, ms, SEED]
    hostile = subprocess.Popen([sys.executable, pathlib.Path(__file__).with_name("hostile_mailbox.py"), *map(str, arguments)],
                               stdout=subprocess.PIPE, text=True, env={**os.environ, "GACC_TEST": str(daemon.dir), "PYTHONDONTWRITEBYTECODE": "1"})
    return job, honest, hostile


def finish(daemon, job, honest, hostile):
    results = honest.results()
    wait_until("the job's end", lambda: daemon.state(job) == "COMPLETED")
    assert hostile.wait(60) == 0
    assert len(set(results)) == 1
    return np.frombuffer(results[0], np.float32), hostile.communicate()[0]


def check_honest(values, reference):
    """Each micro-batch of the honest ranks once, with its weight; and the body's bits."""
    n = STEPS * MICRO * RANKS
    for g in range(n):
        window, rest = divmod(g, MICRO * RANKS)
        micro, rank = divmod(rest, RANKS)
        if rank != HOSTILE:
            weight = 0.5 + 0.25 * ((5 * window + 3 * micro + 7 * rank) % 12)
            assert values[g] == -weight, (window, micro, rank, float(values[g]), -weight)
    assert values[n:].tobytes() == reference[n:].tobytes(), "the sums of the honest ranks have other bits"


def test_a_rank_that_scribbles_over_its_mailbox_harms_nobody():
    print(f"GACC_SEED={SEED}")
    with Daemon(allow=["RankLate"]) as d:
        polite = start(d, 0)
        reference, _ = finish(d, *polite)
        check_honest(reference, reference)
        other = d.submit({**SPEC, "ranks": 2, "steps": 1_000_000, "name": "other"})
        others = Honest(d, other, [0, 1], 2, 200)  # the ledger has as many elements as that needs; later micro-batches have none
        wait_until("the other job", lambda: d.get_job(other).applied_step > 5)
        before = d.get_job(other).applied_step
        job, honest, hostile = start(d, MS)
        wait_until("the first step", lambda: d.get_job(job).applied_step > 0)
        gaccd, its_engine, kills, killed_in, end = d.pid, d.engine_pid(other), 0, -1, time.monotonic() + LONGEST_S
        while (now := d.get_job(job)).applied_step < STEPS - 5:
            assert hostile.poll() is None and time.monotonic() < end, f"the job stays where it is: {now}"
            time.sleep(KILL_EVERY_S)
            now = d.get_job(job)
            if now.engine_pid and now.applied_step > killed_in and d.kill_engine(job, now.engine_pid):
                kills, killed_in = kills + 1, now.applied_step  # an engine that comes to nothing for 10 minutes ends its job
        meanwhile = d.get_job(other).applied_step - before
        values, said = finish(d, job, honest, hostile)
        check_honest(values, reference)
        written, answered = map(int, said.split())
        print(f"{written} scribbles, {answered} answered, {kills} kills; the other job: {meanwhile} steps beside {STEPS}")
        assert kills >= 3 and written > 1000 and answered > 50
        assert (d.pid, d.get_job(other).engine_pid) == (gaccd, its_engine), "gaccd or the other job's engine has died"
        assert meanwhile > STEPS / SHARE
        others.process.kill()
        others.process.wait()
        d.allow.append("RankLost")
        d.cancel(other)
