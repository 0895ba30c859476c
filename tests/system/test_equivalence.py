# SPDX-License-Identifier: Apache-2.0
"""A job equals one process with the big batch.

The reference is float64 numpy (reference.py). A reduced gradient may differ by 4 eps32 sum|c g| / divisor per element; it is
looked at with optimizer CLIENT, where the daemon hands it out. Parameters may differ by what that bound becomes in the
optimizer's formula, plus the roundings of the formula itself (running error analysis). The same inputs give the same
bits: on repetition, in any order of arrival, over messages or shared memory, on every kernel path, with 1 or 2 threads.
"""
import concurrent.futures
import math
import pathlib
import re

import numpy as np
import pytest

from batches import ADAM, CLIENT, OPTIMIZERS, TENSORS, check_reduced, expect, gradients, job, micros
from harness import Daemon, GaccError, from_bf16, to_bf16
from reference import Num, Optimizer, Reduced
from training import Team, draw

MANY = {"limits.jobs": 64, "limits.jobs_per_user": 64}


@pytest.fixture(scope="module")
def node():
    with Daemon(conf=MANY, allow=["UnusedRules"]) as d:
        yield d


def check_steps(team, spec, windows, dtype="f32", used=0.0):
    """Trains through windows of micro-batches and compares the parameters after each."""
    optimizer = Optimizer(spec, team.values())
    for window in windows:
        lr = optimizer.lr()
        result = team.window(window).result
        want = Reduced(spec, team.sent, team.shapes)
        optimizer.step(want.grads, dtype if spec.get("master") == "none" else "f32")
        got = team.values()
        used = max([used] + [p.stored_as(dtype).check(got[n], n) for n, p in optimizer.params.items()])
        want.norm.check(result.grad_norm, "grad_norm")
        assert result.lr == pytest.approx(lr, rel=1e-14)
        assert result.applied_step == optimizer.applied
    return optimizer, used


# ---- the reduced gradient ----


@pytest.mark.parametrize("grad_of", ["mean", "sum"])
@pytest.mark.parametrize("reduction", ["weighted_mean", "mean", "sum", "fixed_divisor"])
def test_reductions(node, reduction, grad_of):
    """Full windows, unequal counts of the ranks, and a rank that has nothing; weights other than 1."""
    spec = job(optimizer=CLIENT, reduction=reduction, grad_of=grad_of,
               **({"fixed_divisor": 7.3} if reduction == "fixed_divisor" else {}))
    with Team(node, spec, TENSORS) as team:
        used = 0
        for window, counts in enumerate([(4, 4, 4), (4, 1, 3), (2, 0, 4), (1, 0, 0)]):
            step = team.window(micros(window, counts))
            used = max(used, check_reduced(team, step, spec))
            assert step.result.window == window and step.result.applied_step == window + 1
        assert used > 0.05, "a bound that nothing comes near would not tell a wrong sum"


def test_weights_of_1_are_no_exception(node):
    spec = job(optimizer=CLIENT)
    with Team(node, spec, TENSORS) as team:
        for window in range(2):
            check_reduced(team, team.window(micros(window, (4, 4, 4), weighted=False)), spec)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_many_micro_batches(node, dtype):
    spec = job(2, 64, optimizer=CLIENT, accumulate_dtype=dtype)
    with Team(node, spec, TENSORS) as team:
        check_reduced(team, team.window(micros(0, (64, 63))), spec)


def big_batch(params, x, y):
    """Gradient of the mean squared error of tanh(x w + b) v over all samples, in f64."""
    h = np.tanh(x @ params["w"].T + params["b"])
    error = 2 * (h @ params["v"] - y) / len(x)
    back = np.outer(error, params["v"]) * (1 - h * h)
    return {"w": back.T @ x, "b": back.sum(0), "v": h.T @ error}


