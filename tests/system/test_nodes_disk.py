# SPDX-License-Identifier: Apache-2.0
"""The disk of one of a job's two nodes is full, or takes no more: the job goes on, or waits and says for which node, and what was acknowledged is in
the step that is made when there is room again."""
import functools
import os
import re
import resource

import pytest

from cli import Cli
from cluster import Cluster, Node
from harness import GaccError, wait_until
from saving_job import FAILED
from test_full_disk import RESERVE, SmallDisk, may_mount, reserve_of
from test_nodes import ALLOW, QUICK, drawn, over, push
from test_nodes_restore import OnNodes
from test_parts import spec

mounts = pytest.mark.skipif(not may_mount, reason="mounts are not allowed here")
FULL = [" DiskFull", "history", "the disk is full: .* of the reserve"]
BROKEN = [*FULL, "journal", "gaccd-supervise WARN", "RankLost", "exited with 74"]


class SmallNode(SmallDisk, Node):
    """A node of a cluster whose state_dir is a small file system."""


@pytest.fixture
def small(request):
    """(the cluster, its node with a disk of so many MiB)"""
    name, mib, conf = request.param
    with Cluster(2, conf={**QUICK, **conf}, allow=ALLOW, kinds={name: functools.partial(SmallNode, "state", mib)}) as c:
        yield c, c[name]


def fill(node, broken=False):
    node.allow += BROKEN if broken else FULL
    node.fill()


def finish(c, sent, *ranks):
    push(c, sent, *ranks)
    c.check(sent, [r.wait_step() for r in c.team.ranks][0].result)


@mounts
@pytest.mark.parametrize("small", [("a", 32, RESERVE), ("b", 32, RESERVE)], indirect=True, ids=["coordinator", "node"])
def test_a_job_goes_on_while_a_disk_is_full(small):
    """By the journal's reserve; over a death of that gaccd, too. The node says that its disk is full."""
    cluster, node = small
    c = over(cluster, spec(ranks=2, parts=2))
    c.window()
    reserve_of(node, 4)
    sent = drawn(c)
    push(c, sent, 1)
    fill(node)
    wait_until("it is noticed", lambda: " DiskFull" in node.log())
    finish(c, sent, 0)
    assert "disk full" in Cli(node.dir, node.endpoint).run("health", code=8)
    cluster.kill(node.name)
    for _ in range(3):
        c.window()
    node.make_room()
    wait_until("it is noticed", lambda: "DiskHasRoom" in node.log())
    c.window()
    c.close()


def lives(node):
    return node.log().count("exited with 74")


@mounts
@pytest.mark.parametrize("small", [("a", 4, {"limits.journal_reserve": "1MiB"})], indirect=True, ids=["coordinator"])
def test_a_coordinator_without_room_and_reserve_loses_nothing(small):
    """It cannot commit, and starts again and again; the other node's pushes are counted and wait."""
    cluster, node = small
    c = over(cluster, spec(ranks=2, parts=2))
    c.window()
    sent = drawn(c)
    push(c, sent, 0)
    fill(node, broken=True)
    cluster["b"].allow.append("RankLost")
    push(c, sent, 1)
    wait_until("a second life without room", lambda: lives(node) >= 2, 40)
    assert "the disk is full and its reserve is used up" in node.log()
    node.make_room()
    node.wait_ready()
    finish(c, sent)
    c.window()
    c.close()


@mounts
@pytest.mark.parametrize("small", [("b", 4, {"limits.journal_reserve": "1MiB"})], indirect=True, ids=["node"])
def test_a_node_without_room_and_reserve_loses_nothing(small):
    """A new job gets no part there. When its gaccd has died, it starts again and again; jobs that it has a part of wait for it, and say so."""
    cluster, node = small
    c = over(cluster, spec(ranks=2, parts=2))
    c.window()
    sent = drawn(c)
    push(c, sent, 1)
    fill(node, broken=True)
    cluster["a"].allow.append(" Ended job=.* node b cannot write the part's record to its journal: the disk of its state_dir is full")
    with pytest.raises(GaccError) as e:
        cluster.submit(spec(ranks=1, parts=1, name="other"), nodes=["b"])
    assert e.value.reason == "RESOURCE_EXHAUSTED" and "node b cannot write the part's record to its journal: the disk of its state_dir is full" in e.value.text
    assert e.value.detail.hint.startswith("delete what is not needed on that disk")
    node.kill_gaccd()
    wait_until("a second life without room", lambda: lives(node) >= 2, 40)
    cli = Cli(cluster["a"].dir, cluster["a"].endpoint)
    wait_until("the reason", lambda: "part 1: node b is silent" in cluster["a"].get_job(c.team.job).reason, 20)
    assert re.search(r"^b +(SUSPECT|DOWN) ", cli.run("nodes"), re.M)
    assert "part 1: node b is silent; what it has is kept there" in cli.run("status")
    node.make_room()
    node.wait_ready()
    finish(c, sent, 0)
    c.window()
    c.close()
    cluster["a"].cancel(cluster.submit(spec(ranks=1, parts=1, name="other"), nodes=["b"]))


@pytest.mark.parametrize("which", [0, 1], ids=["coordinator", "node"])
def test_a_node_that_cannot_write_its_share_fails_the_checkpoint_and_nothing_else(which):
    with Cluster(2, conf=QUICK, allow=[*ALLOW, " CheckpointFailed job=", "checkpoint: "]) as cluster:
        c = OnNodes(cluster, ("ab", 2, "full", 4))
        c.window()
        engine = c.pids()[which]
        limits = resource.prlimit(engine, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        jobs = cluster["b"].client.jobs
        k = jobs.SaveCheckpoint(job=str(c.team.job), wait=True, request_id=os.urandom(16)).checkpoint
        assert (k.state, k.path) == (FAILED, "") and "File too large" in k.message and (not which or "part 1" in k.message), k
        c.window()
        resource.prlimit(engine, resource.RLIMIT_FSIZE, limits)
        c.save()
        assert c.pids()[which] == engine
        c.window()
        c.close()
