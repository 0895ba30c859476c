# SPDX-License-Identifier: Apache-2.0
"""TensorNorms of jobs with parts on several nodes, sharded or not: the bits of one gaccd with the same parts, asked for at any node."""
import concurrent.futures
import time

import pytest

from cluster import Cluster
from harness import Daemon, GaccError
from hello_relay import HelloRelay
from test_sharding import SMALL, TENSORS, spec, work
from training import Team

WINDOWS = 4


def norms_of(daemon, s, tensors, ask, place=None):
    """Window -> name -> the norms as they are asked for through `ask`, before each window; and what the steps were."""
    answers, steps = {}, []
    with Team(daemon, s, tensors, place=place) as team, concurrent.futures.ThreadPoolExecutor() as pool:
        asked = []
        for w in range(WINDOWS):
            asked.append(pool.submit(ask.client.jobs.TensorNorms, job=str(team.job)))
            time.sleep(0.2)
            steps.append(team.window(work(w, tensors)).result.params_digest)
        for a in asked[:-1]:  # the last one may have come too late for any
            n = a.result()
            answers[n.window] = {t.name: (t.grad_norm.hex(), t.param_norm.hex()) for t in n.norms}
    return answers, steps


@pytest.fixture(scope="module")
def two():
    with Cluster(2, conf={"coll.stall": "2s"}, allow=["AttemptFailed", "CommunicatorLost"]) as c:
        yield c


@pytest.fixture(scope="module")
def reference():
    """Of one gaccd with both parts, unsharded."""
    def of(tensors):
        if id(tensors) not in seen:
            seen[id(tensors)] = norms_of(d, spec(2, "none"), tensors, d)
        return seen[id(tensors)]
    seen = {}
    with Daemon() as d:
        yield of


@pytest.mark.parametrize("tensors", [TENSORS, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("asked_at", ["a", "b"])
@pytest.mark.parametrize("nodes", ["b,a", "a,b"])
@pytest.mark.parametrize("sharding", ["none", "full"])
def test_the_bits_are_those_of_one_gaccd(two, reference, sharding, nodes, asked_at, tensors):
    s = {**spec(2, sharding), "nodes": nodes}
    place = [two.node_of_rank(r, 4, 2, nodes.split(",")) for r in range(4)]
    want, want_steps = reference(tensors)
    norms, steps = norms_of(two["a"], s, tensors, two[asked_at], [two[p] if isinstance(p, str) else p for p in place])
    assert steps == want_steps
    both = sorted(set(norms) & set(want))
    assert len(both) >= 2, (norms.keys(), want.keys())
    for w in both:
        assert norms[w] == want[w] and list(norms[w]) == [t[0] for t in tensors]


def test_a_node_that_is_too_old_is_named():
    """What it does not know would end its link."""
    c = Cluster(2, conf={"coll.stall": "2s"}, allow=["AttemptFailed", "CommunicatorLost"])
    with HelloRelay(c, "b") as relay:
        relay.change = {"protocol_max": 1}
        with c:
            for sharding, nodes, part in ("none", "b,a", 0), ("full", "a,b", 1):
                place = [c.node_of_rank(r, 4, 2, nodes.split(",")) for r in range(4)]
                with Team(c["a"], {**spec(2, sharding), "nodes": nodes, "name": sharding}, SMALL, place=place) as team:
                    team.window(work(0, SMALL))
                    with pytest.raises(GaccError) as e:
                        c["a"].client.jobs.TensorNorms(job=str(team.job), timeout=5, retry=False)
                    assert e.value.reason == "NOT_SUPPORTED" and f"node b, which has part {part}, runs a gaccd that sends no norms: upgrade it" in str(e.value)
                    team.window(work(1, SMALL))
        assert relay.changed