@pytest.mark.parametrize("ranks,micro_size", [(1, 8), (2, 4), (4, 2)])
def test_a_model_against_its_big_batch(node, ranks, micro_size):
    """A perceptron: uneven micro-batches of the ranks against one batch of all their samples, three steps of SGD with learning
    rate 1, whose step is the reduced gradient. The gradients' own rounding to f32 is inside the bound."""
    tensors = [("w", [6, 5]), ("b", [6]), ("v", [6])]
    spec = job(ranks, micro_size, optimizer={"type": "sgd", "lr": 1})
    initial = {n: (draw(i, s) / 4).astype(np.float32) for i, (n, s) in enumerate(tensors)}
    rng = np.random.default_rng(4)
    with Team(node, spec, tensors, initial) as team:
        for window in range(3):
            params = {n: p.astype(np.float64) for n, p in team.params().items()}
            sizes = rng.integers(1, 12, (ranks, micro_size))
            x, y = rng.normal(size=(sizes.sum(), 5)), rng.normal(size=sizes.sum())
            at = iter(np.split(np.arange(len(x)), np.cumsum(sizes.ravel())))
            pieces = [[next(at) for _ in range(micro_size)] for _ in range(ranks)]
            team.window([[(float(len(i)), big_batch(params, x[i], y[i])) for i in of_rank] for of_rank in pieces])
            big, bounds = big_batch(params, x, y), Reduced(spec, team.sent, team.shapes).grads
            for name, p in team.params().items():
                want = Num(params[name]) - Num(big[name], bounds[name].error)
                want.check(p, name)


