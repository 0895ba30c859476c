# SPDX-License-Identifier: Apache-2.0
"""Jobs, micro-batches and checks that the tests of the steps' numbers share."""
import numpy as np
import pytest

from reference import Reduced
from training import draw

CLIENT = {"type": "client"}
TENSORS = [("layer.weight", [17, 13]), ("layer.bias", [17]), ("head.weight", [3, 17]), ("scale", [])]
ADAM = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
OPTIMIZERS = {
    "sgd": {"type": "sgd", "lr": 0.1},
    "sgd decay": {"type": "sgd", "lr": 0.1, "weight_decay": 0.05},
    "momentum": {"type": "sgd", "lr": 0.1, "momentum": 0.9},
    "momentum dampening decay": {"type": "sgd", "lr": 0.1, "momentum": 0.8, "dampening": 0.3, "weight_decay": 0.05},
    "nesterov": {"type": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "adam": {"type": "adam", **ADAM},
    "adam decay": {"type": "adam", **ADAM, "weight_decay": 0.1},
    "adamw": {"type": "adamw", **ADAM, "weight_decay": 0.1},
    "lamb": {"type": "lamb", **ADAM, "weight_decay": 0.1},
}

_names = iter(range(10 ** 6))


def job(ranks=3, micro_size=4, **spec):
    return {"name": f"equivalence-{next(_names)}", "ranks": ranks, "micro_size": micro_size, **spec}


def expect(team, *events):
    """These events of the job are no surprise in the log."""
    team.daemon.allow.append(rf" ({'|'.join(events)}) job={team.job} ")


def gradients(seed, tensors=TENSORS, low=None):
    return {t[0]: draw((seed, i), t[1], low) for i, t in enumerate(tensors)}


def micros(window, counts, weighted=True, tensors=TENSORS, low=None):
    """Micro-batches of one window, counts[rank] each; weights are 1 or uneven ones from 0.5 to 9."""
    def weight(rank, micro):
        return float(np.random.default_rng((window, rank, micro)).uniform(0.5, 9)) if weighted else 1.0
    return [[(weight(r, m), gradients(1000 * window + 100 * r + m, tensors, low)) for m in range(n)]
            for r, n in enumerate(counts)]


def check_reduced(team, step, spec):
    """The window's gradient and numbers against the reference; the share of the bound that was used."""
    want = Reduced(spec, team.sent, team.shapes)
    result, got = step.result, team.reduced()
    used = max(g.check(got[n], n) for n, g in want.grads.items())
    assert result.micro_count == want.count
    assert result.total_weight == pytest.approx(want.total_weight, rel=1e-15)
    assert result.divisor == pytest.approx(want.divisor, rel=1e-15)
    want.norm.check(result.grad_norm, "grad_norm")
    return used
