# SPDX-License-Identifier: Apache-2.0
"""Windows of sharded jobs that are not just full: flushed, with void micro-batches, held, with new values, skipped or dropped; on one node, on two and
on three. Every step has the bits that exact.py defines for a job of as many parts, which is not sharded.
"""
import numpy as np
import pytest

from cluster import Cluster
from exact import APPLIED, DROPPED, EMPTY, SKIPPED, Micro
from harness import GaccError, wait_until
from random_checks import COUNTED, VOID
from test_nodes import ALLOW, QUICK
from test_parts import TENSORS, Compared, draws, spec

RANKS = 4
FULL, HYBRID = {"sharding": "full"}, {"sharding": "hybrid", "shard_size": 2}
LAYOUTS = {"one node": ("a", 3, FULL), "one node, groups": ("a", 4, HYBRID), "two nodes": ("ab", 2, FULL), "two nodes, groups": ("ab", 4, HYBRID),
           "three nodes": ("abc", 3, FULL)}


@pytest.fixture(scope="module")
def cluster():
    with Cluster(3, conf=QUICK, allow=[*ALLOW, " (MicroRejected|MicroVoid|StepSkipped|StepDropped) job="]) as c:
        for node in c.nodes.values():
            node.engines_killed = True
        yield c


class Windows(Compared):
    """A job beside exact.py; an operator calls at a node that does not coordinate, if the job has one."""

    def __init__(self, cluster, nodes, s):
        place = [cluster.node_of_rank(r, s["ranks"], s["parts"], nodes) for r in range(s["ranks"])]
        super().__init__(cluster["a"], {**s, "nodes": ",".join(nodes)}, place)
        self.operator = cluster[nodes[-1]].client
        self.digest = None

    def call(self, method, **fields):
        return getattr(self.operator.jobs, method)(job=str(self.team.job), **fields)

    def push(self, counts, bad=(), flush=False):
        """counts[rank] micro-batches of each, with a NaN in those of `bad`; what counts. `flush`: of ranks that have less than all."""
        work, void = draws(self.n, RANKS, counts), self.team.spec.get("nonfinite") == "reject_micro"

        def of_rank(r):
            counted = []
            for micro, (weight, grads) in enumerate(work[r.rank]):
                is_bad = (r.rank, micro) in bad
                if is_bad:
                    grads["half"][516] = np.nan  # the last one of all
                wire = self.team.as_sent(grads)[0]
                assert r.push(wire, weight=weight).result == (VOID if is_bad and void else COUNTED)
                if not (is_bad and void):
                    counted.append(Micro(r.rank, micro, weight, 0.0, wire))
            if flush and len(work[r.rank]) < r.micro_size:
                r.flush()
            return counted
        return sum(self.team._all(of_rank), [])

    def close_window(self, counted, outcome, n_void=0):
        """All ranks hear the same result, that of exact.py; the digest of parameters that stay as they are stays."""
        results = [r.wait_step().result for r in self.team.ranks]
        got, want = results[0], self.model.close(counted, n_void)
        assert all(str(r) == str(got) for r in results)
        assert want["outcome"] == outcome, f"window {self.n}: exact.py has another outcome than the test"
        for name in ("window", "outcome", "skip_reason", "micro_count", "total_weight", "divisor", "lr", "applied_step"):
            assert getattr(got, name) == want[name], f"window {self.n}: {name}"
        assert got.grad_norm == want["grad_norm"] or outcome == SKIPPED
        for name, array in self.team.params().items():
            assert array.tobytes() == self.model.params()[name].tobytes(), f"window {self.n}: {name}"
        assert (got.params_digest == self.digest) == (outcome != APPLIED or got.lr == 0), f"window {self.n}"
        self.digest = got.params_digest
        self.n += 1

    def window(self, counts, outcome=APPLIED, bad=(), by_operator=False):
        """Closed by its ranks' flushes, or by the operator's."""
        counted = self.push(counts, bad, flush=not by_operator)
        if by_operator:
            assert self.call("Flush").window == self.n
        self.close_window(counted, outcome, 0 if self.team.spec.get("nonfinite") == "skip_step" else len(bad))



@pytest.fixture(params=list(LAYOUTS))
def start(request, cluster):
    nodes, parts, sharding = LAYOUTS[request.param]
    made = []

    def job(**more):
        made.append(Windows(cluster, nodes, spec(ranks=RANKS, parts=parts, **sharding, **more)))
        made[-1].window([2] * RANKS)
        return made[-1]
    yield job
    for c in made:
        c.close()


def test_flushes_and_void_micro_batches(start):
    """Of some ranks, of all of a part, and of everybody. What the operator's flush meets is a beginning of each part's order."""
    c = start(nonfinite="reject_micro")
    c.window([2, 1, 0, 2])
    c.window([0, 0, 0, 1])
    c.window([2, 1, 0, 0], by_operator=True)
    c.window([2, 1, 2, 1], by_operator=True)
    c.window([2] * RANKS, bad=[(1, 0), (3, 1)])
    c.window([1] * RANKS, bad=[(2, 0), (3, 0)], by_operator=True)
    c.window([1, 0, 0, 1], EMPTY, bad=[(0, 0), (3, 0)])
    c.window([0] * RANKS, EMPTY, by_operator=True)
    c.window([2] * RANKS)


def test_what_is_dropped_or_skipped_changes_no_state(start):
    c = start(uneven="drop", nonfinite="skip_step")
    c.window([2, 1, 2, 2], DROPPED)
    c.window([2] * RANKS)
    c.window([2, 2, 1, 0], DROPPED, by_operator=True)
    c.window([2] * RANKS, SKIPPED, bad=[(3, 1)])
    c.window([2] * RANKS)


def test_new_values_and_a_hold(start):
    """The values hold from their window on, with which the shares are updated. A window of a held job that is full closes when it is resumed, also with
    another engine."""
    c = start(max_micro_size=3, clip_norm=1e6)

    def update(window=0, **values):
        at = c.call("Update", window=window, values=c.operator.types.JobValues(**values)).window
        c.model.updates.append((at, values))
        return at
    assert update(lr=0.5, clip_norm=0.25) == c.n + 1
    assert update(c.n + 2, micro_size=1, clip_value=1e-3) == c.n + 2
    assert update(c.n + 3, micro_size=3, lr=0.0) == c.n + 3
    for size in (2, 2, 1):
        c.window([size] * RANKS)
    assert update(lr=0.1) == c.n + 1
    c.window([3, 3, 2, 3])

    c.call("Pause", reason="a test")
    counted = c.push([3] * RANKS)
    with pytest.raises(GaccError) as e:
        c.team[RANKS - 1].wait_step(timeout=0.4)
    assert e.value.reason == "STALLED" and "the job is paused" in e.value.text
    with pytest.raises(GaccError) as e:
        c.call("Flush")
    assert e.value.reason == "PAUSED"
    last = c.pids()[-1]
    c.team.daemon.kill_engine(c.team.job, last)
    wait_until("another engine", lambda: c.parts()[-1].engine_pid not in (0, last))
    assert c.team.daemon.get_job(c.team.job).window == c.n
    c.call("Resume")
    c.close_window(counted, APPLIED)
    c.window([3] * RANKS)
