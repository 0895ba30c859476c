# SPDX-License-Identifier: Apache-2.0
"""libgacc's ready words with a thread in place of a GPU (tests/support/ready_trainer.c): gradients that become complete after their pushes end in
the bits of gradients that were complete at once, with the bell and without, by mailbox and by RPC, while engines and gaccd are killed."""
import os
import subprocess
import time

import numpy as np
import pytest

from harness import Daemon, build_dir, wait_until

RANKS, MICRO, STEPS, ELEMENTS = 2, 3, 25, 2000
LATE_US = 3000


def train(daemon, rings, by_rpc=(), meanwhile=None, steps=STEPS):
    """The final parameters, and how many pages the words of each rank had."""
    job = daemon.submit({"ranks": RANKS, "micro_size": MICRO, "steps": steps, "slots_per_rank": 2, "reduction": "sum",
                         "optimizer": {"type": "sgd", "lr": 1}})
    out = daemon.dir / f"ready.{job}"
    ranks = []
    for r in range(RANKS):
        arguments = [daemon.endpoint, job, r, RANKS, steps, MICRO, ELEMENTS, LATE_US, out] + ["rings"] * rings
        ranks.append(subprocess.Popen([build_dir() / "bin/ready_trainer", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      env={**os.environ, "GACC_TEST": str(daemon.dir), "GACC_MAILBOX": str(int(r not in by_rpc))}))
    try:
        if meanwhile:
            meanwhile(job)
        said = [p.communicate(timeout=120) for p in ranks]
    finally:
        for p in ranks:
            p.kill()
            p.wait()
    assert [p.returncode for p in ranks] == [0] * RANKS, said
    wait_until("the job's end", lambda: daemon.state(job) == "COMPLETED")
    values = {out.with_name(f"{out.name}.{r}").read_bytes() for r in range(RANKS)}
    assert len(values) == 1
    return np.frombuffer(values.pop(), np.float32), [int(text) for text, _ in said]


def check(values, steps=STEPS):
    """Each micro-batch once, with its weight: nothing of it was added before it was complete."""
    for g in range(steps * MICRO * RANKS):
        window, rest = divmod(g, MICRO * RANKS)
        micro, rank = divmod(rest, RANKS)
        assert values[g] == -(0.5 + 0.25 * ((5 * window + 3 * micro + 7 * rank) % 12)), (window, micro, rank)


def test_late_gradients_are_added_when_they_are_complete():
    with Daemon() as d:
        first, pages = train(d, rings=True)
        check(first)
        assert pages == [2, 2]  # the library's own, then the mailbox's
        for rings, by_rpc in ((False, ()), (True, (1,)), (False, (0, 1))):
            values, pages = train(d, rings, by_rpc)
            assert values.tobytes() == first.tobytes(), (rings, by_rpc)
            assert pages == [1 if r in by_rpc else 2 for r in range(RANKS)]


@pytest.mark.parametrize("rings", (True, False))
def test_while_engines_are_killed(rings):
    def kill(job):
        for step in (3, 9, 15, 21):
            wait_until(f"step {step}", lambda: d.get_job(job).applied_step >= step, 60)
            d.kill_engine(job, d.engine_pid(job))

    with Daemon() as d:
        values, pages = train(d, rings, meanwhile=kill)
        check(values)
        assert pages == [2, 2]  # the mailboxes outlive the engine


@pytest.mark.parametrize("rings", (True, False))
def test_while_gaccd_is_killed(rings):
    """New sessions with new mailboxes: words and their values go on."""
    def kill(job):
        for step in (4, 12):
            wait_until(f"step {step}", lambda: d.get_job(job).applied_step >= step, 60)
            time.sleep(LATE_US / 2e6)
            d.kill_gaccd()
            d.wait_ready()

    with Daemon(supervise=True) as d:
        values, pages = train(d, rings, meanwhile=kill)
        check(values)
        assert pages == [4, 4]
