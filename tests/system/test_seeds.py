# SPDX-License-Identifier: Apache-2.0
"""What the projects that gacc learns from show or promise about accumulation, shown with gacc.

Accelerate's self-contained example, Colossal-AI's "parameters change at the boundary only", MindSpore's Accumulator (with a
clip_norm that works), GradAccumulation(micro_size) and no_init_parameters; and the complaints that all of them got about the
last, short window, uneven tokens and skipped steps.
"""
import math

import numpy as np
import pytest

from harness import Daemon, GaccError, Rank, to_bf16
from reference import Num, Optimizer, Reduced
from training import Team, draw

SGD = {"type": "sgd", "lr": 0.02}
_names = iter(range(10 ** 6))


@pytest.fixture(scope="module")
def node():
    with Daemon(conf={"limits.jobs": 64, "limits.jobs_per_user": 64}, allow=["UnusedRules"]) as d:
        yield d


def job(ranks=1, micro_size=1, **spec):
    return {"name": f"seed-{next(_names)}", "ranks": ranks, "micro_size": micro_size, "optimizer": SGD, **spec}


# ---- Accelerate: usage_guides/gradient_accumulation, "Self-contained example" ----

X, Y = np.arange(1.0, 9), 2 * np.arange(1.0, 9)


def mse_gradient(w, x, y):
    """Of torch.nn.MSELoss of x @ w against y."""
    return np.array([[np.mean(2 * x * (x * w[0, 0] - y))]])


@pytest.mark.parametrize("reduction", ["weighted_mean", "mean"])
@pytest.mark.parametrize("ranks,micro_size", [(1, 4), (2, 2), (4, 1), (1, 1), (1, 8), (2, 4)])
def test_accelerates_example(node, ranks, micro_size, reduction):
    """x = 1..8, y = 2x, a weight of 0, one SGD step of 0.02: "the final model weight is 2.04000", with accumulation
    (4 batches of 2) and without (1 of 8)."""
    with Team(node, job(ranks, micro_size, reduction=reduction), [("weight", [1, 1])]) as team:
        w = team.values()["weight"]
        assert f"{w.item():.5f}" == "0.00000"
        pieces = np.split(np.arange(8), ranks * micro_size)
        batches = [[pieces[m * ranks + r] for m in range(micro_size)] for r in range(ranks)]
        team.window([[(float(len(i)), {"weight": mse_gradient(w, X[i], Y[i])}) for i in of_rank] for of_rank in batches])
        assert f"{team.values()['weight'].item():.5f}" == "2.04000"


def test_a_loop_that_divides_its_loss_itself(node):
    """`loss = loss / gradient_accumulation_steps` stays as it is with reduction: sum, grad_of: sum."""
    with Team(node, job(1, 4, reduction="sum", grad_of="sum"), [("weight", [1, 1])]) as team:
        w = team.values()["weight"]
        team.window([[(1.0, {"weight": mse_gradient(w, X[i:i + 2], Y[i:i + 2]) / 4}) for i in range(0, 8, 2)]])
        assert f"{team.values()['weight'].item():.5f}" == "2.04000"


def test_samples_of_variable_size(node):
    """The mean is over all tokens of the step, not over the means of its micro-batches (transformers#34242)."""
    tokens = [3, 11, 1, 6]
    x = draw(1, [sum(tokens)])
    y = draw(2, [sum(tokens)])
    pieces = np.split(np.arange(sum(tokens)), np.cumsum(tokens)[:-1])
    ends = {}
    for reduction in ("weighted_mean", "mean"):
        with Team(node, job(2, 2, reduction=reduction, optimizer={"type": "sgd", "lr": 1}), [("weight", [1, 1])]) as team:
            work = [(float(len(i)), {"weight": mse_gradient(np.zeros((1, 1)), x[i], y[i])}) for i in pieces]
            team.window([work[:2], work[2:]])
            ends[reduction] = team.values()["weight"].item()
    right = -mse_gradient(np.zeros((1, 1)), x, y).item()
    assert ends["weighted_mean"] == pytest.approx(right, rel=1e-6)
    assert abs(ends["mean"] - right) > 0.01 * abs(right)


# ---- Colossal-AI: the guide prints parameters after each iteration ----


