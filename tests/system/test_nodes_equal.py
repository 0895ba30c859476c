# SPDX-License-Identifier: Apache-2.0
"""A job on several nodes equals one process with the big batch, in f64 within the bounds of test_equivalence.py; on many nodes, with the bits that its
definition gives.

GACC_NODES_D: on how many nodes the latter; "all": on 5, 6, 7 and 8. Else one of these, drawn by GACC_SAMPLE.
"""
import os
import random

import pytest

from batches import CLIENT, OPTIMIZERS, TENSORS, check_reduced, job, micros
from cluster import Cluster
from test_equivalence import check_steps
from test_nodes import ALLOW, over
from test_parts import spec
from training import Team

MANY = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def c():
    with Cluster(3, conf={"limits.jobs": 64, "limits.jobs_per_user": 64}, allow=[*ALLOW, "UnusedRules", " Ended"]) as cluster:
        yield cluster


def team(c, **what):
    nodes = list(c.names)
    s = job(parts=len(nodes), nodes=",".join(nodes), **what)
    return s, Team(c["a"], s, TENSORS, place=[c.node_of_rank(r, 3, len(nodes), nodes) for r in range(3)])


@pytest.mark.parametrize("grad_of", ["mean", "sum"])
@pytest.mark.parametrize("reduction", ["weighted_mean", "mean", "sum", "fixed_divisor"])
def test_reductions(c, reduction, grad_of):
    """Full windows, unequal counts of the nodes, and nodes that have nothing."""
    divisor = {"fixed_divisor": 7.3} if reduction == "fixed_divisor" else {}
    s, ranks = team(c, optimizer=CLIENT, reduction=reduction, grad_of=grad_of, **divisor)
    with ranks:
        used = max(check_reduced(ranks, ranks.window(micros(w, counts)), s)
                   for w, counts in enumerate([(4, 4, 4), (4, 1, 3), (2, 0, 4), (1, 0, 0)]))
        assert used > 0.05  # the bound is not so wide that it holds for anything


@pytest.mark.parametrize("optimizer,sharding", [(o, s) for o in sorted(OPTIMIZERS) for s in ("none", "full") if (o, s) != ("lamb", "full")])
def test_optimizers(c, optimizer, sharding):
    s, ranks = team(c, optimizer=OPTIMIZERS[optimizer], sharding=sharding)
    with ranks:
        check_steps(ranks, s, [micros(w, (4, 4, 4)) for w in range(3)])


def numbers():
    d = os.environ.get("GACC_NODES_D")
    return MANY if d == "all" else [int(d) if d else random.Random(os.environ.get("GACC_SAMPLE", "none")).choice(MANY)]


@pytest.mark.parametrize("d", numbers())
def test_many_nodes(d):
    with Cluster(d, conf={"coll.stall": "5s"}, allow=ALLOW) as cluster:
        compared = over(cluster, spec(ranks=d + 1, parts=d))
        for counts in (None, [2] * d + [0], [1] * (d + 1)):
            compared.window(counts)
        compared.close()
