# SPDX-License-Identifier: Apache-2.0
"""JobService at a node that coordinates nothing: its gaccd passes the calls on to the coordinator, for the user who makes them."""
import threading

import pytest

from cluster import Cluster
from harness import GaccError, wait_until

SPEC = {"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 0.1}}


@pytest.fixture(scope="module")
def c():
    with Cluster(2) as cluster:
        yield cluster


def test_a_watch_ends_with_the_job(c):
    job = c["a"].submit(SPEC)
    seen = []
    watching = threading.Thread(target=lambda: seen.extend(c["b"].client.jobs.Watch(job=str(job))))
    watching.start()
    c["a"].cancel(job)
    watching.join(20)
    assert not watching.is_alive() and seen[-1].job.id == job and seen[-1].job.state == c["a"].get_job(job).state


def test_without_the_coordinator(c):
    """The node answers at once that there is none, and passes calls on again when it is back; its own calls go on."""
    job = c["a"].submit(SPEC)
    with c.killed("a"):
        wait_until("the link is lost", lambda: "LinkLost" in c["b"].log())
        with pytest.raises(GaccError) as e:
            c["b"].client.jobs.List(timeout=5, retry=False)
        assert e.value.code == "UNAVAILABLE" and "the coordinator cannot be reached" in str(e.value)
        assert c["b"].client.node.GetNode().name == "b"
    wait_until("the job", lambda: c["b"].get_job(job).id == job)
    c["a"].cancel(job)