@pytest.mark.parametrize("inline", [(), (0, 1)], ids=["mapped", "inline"])
def test_parameters_change_at_the_boundary_only(node, inline):
    """Bytes of all parameters after every push: the same until the last push of the last rank."""
    tensors = [("conv", [10, 3, 3, 3]), ("fc", [10])]
    initial = {n: draw(i, s).astype(np.float32) for i, (n, s) in enumerate(tensors)}
    with Team(node, job(2, 4), tensors, initial, inline) as team:
        changes = []
        before = {n: p.tobytes() for n, p in team.params().items()}
        for window in range(3):
            for micro in range(4):
                for r in team.ranks:
                    r.push({n: draw((window, micro, r.rank, i), s) for i, (n, s) in enumerate(tensors)}, weight=5.0)
                    if r.rank == 0 or micro < 3:
                        seen = {n: p.tobytes() for n, p in r.params().items()}
                        assert seen == before, f"window {window}, micro-batch {micro}, rank {r.rank}"
            for r in team.ranks:
                assert r.wait_step().result.applied_step == window + 1
            after = {n: p.tobytes() for n, p in team.params().items()}
            changes.append(all(after[n] != before[n] for n in before))
            before = after
        assert changes == [True] * 3


# ---- MindSpore: Accumulator(optimizer, accumulate_step, clip_norm), GradAccumulation(network, micro_size) ----

CLASSES, FEATURES = 10, 24


def softmax_gradient(w, x, labels):
    """Of the mean cross-entropy of x @ w.T."""
    z = x @ w.T
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(x)), labels] -= 1
    return p.T @ x / len(x)


def samples(step, n):
    rng = np.random.default_rng(step)
    labels = rng.integers(0, CLASSES, n)
    return rng.normal(size=(n, FEATURES)) + 4 * np.eye(CLASSES, FEATURES)[labels], labels


def train(node, micro_size, batch, steps, **spec):
    """Batches of `batch` samples in micro_size parts; the weights and norms of every step."""
    out = []
    spec = job(1, micro_size, **{"optimizer": {"type": "sgd", "lr": 0.5, "momentum": 0.9}, **spec})
    with Team(node, spec, [("w", [CLASSES, FEATURES])]) as team:
        reference = Optimizer(spec, team.values())
        for step in range(steps):
            w = team.values()["w"]
            x, labels = samples(step, batch)
            result = team.window([[(float(len(i)), {"w": softmax_gradient(w, x[i], labels[i])})
                                   for i in np.array_split(np.arange(batch), micro_size)]]).result
            # the big batch at the daemon's own weights, so that the bound is that of one step
            big = Reduced(spec, [(1.0, {"w": softmax_gradient(w, x, labels)})], team.shapes).grads["w"]
            error = Reduced(spec, team.sent, team.shapes).grads["w"].error
            reference.step({"w": Num(big.value, error + 1e-12)})
            got = team.values()["w"]
            reference.params["w"].check(got, f"step {step}")
            out.append((got, result.grad_norm))
    return out


@pytest.mark.parametrize("clip_norm", [0, 1.0])
def test_an_accumulator_of_2_times_32_is_a_batch_of_64(node, clip_norm):
    """MindSpore's tutorial: accumulate_step 2. Its clip_norm is stored and never read; here it is applied to the averaged
    gradient, and the step is that of the one big batch that was clipped."""
    twice, once = (train(node, k, 64, 6, clip_norm=clip_norm) for k in (2, 1))
    for (a, norm_a), (b, norm_b) in zip(twice, once):
        assert np.abs(a - b).max() < 1e-6 * np.abs(b).max()
        assert norm_a == pytest.approx(norm_b, rel=1e-6)
    if clip_norm:
        plain = train(node, 2, 64, 6)
        assert plain[0][1] > clip_norm, "the gradient is long enough to be clipped"
        shortened = plain[0][0] / plain[0][1]  # the first step, if its gradient is cut to a norm of 1
        assert np.abs(twice[0][0] - shortened).max() < 1e-6
        assert np.abs(twice[-1][0] - plain[-1][0]).max() > 0.1


