# SPDX-License-Identifier: Apache-2.0
"""A gaccd of two nodes dies in the middle of saving the trainers' states of a job of two parts, in a build with -DGACC_FAILPOINTS; or its writing
fails. What is complete afterwards has no state of another window, what is missing is told, and nothing half-written is left."""
import pytest

from cluster import Cluster
from failpoint_job import Control
from harness import wait_until
from saving_job import FAILED
from test_failpoints import EXPECTED
from test_trainer_state import put, states_in
from test_trainer_state_parts import ALLOW, OnNodes, complete_ones, put_all

pytestmark = pytest.mark.failpoints


@pytest.fixture(scope="module")
def c(tmp_path_factory):
    shared = tmp_path_factory.mktemp("shared")
    with Cluster(2, conf={"checkpoint.allowed_dirs": shared}, allow=[*EXPECTED, *ALLOW]) as cluster:
        cluster.shared = shared
        cluster.control = {name: Control(node.dir / "run/failpoints.sock") for name, node in cluster.nodes.items()}
        yield cluster
        for control in cluster.control.values():
            control.close()


def begun(c, name, where, point, action):
    """A checkpoint with the states of all four ranks, in the middle of which that happens; what was put."""
    job = OnNodes(c, name=name, checkpoint={"dir": str(c.shared / name)})
    put_all(job, "before")
    job.step(1)
    given = put_all(job, "state")
    c.control[where].do(f"arm {point} {action} count 1")
    job.save(wait=False)
    return job, given


def over(c, job, given):
    """The next checkpoint is as any other, and nothing is left of that one."""
    given = put_all(job, "again")
    assert states_in(job.save().path) == given
    assert not list((c.shared / job.spec["name"]).glob(".*"))
    job.step(1)
    job.leave()


@pytest.mark.parametrize("point", ["gaccd_save_states_before", "gaccd_save_states_written"])
def test_the_gaccd_of_a_part_dies(c, point):
    """It is tried again, by a gaccd that has no states any more; what the dead one had written does not count."""
    job, given = begun(c, point, "b", point, "crash")
    [k] = wait_until("saved", lambda: complete_ones(job), 30)
    assert states_in(k.path) == {i: given[i] for i in (0, 1)}
    assert "no trainers' states of part 1: its gaccd has been restarted" in c["a"].events("StatesMissing")[-1]
    over(c, job, given)


@pytest.mark.parametrize("point", ["gaccd_save_states_before", "gaccd_save_states_written", "gaccd_save_states_joined", "gaccd_save_manifest_opened"])
def test_the_coordinator_dies(c, point):
    """The checkpoint is gone; what was put to the other gaccd is there still."""
    before = c["a"].pid
    job, given = begun(c, f"coordinator-{point}", "a", point, "crash")
    wait_until("the next gaccd", lambda: c["a"].pid not in (None, before))
    c["a"].wait_ready()
    assert complete_ones(job) == []
    put(job.ranks[1], b"again")
    k = job.save()
    assert states_in(k.path) == {1: b"again", 2: given[2], 3: given[3]}
    over(c, job, given)


@pytest.mark.parametrize("where,point", [("b", "gaccd_save_states_before"), ("a", "gaccd_save_states_joined")])
def test_an_error(c, where, point):
    """The checkpoint fails, and says where; the states are there for the next one."""
    job, given = begun(c, f"error-{where}", where, point, "error")
    k = wait_until("failed", lambda: [k for k in job.saved() if k.state == FAILED])[0]
    assert k.message
    assert states_in(job.save().path) == given
    over(c, job, given)
