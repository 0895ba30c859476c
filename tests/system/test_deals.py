# SPDX-License-Identifier: Apache-2.0
"""The same micro-batches give the same bits however they are dealt: 1 rank of 8, 2 of 4, 4 of 2, 8 of 1.

docs/gradient.md, section 6, has the promise and its conditions. Micro-batch g of a window goes to rank g mod ranks as its number
g div ranks, so that the canonical order is that of g; what is compared is all that leaves the daemon, bit for bit.
"""
import numpy as np
import pytest

from batches import ADAM, OPTIMIZERS, expect, gradients, job
from harness import Daemon
from training import Team, draw

DEALS = [(1, 8), (2, 4), (4, 2), (8, 1)]
F32 = [("layer.weight", [33, 67]), ("layer.bias", [67]), ("scale", [])]
MIXED = [("layer.weight", [33, 67]), ("half", [65, 9], "bf16"), ("head", [10, 33], "f16"), ("scale", [])]
TIED = [("embedding", [40, 24]), ("head", [40, 24], "f32", "embedding"), ("bias", [40])]
GROUPS = [{"pattern": "*.bias", "lr_scale": 2.0, "weight_decay": 0.0, "override_weight_decay": True},
          {"pattern": "scale", "frozen": True}]
SCALING = {"enabled": True, "growth_interval": 2, "min_scale": 1.0}

# name -> tensors, what differs from the default of the job. Windows with a number in `bad` have a micro-batch that is not finite.
SPECS = {
    "sgd": (F32, {"optimizer": OPTIMIZERS["sgd"]}),
    "nesterov, mean": (F32, {"optimizer": OPTIMIZERS["nesterov"], "reduction": "mean"}),
    "momentum, sum of sums": (F32, {"optimizer": OPTIMIZERS["momentum dampening decay"], "reduction": "sum", "grad_of": "sum"}),
    "adam, weighted mean of sums": (F32, {"optimizer": OPTIMIZERS["adam decay"], "grad_of": "sum"}),
    "adam, mean of sums": (F32, {"optimizer": OPTIMIZERS["adam"], "reduction": "mean", "grad_of": "sum"}),
    "adamw, clipped": (F32, {"optimizer": OPTIMIZERS["adamw"], "clip_norm": 0.01}),
    "adamw, fixed divisor, clipped both ways": (F32, {"optimizer": OPTIMIZERS["adamw"], "reduction": "fixed_divisor",
                                                      "fixed_divisor": 7.3, "clip_norm": 3.0, "clip_value": 0.2}),
    "lamb, clipped": (F32, {"optimizer": OPTIMIZERS["lamb"], "clip_norm": 0.5}),
    "f64 sums": (F32, {"optimizer": OPTIMIZERS["adamw"], "accumulate_dtype": "f64"}),
    "dtypes of all kinds": (MIXED, {"optimizer": OPTIMIZERS["adamw"], "clip_norm": 0.1}),
    "16 bit gradients": (F32, {"optimizer": OPTIMIZERS["momentum"], "gradient_dtype": "bf16"}),
    "no master": (MIXED, {"optimizer": OPTIMIZERS["adam"], "master": "none"}),
    "tied": (TIED, {"optimizer": OPTIMIZERS["adamw"]}),
    "groups, schedule": (F32, {"optimizer": OPTIMIZERS["adamw"], "param_groups": GROUPS,
                               "schedule": {"type": "cosine", "warmup_steps": 2, "total_steps": 9, "min_factor": 0.1}}),
    "a scale that moves, windows that are skipped": (F32, {"optimizer": OPTIMIZERS["adamw"], "gradient_dtype": "f16", "loss_scale": 64.0,
                                                           "dynamic_loss_scale": SCALING, "bad": (1,)}),
    "micro-batches that are refused": (F32, {"optimizer": OPTIMIZERS["momentum"], "nonfinite": "reject_micro", "bad": (0, 2)}),
    "outliers": (F32, {"optimizer": OPTIMIZERS["sgd"], "outlier_skip": {"factor": 3, "warmup_steps": 1}, "far_out": (2,)}),
}
COUNTS = (8, 8, 5, 8)  # of the windows' micro-batches: one is short


@pytest.fixture(scope="module")
def node():
    with Daemon(conf={"limits.jobs": 100, "limits.jobs_per_user": 100}) as d:
        d.allow.append(r" (MicroRejected|MicroVoid|StepSkipped|LossScale) ")
        yield d


def micro_batch(tensors, window, g, bad, far_out):
    """Its weight and gradients, whoever gets it."""
    weight = float(np.random.default_rng((5, window, g)).uniform(0.5, 9))
    grads = gradients(1000 * window + g, [t for t in tensors if len(t) < 4])
    if g == 3 and window in bad:
        grads[tensors[0][0]].flat[7] = np.nan
    if window in far_out:
        grads = {n: 50 * x for n, x in grads.items()}
    if g == 2:
        del grads[tensors[-1][0] if len(tensors[-1]) < 4 else tensors[0][0]]  # it did not touch this one
    return weight, grads


def train(daemon, tensors, spec, ranks, micro_size):
    """All numbers that leave the daemon, window by window."""
    spec = dict(spec)
    bad, far_out = spec.pop("bad", ()), spec.pop("far_out", ())
    params = {t[0]: draw((9, i), t[1]).astype(np.float32) for i, t in enumerate(tensors) if len(t) < 4}
    seen = []
    with Team(daemon, job(ranks, micro_size, **spec), tensors, params, inline=range(0, ranks, 3)) as team:
        for window, count in enumerate(COUNTS):
            dealt = [[micro_batch(tensors, window, g, bad, far_out) for g in range(r, count, ranks)] for r in range(ranks)]
            r = team.window(dealt).result
            team.spec["loss_scale"] = r.next_loss_scale
            seen.append({"outcome": r.outcome, "skip_reason": r.skip_reason, "grad_norm": r.grad_norm.hex(), "weight": r.total_weight,
                         "divisor": r.divisor, "loss": r.mean_loss, "count": r.micro_count, "lr": r.lr, "scale": r.next_loss_scale,
                         "digest": r.params_digest, "params": {n: p.tobytes() for n, p in team.params().items()}})
    return seen


@pytest.mark.parametrize("name", SPECS)
def test_any_deal_has_the_same_bits(node, name):
    tensors, spec = SPECS[name]
    first = train(node, tensors, spec, *DEALS[0])
    for deal in DEALS[1:]:
        for window, (want, got) in enumerate(zip(first, train(node, tensors, spec, *deal))):
            wrong = [k for k in want if want[k] != got[k]]
            assert not wrong, f"window {window}, {deal[0]} ranks of {deal[1]}: {wrong} are not those of one rank of 8"
    outcomes = [w["outcome"] for w in first]
    assert len({w["digest"] for w in first}) == len(first) - outcomes.count(2), "the digest follows the parameters"
    assert outcomes.count(2) == (len(spec.get("bad", ())) if spec.get("nonfinite") != "reject_micro" else 0) + len(spec.get("far_out", ()))


def test_another_order_has_other_bits(node):
    """The promise is about dealing by turns: were it true of any deal, the test above would show nothing."""
    tensors, spec = SPECS["sgd"]
    seen = []
    for shift in (0, 1):
        with Team(node, job(2, 4, **spec), tensors) as team:
            batch = [[micro_batch(tensors, 0, g, (), ()) for g in range(r, 8, 2)] for r in range(2)]
            team.window(batch if not shift else batch[::-1])
            seen.append(b"".join(p.tobytes() for p in team.params().values()))
    assert seen[0] != seen[1]