def test_grad_accumulation_of_micro_size(node):
    """GradAccumulation(network, micro_size): a batch in micro_size parts gives the step of the batch; micro_size is the job's
    micro_size, also where it does not divide the batch."""
    ends = [train(node, micro_size, 24, 3)[-1][0] for micro_size in (1, 2, 3, 5, 24)]
    for other in ends[1:]:
        assert np.abs(other - ends[0]).max() < 1e-6 * np.abs(ends[0]).max()


# ---- MindSpore: no_init_parameters. No rank ever holds the initial values ----

RULES = [{"pattern": "zero", "type": "zeros"}, {"pattern": "one", "type": "ones"},
         {"pattern": "normal", "type": "normal", "a": 0.5, "b": 0.02}, {"pattern": "uniform", "type": "uniform", "a": -1, "b": 3},
         {"pattern": "ku*", "type": "kaiming_uniform"}, {"pattern": "kn*", "type": "kaiming_normal", "a": 1.0},
         {"pattern": "xu*", "type": "xavier_uniform"}, {"pattern": "xn*", "type": "xavier_normal", "a": 2.0}]
DRAWN = [("zero", [7]), ("one", []), ("normal", [300, 200]), ("uniform", [300, 200]), ("ku.weight", [200, 300]),
         ("kn.conv", [64, 32, 5, 5]), ("xu.weight", [200, 300]), ("xn.weight", [400, 100])]


def drawn(node, ranks=1, seed=1, tensors=DRAWN, inline=(), rules=RULES):
    with Team(node, job(ranks, 1, init=rules, seed=seed), tensors, inline=inline) as team:
        assert not any(r.registered.params_needed for r in team.ranks)
        return team.params()


def check_normal(a, mean, std):
    """Moments and the shares within 1 and 2 standard deviations, each within 5 of its own."""
    z, n = (a.ravel().astype(np.float64) - mean) / std, a.size
    assert abs(z.mean()) < 5 / math.sqrt(n)
    assert abs(z.var() - 1) < 5 * math.sqrt(2 / n)
    for k, share in ((1, 0.682689), (2, 0.954500)):
        assert abs(np.mean(np.abs(z) < k) - share) < 5 * math.sqrt(share * (1 - share) / n)
    assert 3.5 < np.abs(z).max() < 7
    check_independent(z)


def check_uniform(a, low, high):
    u, n = (a.ravel().astype(np.float64) - low) / (high - low), a.size
    assert 0 <= u.min() < 1e-3 and 1 - 1e-3 < u.max() < 1 + 1e-6
    shares = np.histogram(u, 16, (0, 1))[0] / n
    assert np.abs(shares - 1 / 16).max() < 5 * math.sqrt(15 / 256 / n)
    check_independent(u - 0.5)


def check_independent(z):
    z = z - z.mean()
    for lag in (1, 2, 3, 4, 100):
        assert abs(np.mean(z[lag:] * z[:-lag]) / z.var()) < 5 / math.sqrt(z.size)


def test_values_that_the_daemon_draws(node):
    p = drawn(node)
    assert not p["zero"].any() and p["one"] == 1
    check_normal(p["normal"], 0.5, 0.02)
    check_uniform(p["uniform"], -1, 3)
    bound = math.sqrt(2) * math.sqrt(3 / 300)  # torch.nn.init: gain sqrt(2), fan_in
    check_uniform(p["ku.weight"], -bound, bound)
    check_normal(p["kn.conv"], 0, 1 / math.sqrt(32 * 25))
    bound = math.sqrt(6 / (200 + 300))
    check_uniform(p["xu.weight"], -bound, bound)
    check_normal(p["xn.weight"], 0, 2 * math.sqrt(2 / 500))


def test_drawn_values_depend_on_seed_and_name_alone(node):
    """The same for any number of ranks, any company of other tensors and any transport; others with another seed or name."""
    first = {n: p.tobytes() for n, p in drawn(node).items()}
    for ranks, inline in ((2, ()), (4, (1, 3))):
        assert {n: p.tobytes() for n, p in drawn(node, ranks, inline=inline).items()} == first
    other = drawn(node, tensors=[("ku.other", [200, 300])] + DRAWN[::-1][:4])
    for name in ("ku.weight", "kn.conv", "xu.weight", "xn.weight"):
        assert other[name].tobytes() == first[name]
    assert other["ku.other"].tobytes() != first["ku.weight"]
    again = drawn(node, seed=2)
    assert all(again[n].tobytes() != first[n] for n in first if n not in ("zero", "one"))


