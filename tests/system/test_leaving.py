# SPDX-License-Identifier: Apache-2.0
"""Trainers that leave in the middle of a window, die before they have acknowledged a step, or go on after the last window: what
they were told is counted is in an outcome, and the job ends."""
import os
import signal
import time

import numpy as np
import pytest

from harness import SLOWER, Daemon, GaccError, Rank, alive, wait_until

APPLIED, EMPTY = 1, 3
TENSORS = [("w", [4])]
CLIENT = {"optimizer": {"type": "client"}, "reduction": "sum", "ranks": 2, "micro_size": 4}


def grad(value):
    return [np.full(4, value, np.float32)]


def start(daemon, job, ranks):
    trainers = [Rank(daemon, job, rank, TENSORS, ranks) for rank in range(ranks)]
    for t in trainers:
        t.register()
    trainers[0].put_params({"w": np.zeros(4)})
    for t in trainers:
        t.ready()
    return trainers


def test_gaccd_killed_right_after_the_last_detach():
    """Each rank has given 2 of 4 micro-batches and leaves. gaccd is killed while the engine reduces, which takes it a few ms."""
    n, undecided = 4_000_000 // SLOWER, 0
    with Daemon(supervise=True, conf={"engine.threads": 1}) as d:
        for i in range(20):
            job = d.submit({"optimizer": {"type": "sgd", "lr": 1.0}, "reduction": "sum", "ranks": 2, "micro_size": 4,
                            "init": [{"pattern": "*", "type": "zeros"}]})
            trainers = [Rank(d, job, rank, [("w", [n])], 2) for rank in range(2)]
            for t in trainers:
                t.register()
            for t in trainers:
                t.ready()
            for micro in range(2):
                for t in trainers:
                    assert t.push([np.full(n, 1 + t.rank + 2 * micro, np.float32)], slot=micro).result == 1
            gaccd = d.pid
            for t in trainers:
                t.gacc.Detach(session=t.session, done=True)
            time.sleep(0.0001 + 0.0021 * i / 19)  # the moment of the kill is what varies
            os.kill(gaccd, signal.SIGKILL)
            d.killed += 1
            wait_until("gaccd's death", lambda: not alive(gaccd), every=0.001)
            undecided += not any(f" job={job} " in line for line in d.events("Completed"))
            d.wait_ready()
            wait_until("the job's end", lambda: d.state(job) == "COMPLETED")
            last = d.get_job(job).last
            assert (last.outcome, last.applied_step, last.micro_count) == (APPLIED, 1, 4)
            assert (np.frombuffer(trainers[0].memory[2, 0], np.float32, n) == -10).all()
            for t in trainers:
                t.close()
        assert undecided, "each kill came too late"


def test_a_step_not_applied_is_named_over_windows_without_one(daemon):
    """Optimizer client: rank 1 dies with the step of window 0 in its hands, and window 1 closes with nothing in it."""
    job = daemon.submit(CLIENT)
    trainers = start(daemon, job, 2)
    for t in trainers:
        t.push(grad(1 + t.rank))
    for t in trainers:
        t.flush()
    assert trainers[0].wait_step().result.outcome == APPLIED
    trainers[0].ack_step()
    daemon.client.jobs.Flush(job=str(job))
    assert trainers[0].wait_step().result.outcome == EMPTY
    with Rank(daemon, job, 1, TENSORS, 2, inline=True) as late:
        late.register()
        at = late.ready()
        assert (at.window, at.pending_apply, at.pending_window) == (2, True, 0)
        assert late.wait_step(window=0).result.outcome == APPLIED
        assert np.frombuffer(late.get_bytes(reduced_gradients=True), np.float32, 4)[0] == 3
        late.ack_step(window=at.pending_window)
        assert not late.ready().pending_apply
        for t in (trainers[0], late):
            t.push(grad(8))
            t.flush()
        assert late.wait_step().result.outcome == APPLIED
        for t in (trainers[0], late):
            t.gacc.Detach(session=t.session, done=True)
        wait_until("the job's end", lambda: daemon.state(job) == "COMPLETED")
    trainers[0].close()


def test_a_window_that_waits_for_a_step_to_be_applied_lets_it_be_applied(daemon):
    """Optimizer client: both ranks die before they acknowledge, and the operator closes the next window with what is in it."""
    job = daemon.submit(CLIENT)
    trainers = start(daemon, job, 2)
    for t in trainers:
        t.push(grad(1 + t.rank))
        t.flush()
    assert [t.wait_step().result.outcome for t in trainers] == [APPLIED, APPLIED]
    trainers[0].push(grad(16))
    daemon.client.jobs.Flush(job=str(job))
    successors = [Rank(daemon, job, rank, TENSORS, 2, inline=True) for rank in range(2)]
    for t in successors:
        t.register()
        at = t.ready(timeout=20)
        assert (at.window, at.pending_apply, at.pending_window, list(at.missing)) == (1, True, 0, [])
        assert np.frombuffer(t.get_bytes(reduced_gradients=True), np.float32, 4)[0] == 3
        t.ack_step(window=0)
    for t in successors:
        assert t.wait_step(window=1).result.outcome == APPLIED
        assert np.frombuffer(t.get_bytes(reduced_gradients=True), np.float32, 4)[0] == 16
        t.ack_step(window=1)
        t.gacc.Detach(session=t.session, done=True)
    wait_until("the job's end", lambda: daemon.state(job) == "COMPLETED")
    for t in trainers + successors:
        t.close()


def test_nothing_is_taken_after_the_last_window(daemon):
    job = daemon.submit({"optimizer": {"type": "sgd", "lr": 1.0}, "ranks": 1, "micro_size": 1, "steps": 1})
    t, = start(daemon, job, 1)
    t.push(grad(1))

    def refused():
        with pytest.raises(GaccError) as e:
            t.push(grad(2), window=1, micro=0)
        return e.value.reason
    reason = wait_until("the step", lambda: (reason := refused()) != "NOT_CURRENT_WINDOW" and reason)  # until it is applied, the next window is not open
    assert reason == "JOB_ENDED"
    wait_until("the job's end", lambda: daemon.state(job) == "COMPLETED")
    assert daemon.get_job(job).last.micro_count == 1
    t.close()
