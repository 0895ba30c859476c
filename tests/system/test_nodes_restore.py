# SPDX-License-Identifier: Apache-2.0
"""A checkpoint begins a job on other nodes than those that saved it, with other parts, ranks and sharding: parameters and optimizer state have the same
bits, and the steps that follow have those that exact.py defines for the new job's parts."""
import os

import pytest

from cluster import Cluster
from harness import wait_until
from saving_job import COMPLETE
from test_nodes import ALLOW, QUICK, drawn
from test_parts import Compared, spec
from test_sharded_checkpoints import manifest_of, state_of


@pytest.fixture(scope="module")
def cluster():
    with Cluster(3, conf=QUICK, allow=ALLOW) as c:
        yield c


class OnNodes(Compared):
    """A job on these nodes; `before`: the job that has saved what it begins with."""

    def __init__(self, cluster, where, before=None, **more):
        nodes, parts, sharding, ranks = where
        s = spec(ranks=ranks, parts=parts, sharding=sharding, **({"shard_size": 2} if sharding == "hybrid" else {}), **more)
        place = [cluster.node_of_rank(r, ranks, parts, nodes) for r in range(ranks)]
        super().__init__(cluster["a"], {**s, "nodes": ",".join(nodes)}, place)
        if before:
            old, self.n = before.saved
            for name in ("window", "applied", "p", "m", "v"):
                setattr(self.model, name, getattr(old.copy(), name))

    def save(self, **fields):
        jobs = self.team.daemon.client.jobs
        k = jobs.SaveCheckpoint(job=str(self.team.job), wait=True, request_id=os.urandom(16), **fields).checkpoint
        assert k.state == COMPLETE, k
        self.saved = self.model.copy(), self.n
        return k


MOVES = {
    "3 nodes to 2": (("abc", 3, "none", 4), ("ab", 2, "none", 4)),
    "2 nodes to 3, sharded then": (("ab", 2, "none", 4), ("bca", 3, "full", 3)),
    "1 node to 2": (("a", 2, "none", 2), ("ab", 2, "none", 2)),
    "2 parts of 1 node to 2 nodes, sharded before": (("c", 2, "full", 4), ("ab", 2, "none", 4)),
    "3 nodes to 2 with the same parts, sharded before": (("abc", 3, "full", 4), ("ab", 3, "none", 5)),
    "2 nodes to 3 with the same parts, other groups": (("ab", 4, "hybrid", 4), ("abc", 4, "full", 4)),
    "2 nodes to 1 part": (("bc", 2, "full", 4), ("b", 1, "none", 3)),
}


@pytest.mark.parametrize("before,after", MOVES.values(), ids=MOVES)
def test_other_nodes_go_on(cluster, before, after):
    old = OnNodes(cluster, before)
    for _ in range(2):
        old.window()
    k = old.save()
    assert manifest_of(k.path).get("shares", 0) == (0 if before[2] == "none" else before[1])
    new = OnNodes(cluster, after, old, name="again", restore_from=k.path)
    assert {r.resumed.window for r in new.team.ranks} == {2}
    assert state_of(new.save().path) == state_of(k.path)
    for _ in range(2):  # of both, side by side
        new.window()
        old.window()
    old.close(), new.close()


def give(job, sent, which):
    for rank, micro in which:
        weight, grads = sent[rank][micro]
        job.team[rank].push(grads, weight=weight)


@pytest.mark.parametrize("before,after", [(("abc", 3, "full", 4), ("ab", 3, "none", 4)), (("a", 2, "none", 4), ("bc", 2, "full", 4))],
                         ids=["3 nodes to 2", "1 node to 2"])
def test_an_open_window_goes_on_on_other_nodes(cluster, before, after):
    """With as many parts: what each part had counted is taken up by the node that has it now."""
    old = OnNodes(cluster, before)
    old.window()
    sent = drawn(old)
    give(old, sent, [(0, 0), (2, 0)])
    k = old.save(inside_window=True)
    assert k.carried_micros == 2
    new = OnNodes(cluster, after, old, name="again", restore_from=k.path)
    assert [r.missing for r in new.team.ranks] == [[1], [0, 1], [1], [0, 1]]
    for job in new, old:
        give(job, sent, [(1, 0), (3, 0), (0, 1), (1, 1), (2, 1), (3, 1)])
        job.check(sent, [r.wait_step() for r in job.team.ranks][0].result)
        job.window()
    old.close(), new.close()


def test_what_is_saved_on_nodes_begins_a_job_after_the_loss_of_one(cluster):
    """Its memory is gone, and with it the job; the checkpoint begins another one on the nodes that are left."""
    old = OnNodes(cluster, ("abc", 3, "full", 3))
    for _ in range(2):
        old.window()
    k = old.save()
    old.window()
    cluster["a"].allow.append(" Ended .*the job's memory is gone")
    for node in "ab":
        cluster[node].allow.append(" RankLost job=")
    cluster.lose("c")
    cluster["c"].start()
    wait_until("the end", lambda: cluster["a"].state(old.team.job) == "NODE_FAIL")
    for r in old.team.ranks:
        r.close()
    new = OnNodes(cluster, ("ab", 2, "full", 3), old, name="again", restore_from=k.path)
    for _ in range(2):
        new.window()
    new.close()