def test_drawn_16_bit_parameters_are_roundings(node):
    full = drawn(node, tensors=[("normal", [50, 40])])["normal"]
    half = drawn(node, tensors=[("normal", [50, 40], "f16")])["normal"]
    brain = drawn(node, tensors=[("normal", [50, 40], "bf16")])["normal"]
    assert half.tobytes() == full.astype(np.float16).tobytes()
    assert brain.tobytes() == to_bf16(full).tobytes()


def test_a_tensor_without_a_rule_is_refused(node):
    spec = job(1, 1, init=RULES[:2])
    node.allow.append(rf'{spec["name"]}|no init rule')
    number = node.submit(spec)
    with Rank(node, number, 0, [("zero", [2]), ("lonely", [3])], ranks=1) as r:
        with pytest.raises(GaccError) as e:
            r.register()
        assert e.value.reason == "INVALID_SPEC" and '"lonely"' in e.value.text
    node.cancel(number)


# ---- short windows, skipped steps ----


@pytest.mark.parametrize("reduction", ["weighted_mean", "mean"])
def test_the_last_short_window_has_its_true_divisor(node, reduction):
    """10 batches at micro_size 4 on one rank: windows of 4, 4 and 2. The gradient is 1 everywhere, so each step is 1, the
    last one not a half (transformers#38872), and the next epoch begins a window of its own (horovod#2466)."""
    with Team(node, job(1, 4, reduction=reduction, optimizer={"type": "sgd", "lr": 1}), [("w", [3])]) as team:
        for epoch in range(2):
            for count in (4, 4, 2):
                before = team.values()["w"]
                result = team.window([[(2.0, {"w": np.ones(3)})] * count]).result
                assert result.micro_count == count
                assert np.array_equal(team.values()["w"], before - 1)
        assert result.applied_step == 6


def test_a_rank_that_runs_out_of_data(node):
    """One rank has 3 batches, the other 1: the mean is over 4 (pytorch#44425)."""
    with Team(node, job(2, 3, optimizer={"type": "sgd", "lr": 1}), [("w", [1])]) as team:
        team.window([[(1.0, {"w": np.array([4.0])})] * 3, [(1.0, {"w": np.array([8.0])})]])
        assert team.values()["w"].item() == -5


def test_a_parameter_that_the_last_micro_batch_does_not_use(node):
    """Used in the first micro-batch, not in the last: reduced all the same (composer#9)."""
    with Team(node, job(1, 2, optimizer={"type": "sgd", "lr": 1}), [("used", [2]), ("early", [2])]) as team:
        team.window([[(1.0, {"used": np.ones(2), "early": np.full(2, 6.0)}), (1.0, {"used": np.ones(2)})]])
        assert team.values()["early"].tolist() == [-3, -3] and team.values()["used"].tolist() == [-1, -1]


def test_schedule_stands_still_on_skipped_steps(node):
    """Accelerate's scheduler steps only when the optimizer did; a skip is never silent (DeepSpeed#8415)."""
    spec = job(1, 2, optimizer={"type": "sgd", "lr": 1.0}, schedule={"type": "step", "step_size": 1, "gamma": 0.5})
    with Team(node, spec, [("w", [2])]) as team:
        node.allow.append(rf" StepSkipped job={team.job} ")
        good, bad = [[(1.0, {"w": np.ones(2)})] * 2], [[(1.0, {"w": np.ones(2)}), (1.0, {"w": np.array([1, np.nan])})]]
        lrs = [team.window(w).result.lr for w in (good, bad, bad, good, bad, good)]
        assert [lr for lr in lrs if lr] == [1.0, 0.5, 0.25]
        assert team.values()["w"].tolist() == [-1.75, -1.75]
        events = [e for e in node.get_job(team.job).events if e.reason == "StepSkipped"]
        assert [e.window for e in events] == [1, 2, 4] and all(e.warning and "not finite" in e.message for e in events)
        assert len(node.events("StepSkipped")) == 3
