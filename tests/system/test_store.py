# SPDX-License-Identifier: Apache-2.0
"""The service manager that keeps descriptors: one that does not read its socket, and what gaccd finds again of a job that was being stored."""
import concurrent.futures
import os
import signal
import time

import numpy as np
import pytest

from harness import Daemon, GaccError, Rank, parent_and_state, wait_until
from launching import SPEC, wait_state

TENSOR = [{"name": "w", "dtype": "f32", "shape": [16]}]
STEP_S, SLOW_STEPS = 0.7, 2  # steps waited for one second for each descriptor of a job that began; so many may be slow on a busy machine


@pytest.fixture
def deaf():
    """A gaccd under systemd's protocol, and its manager, which the test may stop."""
    with Daemon(systemd_ms=60000, allow=["has not read its socket", "StoreWaits", "calls that did not end in time are cancelled"]) as d:
        yield d
        os.kill(d.supervisor_pid, signal.SIGCONT)


def stop(d):
    os.kill(d.supervisor_pid, signal.SIGSTOP)
    wait_until("the stop", lambda: parent_and_state(d.supervisor_pid)[1] == "T")


def slow_steps(rank, until):
    """How many there are among those that are made until it is so."""
    slow, end = 0, time.monotonic() + 90
    while not until():
        began = time.monotonic()
        assert began < end, "it does not become so"
        rank.push([np.ones(16, np.float32)])
        rank.wait_step()
        slow += time.monotonic() - began >= STEP_S
    return slow


def test_a_manager_that_does_not_read_holds_up_only_jobs_that_begin(deaf):
    d = deaf
    running = d.submit({**SPEC, "ranks": 1, "micro_size": 1, "steps": 0, "optimizer": {"type": "sgd", "lr": 0.001}})
    with Rank(d, running, 0, [("w", [16])], 1) as r, concurrent.futures.ThreadPoolExecutor(2) as pool:
        r.start({"w": np.zeros(16, np.float32)})
        stop(d)
        waiting = pool.submit(d.submit, {**SPEC, "name": "waits", "ranks": 40, "tensors": TENSOR})
        warned = "the service manager has not read its socket for 5 s"
        assert slow_steps(r, lambda: warned in d.log() and " StoreWaits job=" in d.log()) <= SLOW_STEPS
        assert not waiting.done() and not d.get_job("waits").engine_pid
        with pytest.raises(GaccError):  # it is given up before its turn has come
            d.client.jobs.Submit(spec=d.client.types.spec(**{**SPEC, "name": "given-up", "ranks": 40, "tensors": TENSOR}), request_id=os.urandom(16),
                                 timeout=0.5, retry=False)
        d.cancel("given-up")
        os.kill(d.supervisor_pid, signal.SIGCONT)
        assert slow_steps(r, waiting.done) <= SLOW_STEPS
        job = waiting.result()
        assert d.get_job(job).engine_pid
        wait_until("its word", lambda: "the service manager reads its socket again" in d.log())
        d.kill_gaccd()  # all that it was told to keep is there
        d.wait_ready()
        r.push([np.ones(16, np.float32)])
        r.wait_step()
        assert d.engine_pid(job)
        d.cancel(running)
        d.cancel(job)


def test_a_gaccd_stops_while_its_manager_does_not_read(deaf):
    """It does not wait for an answer that may never come, and the next one begins the job anew."""
    d = deaf
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        stop(d)
        waiting = pool.submit(d.submit, {**SPEC, "ranks": 40, "tensors": TENSOR})
        wait_until("the job", lambda: d.client.jobs.List().jobs)
        gaccd = d.pid
        os.kill(gaccd, signal.SIGTERM)
        wait_until("its end", lambda: parent_and_state(gaccd)[1] in "XZ", 15)
        os.kill(d.supervisor_pid, signal.SIGCONT)
        d.wait_ready()
        job = d.client.jobs.List().jobs[0].id
        assert d.engine_pid(job)
        waiting.exception()
        wait_state(d, job, "STARTING")
        d.kill_gaccd()
        d.wait_ready()
        assert d.engine_pid(job)
        d.cancel(job)
