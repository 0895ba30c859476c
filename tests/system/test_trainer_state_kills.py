# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed while a checkpoint waits for a trainer's own state: it is saved all the same, once, and has the states that were
put for its window to the gaccd that lives; those of the one that died are lost with it."""
import pytest

from cluster import Cluster
from harness import Daemon, wait_until
from saving_job import COMPLETE, Job
from test_trainer_state import get, put, states_in


class OnNode(Job):
    """All ranks at node b, whose gaccd has the job's one part; a coordinates it."""

    def __init__(self, cluster):
        self.cluster = cluster
        super().__init__(cluster["b"], submit=lambda spec: cluster.submit(spec, nodes="b"), checkpoint={"dir": str(cluster.shared)})
        self.folder = cluster.shared


def waiting(job):
    """A checkpoint of window 1 that waits for the state of rank 1."""
    for r in job.ranks:
        put(r, b"before")
    job.step(1)
    put(job.ranks[0], b"zero")
    job.save(wait=False)
    wait_until("its engine has written", lambda: partials(job))
    assert not complete_ones(job)


def partials(job):
    return list(job.folder.rglob(".*.partial/model*.safetensors"))


def complete_ones(job):
    return [k for k in job.saved() if k.state == COMPLETE]


def complete(job, states):
    [k] = wait_until(lambda: f"not saved: {job.saved()}", lambda: complete_ones(job), 30)
    assert (k.window, states_in(k.path), partials(job)) == (1, states, [])


def test_the_engine_dies():
    """What it had written does not count; the states are there still."""
    with Daemon() as d:
        job = Job(d)
        job.folder = d.dir
        waiting(job)
        d.kill_engine(job.id)
        put(job.ranks[1], b"one")
        complete(job, {0: b"zero", 1: b"one"})
        job.leave()


def test_gaccd_dies():
    """The checkpoint is gone, and with it what was put. Who asks again gets one without states, or with those that were put again."""
    with Daemon(supervise=True) as d:
        job = Job(d)
        job.folder = d.dir
        waiting(job)
        d.kill_gaccd()
        d.wait_ready()
        assert job.saved() == [] and get(job.ranks[0]) is None
        put(job.ranks[1], b"one")
        job.save()
        complete(job, {1: b"one"})
        job.leave()


@pytest.fixture
def c(tmp_path):
    with Cluster(2, conf={"checkpoint.allowed_dirs": tmp_path}, allow=[" AttemptFailed "]) as cluster:
        cluster.shared = tmp_path
        yield cluster


def test_the_gaccd_of_the_part_dies(c):
    """The coordinator hears that it is another one now and tries once more; what was put to the dead one is gone."""
    job = OnNode(c)
    waiting(job)
    c.kill("b")
    complete(job, {})
    put(job.ranks[1], b"one")
    assert get(job.ranks[0]) is None and get(job.ranks[1]) == (1, b"one")
    job.leave()


def test_the_coordinator_dies(c):
    """The checkpoint is gone, but not what was put to the gaccd of the part."""
    job = OnNode(c)
    waiting(job)
    c.kill("a")
    put(job.ranks[1], b"one")
    assert [get(r) for r in job.ranks] == [(1, b"zero"), (1, b"one")]
    job.save()
    complete(job, {0: b"zero", 1: b"one"})
    job.leave()
