# SPDX-License-Identifier: Apache-2.0
"""JobService.Wait: parked until the job has come so far, cannot any more, or the time is over."""
import threading

import numpy as np
import pytest

from harness import Client, GaccError, Rank, wait_until

pytestmark = pytest.mark.smoke
SPEC = {"ranks": 1, "micro_size": 1, "steps": 3, "optimizer": {"type": "sgd", "lr": 1}}


class Parked:
    """A Wait in a thread of its own."""

    def __init__(self, daemon, job, **what):
        self.answer = self.error = None

        def run():
            client = Client(daemon.endpoint)
            try:
                self.answer = client.jobs.Wait(job=str(job), timeout=20, **what).job
            except GaccError as e:
                self.error = e
            client.close()
        self.thread = threading.Thread(target=run)
        self.thread.start()

    def ended(self, timeout=10):
        self.thread.join(timeout)
        assert not self.thread.is_alive()
        return self.error or self.answer


def step(rank):
    rank.push([np.ones(1, np.float32)])
    return rank.wait_step()


@pytest.fixture
def types(daemon):
    """Values of JobState by name."""
    values = daemon.client.types.Job.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_name
    return lambda name: values["JOB_STATE_" + name].number


def test_steps_states_and_the_end(daemon, types):
    job = daemon.submit(SPEC)
    running = Parked(daemon, job, state=types("RUNNING"))
    with Rank(daemon, job, 0, [("w", [1])]) as r:
        r.start({"w": np.zeros(1, np.float32)})
        assert running.ended().state == types("RUNNING")
        second, end = Parked(daemon, job, applied_step=2), Parked(daemon, job)
        completed = Parked(daemon, job, state=types("COMPLETED"))
        step(r)
        assert second.thread.is_alive()
        step(r)
        assert second.ended().applied_step == 2
        assert end.thread.is_alive()
        step(r)
    assert end.ended().state == completed.ended().state == types("COMPLETED")
    assert Parked(daemon, job, applied_step=3).ended().applied_step == 3  # at once


def test_what_cannot_be_any_more_is_refused(daemon, types):
    job = daemon.submit(SPEC)
    waits = [Parked(daemon, job, applied_step=3), Parked(daemon, job, state=types("RUNNING"))]
    end = Parked(daemon, job)
    daemon.cancel(job)
    for w in waits:
        e = w.ended()
        assert (e.code, e.reason) == ("FAILED_PRECONDITION", "JOB_ENDED")
        assert f"job {job} has ended as CANCELLED at step 0" in e.text
    assert end.ended().state == types("CANCELLED")


def test_time_and_nonsense(daemon, types):
    job = daemon.submit(SPEC)
    e = Parked(daemon, job, applied_step=1, timeout_ms=200).ended()
    assert (e.code, e.reason) == ("DEADLINE_EXCEEDED", "DEADLINE") and f"job {job} is PENDING at step 0" in e.text
    assert Parked(daemon, 99).ended().reason == "JOB_NOT_FOUND"
    assert Parked(daemon, job, state=77).ended().reason == "INVALID_ARGUMENT"
    gone = Parked(daemon, job, state=types("RUNNING"), timeout_ms=10 ** 15)  # no overflow: it waits until it is cancelled
    wait_until("the call", lambda: gone.thread.is_alive())
    daemon.cancel(job)
    assert gone.ended().reason == "JOB_ENDED"