@pytest.mark.parametrize("parameter", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("gradient", ["bf16", "f16"])
def test_16_bit_gradients(node, gradient, parameter):
    """Sums of 16-bit gradients are f32 sums: the bound is the same."""
    tensors = [(n, s, parameter) for n, s in TENSORS]
    spec = job(optimizer=CLIENT, gradient_dtype=gradient)
    with Team(node, spec, tensors) as team:
        for window, counts in enumerate([(4, 4, 4), (3, 0, 4)]):
            check_reduced(team, team.window(micros(window, counts)), spec)


@pytest.mark.parametrize("gradient", ["f32", "bf16"])
def test_what_a_slot_holds_between_its_tensors(node, gradient):
    """Parameters of 4 bytes that came through a slot of 2-byte gradients, or anything else: it is in no tensor and counts for
    nothing, in sum, norm and non-finite values."""
    spec = job(optimizer=CLIENT, gradient_dtype=gradient, nonfinite="reject_micro")
    with Team(node, spec, TENSORS, params=gradients(1)) as team:
        for window in range(2):
            check_reduced(team, team.window(micros(window, (4, 3, 4))), spec)
            for rank in team.ranks:
                for slot in range(rank.registered.slots):
                    rank.memory[1, slot][:rank.registered.slot_bytes] = b"\xff" * rank.registered.slot_bytes


def test_f64_accumulators(node):
    """Exact to f64: bound 4 eps64. In f32 the same numbers would be lost."""
    spec = job(2, 8, optimizer=CLIENT, accumulate_dtype="f64")
    with Team(node, spec, TENSORS) as team:
        window = micros(0, (8, 8))
        window[0][0][1]["scale"], window[1][7][1]["scale"] = np.array(1e12), np.array(-1e12)
        window[0][0] = (window[1][7][0], window[0][0][1])
        check_reduced(team, team.window(window), spec)
        check_reduced(team, team.window(micros(1, (8, 3))), spec)


def test_absent_tensors(node):
    """A tensor that a micro-batch did not touch counts as zero, whatever lies in the slot."""
    spec = job(2, 4, optimizer=CLIENT)
    with Team(node, spec, TENSORS) as team:
        for window in range(2):
            batch = micros(window, (4, 4))
            for r, m, name in [(0, 0, "layer.weight"), (0, 1, "scale"), (1, 0, "layer.weight"), (1, 2, "layer.bias"),
                               (1, 3, "head.weight")]:
                batch[r][m][1][name] = None
            for r in range(2):
                for m in range(4):
                    if window == 1:
                        batch[r][m][1]["head.weight"] = None  # nobody touched it
            team[0].slot()["layer.weight"][:] = np.nan  # what is not present is not looked at
            check_reduced(team, team.window(batch), spec)


def test_a_framework_that_adds_into_its_slot(node):
    """zero_after: the slot is zero when the push returns, so a backward that adds into .grad needs no zeroing of its own."""
    spec = job(1, 4, optimizer=CLIENT, slots_per_rank=1)
    with Team(node, spec, TENSORS) as team:
        for window in range(2):
            sent = []
            for weight, grads in micros(window, (4,))[0]:
                for name, view in team[0].slot().items():
                    assert not view.any()
                    view += grads[name].astype(np.float32).ravel()
                sent.append((weight, {n: g.astype(np.float32).astype(np.float64) for n, g in grads.items()}))
                team[0].push(weight=weight, zero_after=True)
            team.sent = sent
            check_reduced(team, team[0].wait_step(), spec)


@pytest.mark.parametrize("inline", [(), (0, 1, 2), (1,)])
def test_gradients_that_come_inline(node, inline):
    spec = job(optimizer=CLIENT)
    with Team(node, spec, TENSORS, inline=inline) as team:
        for window, counts in enumerate([(4, 4, 4), (1, 4, 0)]):
            check_reduced(team, team.window(micros(window, counts)), spec)


def test_tied_parameters(node):
    """An alias is another name for the same storage: one gradient, counted once, in the sum, the norm and the step."""
    tensors = [("embedding", [8, 4]), ("head", [8, 4], "f32", "embedding"), ("bias", [8])]
    spec = job(2, 2, optimizer={"type": "sgd", "lr": 0.5, "momentum": 0.9})
    params = {"embedding": draw(1, [8, 4]).astype(np.float32), "bias": draw(2, [8]).astype(np.float32)}
    with Team(node, spec, tensors, params) as team:
        layout = team[0].layout
        assert layout["head"].slot_offset == layout["embedding"].slot_offset
        assert layout["head"].param_offset == layout["embedding"].param_offset

        def windows():
            for window in range(2):
                yield [[(w, {**{n: g for n, g in grads.items() if n == "bias"}, name: grads["embedding"]})
                        for (w, grads), name in zip(of_rank, ("embedding", "head"))]  # under either name
                       for of_rank in micros(window, (2, 2), tensors=tensors)]

        optimizer = Optimizer(spec, team.values())
        for window in windows():
            step = team.window(window)
            merged = [(w, {"embedding" if n == "head" else n: g for n, g in grads.items()}) for w, grads in team.sent]
            want = Reduced(spec, merged, team.shapes)
            want.norm.check(step.result.grad_norm, "grad_norm")
            optimizer.step(want.grads)
            seen = team.params()
            assert seen["head"].tobytes() == seen["embedding"].tobytes()
            for name, p in optimizer.params.items():
                p.check(seen[name], name)


@pytest.mark.parametrize("clip", [{"clip_norm": 0.5}, {"clip_norm": 1e3}, {"clip_value": 0.1},
                                  {"clip_norm": 3.0, "clip_value": 0.2}], ids=str)
def test_clipping(node, clip):
    spec = job(optimizer=CLIENT, **clip)
    with Team(node, spec, TENSORS) as team:
        for window, counts in enumerate([(4, 4, 4), (1, 3, 4)]):
            step = team.window(micros(window, counts))
            unclipped = Reduced({**spec, "clip_norm": 0, "clip_value": 0}, team.sent, team.shapes)
            assert (unclipped.norm.value > clip.get("clip_norm", 0)) == (clip.get("clip_norm") != 1e3)
            check_reduced(team, step, spec)


def test_clipping_of_a_tiny_gradient(node):
    """torch divides by norm + 1e-6: with a norm of that order, it shows."""
    spec = job(optimizer=CLIENT, clip_norm=1e-6)
    with Team(node, spec, TENSORS) as team:
        step = team.window([[(w, {n: 1e-6 * g for n, g in grads.items()}) for w, grads in of_rank]
                            for of_rank in micros(0, (4, 4, 4))])
        assert 2e-6 < step.result.grad_norm < 2e-5
        check_reduced(team, step, spec)


def test_loss_scale(node):
    """f16 gradients carry the scale; norm, clipping and result are without it. Another scale is refused."""
    spec = job(optimizer=CLIENT, gradient_dtype="f16", loss_scale=1024.0, clip_norm=0.5)
    with Team(node, spec, TENSORS) as team:
        assert team[0].resumed.loss_scale == 1024
        with pytest.raises(GaccError) as e:
            team[0].push(gradients(1), loss_scale=1)
        assert e.value.reason == "LOSS_SCALE_MISMATCH"
        for window in range(2):
            batch = micros(window, (4, 2, 3))
            small = [[(w, {n: g * 1e-5 for n, g in grads.items()}) for w, grads in of_rank] for of_rank in batch]
            step = team.window(small if window else batch)  # 1e-5 would be subnormal in f16
            assert step.result.next_loss_scale == 1024
            check_reduced(team, step, spec)


def test_the_reduced_gradient_stays_until_all_have_read_it(node):
    """Optimizer CLIENT: a rank that has not acknowledged holds back the next window's sum after its first pass."""
    spec = job(2, 2, optimizer=CLIENT)
    with Team(node, spec, TENSORS) as team:
        step = team.window(micros(0, (2, 2)))
        before = {n: g.tobytes() for n, g in team[1].reduced().items()}
        assert {n: g.tobytes() for n, g in team[1].reduced(1 - step.accum_half).items()} != before
        assert not team[0].resumed.pending_apply and team[0].ready().pending_apply
        team[0].ack_step()
        batch = micros(1, (2, 2))
        (w, grads), *_ = batch[0]
        team[0].push(team.as_sent(grads)[0], weight=w)  # there is room for one pass
        pushes = [team[r].push_async(team.as_sent(grads)[0], slot=m, weight=w)
                  for r, m in ((1, 0), (0, 1), (1, 1)) for w, grads in [batch[r][m]]]
        counted, _ = concurrent.futures.wait(pushes, 0.1)
        assert not counted
        assert {n: g.tobytes() for n, g in team[1].reduced().items()} == before
        team[1].ack_step()
        for push in pushes:
            push.result()
        team.sent = [(w, team.as_sent(grads)[1]) for of_rank in batch for w, grads in of_rank]
        check_reduced(team, [r.wait_step() for r in team.ranks][0], spec)


# ---- the same bits ----

BIG = [("layer.weight", [300, 301]), ("layer.bias", [301]), ("half", [257, 129], "bf16"), ("head", [10, 301], "f16")]


def bits(daemon, inline=(), shuffle=None, ordering="canonical", optimizer="adamw", **more):
    """Three windows, one of them short, with a norm that clips: every number that leaves the daemon."""
    spec = job(3, 4, clip_norm=0.01, ordering=ordering, nonfinite="reject_micro",
               optimizer={"type": "adamw", "lr": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
               if optimizer == "adamw" else {"type": "sgd", "lr": 0.1, "momentum": 0.9}, **more)
    params = {t[0]: draw(i, t[1]).astype(np.float32) for i, t in enumerate(BIG)}
    out = []
    with Team(daemon, spec, BIG, params, inline) as team:
        for window, counts in enumerate([(4, 4, 4), (2, 4, 3), (4, 4, 4)]):
            result = team.window(micros(window, counts, tensors=BIG), None if shuffle is None else (shuffle, window)).result
            out.append((result.grad_norm, result.total_weight, result.mean_loss, result.params_digest,
                        {n: p.tobytes() for n, p in team.params().items()}))
    return out


@pytest.fixture(scope="module")
def expected_bits(node):
    return bits(node)


def test_the_same_bits_again(node, expected_bits):
    assert bits(node) == expected_bits
    assert len({step[3] for step in expected_bits}) == 3, "the digest follows the parameters"


@pytest.mark.parametrize("seed", range(3))
def test_the_same_bits_in_any_order_of_arrival(node, expected_bits, seed):
    assert bits(node, shuffle=seed) == expected_bits


@pytest.mark.parametrize("inline", [(0, 1, 2), (1,)])
def test_the_same_bits_inline(node, expected_bits, inline):
    assert bits(node, inline=inline) == expected_bits


def test_the_bound_holds_in_order_of_arrival(node):
    spec = job(optimizer=CLIENT, ordering="arrival")
    with Team(node, spec, TENSORS) as team:
        for window, counts in enumerate([(4, 4, 4), (4, 1, 3)]):
            check_reduced(team, team.window(micros(window, counts), shuffle=window), spec)


def kernel_paths():
    """Names of the kernels that this CPU can run."""
    flags = set(re.search(r"^flags\s*:(.*)", pathlib.Path("/proc/cpuinfo").read_text(), re.M)[1].split())
    avx2 = {"avx2", "fma", "bmi1", "bmi2", "f16c"} <= flags
    avx512 = avx2 and {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"} <= flags
    return ["reference", "sse2"] + ["avx2"] * avx2 + ["avx512"] * avx512


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kernels", ["reference", "sse2", "avx2", "avx512"])
def test_the_same_bits_on_every_kernel_path(expected_bits, kernels, threads):
    if kernels not in kernel_paths():
        pytest.skip(f"this CPU has no {kernels}")
    with Daemon(conf={**MANY, "engine.kernels": kernels, "engine.threads": threads}) as d:
        assert d.client.node.GetNode().kernels == kernels
        assert bits(d, device="host") == expected_bits
        assert f"{kernels} kernels, {threads} threads" in d.events("EngineStarted")[0]


# ---- optimizers ----


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.replace(" ", "-"))
def test_optimizers(node, optimizer):
    """Five steps against torch's formulas in f64. The bound is tight enough to tell a wrong formula: it stays under
    1e-4 of the way that the parameters have gone."""
    spec = job(2, 2, optimizer=OPTIMIZERS[optimizer])
    params = {n: draw(i, s).astype(np.float32) for i, (n, s) in enumerate(TENSORS)}
    with Team(node, spec, TENSORS, params) as team:
        counts = [(2, 2), (2, 1), (2, 2), (0, 2), (2, 2)]
        reference, _ = check_steps(team, spec, [micros(w, c, low=0.5) for w, c in enumerate(counts)])
        for name, p in reference.params.items():
            way = np.abs(p.value - params[name])
            assert np.median(p.error) < 1e-4 * np.median(way)


@pytest.mark.parametrize("master", ["f32", "none"])
@pytest.mark.parametrize("parameter,gradient", [("bf16", "bf16"), ("f16", "f16"), ("bf16", "f32"), ("f16", "bf16")])
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_16_bit_parameters(node, optimizer, parameter, gradient, master):
    """With a master, 16-bit parameters are roundings of what f32 ones would be; without, they are rounded at each step."""
    tensors = [(n, s, parameter) for n, s in TENSORS]
    spec = job(2, 2, optimizer=OPTIMIZERS[optimizer], gradient_dtype=gradient, master=master)
    params = {n: draw(i, s).astype(np.float32) for i, (n, s, _) in enumerate(tensors)}
    with Team(node, spec, tensors, params) as team:
        check_steps(team, spec, [micros(w, (2, 2), low=0.5) for w in range(3)], dtype=parameter)


def test_a_master_keeps_what_16_bits_lose(node):
    """100 steps of 2^-10 from 1.0: with a master bf16 sees them all, without it none."""
    for master, want in (("f32", 1 + 100 * 2.0 ** -10), ("none", 1.0)):
        spec = job(1, 1, optimizer={"type": "sgd", "lr": 1}, master=master)
        with Team(node, spec, [("w", [2], "bf16")], {"w": np.ones(2, np.float32)}) as team:
            for _ in range(100):
                team.window([[(1.0, {"w": np.full(2, -2.0 ** -10)})]])
            assert team.params()["w"].tolist() == to_bf16(np.full(2, want, np.float32)).tolist()


def test_the_bits_of_sgd_are_those_of_its_definition(node):
    """f32 operations in canonical order, each rounded once: sum += w * g; p -= lr * (scale * sum)."""
    tensors = [("a", [31, 7]), ("b", [57], "bf16")]
    spec = job(3, 3, optimizer={"type": "sgd", "lr": 0.3}, master="none")
    f = np.float32
    want = {n: draw(i, s).astype(f) for i, (n, s, *_) in enumerate(tensors)}
    want["b"] = from_bf16(to_bf16(want["b"]))
    with Team(node, spec, tensors, want) as team:
        for window in range(3):
            batch = micros(window, (3, 3, 3), tensors=tensors)
            team.window(batch)
            scale = f(1 / math.fsum([batch[r][m][0] for m in range(3) for r in range(3)]))
            for name, *_ in tensors:
                total = np.zeros_like(want[name])
                for m in range(3):
                    for r in range(3):
                        g = team.sent[3 * r + m][1][name].astype(f)
                        total = total + f(batch[r][m][0]) * g
                want[name] = want[name] - f(0.3) * (scale * total)
            want["b"] = from_bf16(to_bf16(want["b"]))
            seen = team.params()
            assert seen["a"].tobytes() == want["a"].tobytes()
            assert seen["b"].tobytes() == to_bf16(want["b"]).tobytes()


def test_param_groups(node):
    """The first group whose pattern matches gives learning rate and weight decay; frozen tensors stay, and count as zero in
    the norm."""
    spec = job(2, 2, optimizer={"type": "adamw", **ADAM, "weight_decay": 0.1}, clip_norm=1.0, param_groups=[
        {"pattern": "*.bias", "lr_scale": 2.0, "weight_decay": 0.0, "override_weight_decay": True},
        {"pattern": "head.*", "frozen": True},
        {"pattern": "h*", "lr_scale": 50.0},
        {"pattern": "scale", "lr_scale": 0.25}])
    params = {n: draw(i, s).astype(np.float32) for i, (n, s) in enumerate(TENSORS)}
    with Team(node, spec, TENSORS, params) as team:
        batches = [micros(w, (2, 2), low=0.5) for w in range(3)]
        for window in (1, 2):  # frozen: not even looked at, also beside a tensor that was not touched
            batches[window][0][1][1]["head.weight"] = np.full((3, 17), np.nan)
        batches[2][0][1][1]["scale"] = None
        check_steps(team, spec, batches)
        assert team.params()["head.weight"].tobytes() == params["head.weight"].tobytes()


def test_clipping_with_an_optimizer(node):
    """Clip by the norm of the mean gradient, after the reduction and before momentum."""
    spec = job(2, 3, optimizer=OPTIMIZERS["momentum"], clip_norm=0.7, loss_scale=256.0)
    params = {n: draw(i, s).astype(np.float32) for i, (n, s) in enumerate(TENSORS)}
    with Team(node, spec, TENSORS, params) as team:
        check_steps(team, spec, [micros(w, c) for w, c in enumerate([(3, 3), (1, 3), (3, 3)])])


def test_f64_accumulators_with_an_optimizer(node):
    spec = job(2, 3, optimizer=OPTIMIZERS["adamw"], accumulate_dtype="f64")
    params = {n: draw(i, s).astype(np.float32) for i, (n, s) in enumerate(TENSORS)}
    with Team(node, spec, TENSORS, params) as team:
        check_steps(team, spec, [micros(w, c, low=0.5) for w, c in enumerate([(3, 3), (1, 3), (3, 3)])])
