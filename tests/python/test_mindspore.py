# SPDX-License-Identifier: Apache-2.0
"""gacc.mindspore beside the same loops in MindSpore alone, on its CPU build: optimizers, the names that its documentation has, several ranks, refusals.

The tolerance to MindSpore's own f32 optimizer on the mean gradient, after four steps that move parameters of size 1 by 0.03 to 3, is 2e-6.
"""
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")
import mindspore.experimental.optim as torchlike  # noqa: E402
from mindspore import nn, ops  # noqa: E402

from harness import next_line  # noqa: E402
from python_package import gacc  # noqa: E402

import gacc.mindspore  # noqa: E402, F811

LR, K, TOLERANCE = 0.1, 3, 2e-6
ROWS = (3, 7, 2, 8, 5, 4, 4, 6, 1, 3, 9)  # of eleven micro-batches: the last window is short


def network(seed=0):
    net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.LayerNorm((8,)), nn.Dense(8, 2))
    draw = np.random.default_rng(seed).normal
    for p in net.get_parameters():
        p.set_data(ms.Tensor(np.asarray(draw(size=p.shape), np.float32)))
    return net


def batches(rows=ROWS, seed=5):
    draw = np.random.default_rng(seed).normal
    return [tuple(ms.Tensor(np.asarray(draw(size=(n, width)), np.float32)) for width in (4, 2)) for n in rows]


def loss_of(net, x, y):
    return ops.mse_loss(net(x), y)


def grad_of(net, params=None, scale=1.0):
    def forward(x, y):  # MindSpore's compiler reads no lambdas here
        return loss_of(net, x, y) * scale
    return ms.value_and_grad(forward, None, params or net.trainable_params())


def windows(data, k=K):
    return [data[i:i + k] for i in range(0, len(data), k)]


def alone(net, optimizer, parts, clip=0.0):
    """Plain MindSpore: its optimizer with the mean over all rows of each window."""
    grad = grad_of(net, optimizer.parameters)
    for window in parts:
        rows, total = sum(len(x) for x, _ in window), None
        for x, y in window:
            g = [t * (len(x) / rows) for t in grad(x, y)[1]]
            total = g if total is None else [a + b for a, b in zip(total, g)]
        optimizer(tuple(ops.clip_by_global_norm(tuple(total), clip)) if clip else tuple(total))
    return net


def values(net):
    return {p.name: p.astype(ms.float32).asnumpy().copy() for p in net.get_parameters()}


def same(a, b, tolerance=TOLERANCE):
    a, b = (v if isinstance(v, dict) else values(v) for v in (a, b))
    assert list(a) == list(b)
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=0, atol=tolerance, err_msg=name)


def refused(reason, *texts):
    return pytest.raises(gacc.GaccError, match="^" + reason + ".*".join(["", *map(re.escape, texts)]))


BIASES = lambda ps: [p for p in ps if "bias" in p.name]  # noqa: E731
OTHERS = lambda ps: [p for p in ps if "bias" not in p.name]  # noqa: E731
OPTIMIZERS = {
    "sgd": lambda p: nn.SGD(p, LR),
    "sgd, momentum, decay": lambda p: nn.SGD(p, LR, momentum=0.9, dampening=0.3, weight_decay=0.1),
    "sgd, nesterov": lambda p: nn.SGD(p, 0.01, momentum=0.9, nesterov=True),
    "momentum, decay": lambda p: nn.Momentum(p, LR, 0.9, weight_decay=0.1),
    "adam": lambda p: nn.Adam(p, 0.01, weight_decay=0.1),
    "loss scale": lambda p: nn.SGD(p, LR, loss_scale=4.0),
    "list of rates": lambda p: nn.SGD(p, [0.0, 0.1, 0.05, 0.2]),
    "schedule": lambda p: nn.Momentum(p, nn.ExponentialDecayLR(0.1, 0.9, 4), 0.9),
    "groups": lambda p: nn.Momentum([{"params": BIASES(p), "lr": 0.05, "weight_decay": 0.0}, {"params": OTHERS(p)}, {"order_params": p}], LR, 0.9,
                                    weight_decay=0.1),
    "experimental sgd": lambda p: torchlike.SGD(p, LR, momentum=0.9, weight_decay=0.1),
    "experimental adam": lambda p: torchlike.Adam(p, 0.01, weight_decay=0.1),
    "experimental adamw, groups": lambda p: torchlike.AdamW([{"params": BIASES(p), "lr": 0.005, "weight_decay": 0.0}, {"params": OTHERS(p)}], 0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_mindspores_optimizers(endpoint, name):
    """Each with its settings, beside itself: random rows, a short last window."""
    make, data, net = OPTIMIZERS[name], batches(), network()
    with gacc.mindspore.Optimizer(net, make(net.trainable_params()), micro_size=K) as opt:
        grad = grad_of(net, opt.parameters)
        ended = []
        for x, y in data:
            loss, grads = grad(x, y)
            ended.append(opt(grads, weight=len(x), loss=loss))
        assert ended == [False, False, True] * 3 + [False, False] and opt.missing == [2]
        assert opt.flush() and not opt.flush() and opt.last.applied_step == 4 and opt.last.micro_count == 2
    plain = network()
    alone(plain, make(plain.trainable_params()), windows(data))
    same(net, plain)
    assert max(np.abs(v - values(network())[n]).max() for n, v in values(net).items()) > 0.02, "nothing was trained"


def test_a_name_clipping_and_a_compiled_function(endpoint):
    """What was compiled before a step has the parameters after it. One shape, so that nothing is compiled again."""
    data, net = batches([4] * 6), network()
    with gacc.mindspore.Optimizer(net, "adamw", lr=0.01, micro_size=K, clip_norm=0.5, weight_decay=0.1) as opt:
        grad, losses = grad_of(net, opt.parameters), []

        @ms.jit
        def compiled(x, y):
            return grad(x, y)
        for x, y in data:
            loss, grads = compiled(x, y)
            losses.append(float(loss.asnumpy()) * len(x))
            opt({p.name: g for p, g in zip(opt.parameters, grads)}, weight=len(x), loss=loss)
        assert opt.last.grad_norm > 0.5
        assert opt.last.mean_loss == pytest.approx(sum(losses[3:]) / 12, rel=1e-6)
    plain = network()
    same(net, alone(plain, torchlike.AdamW(plain.trainable_params(), 0.01, weight_decay=0.1), windows(data), clip=0.5))


def test_a_schedule_of_the_users(endpoint):
    """An experimental optimizer's learning rate moves with MindSpore's scheduler."""
    data, nets = batches(ROWS[:9]), (network(), network())

    def made(net):
        o = torchlike.SGD(net.trainable_params(), LR)
        return o, torchlike.lr_scheduler.StepLR(o, 1, 0.5)
    mine, schedule = made(nets[0])
    seen = []
    with gacc.mindspore.Optimizer(nets[0], mine, micro_size=K) as opt:
        grad = grad_of(nets[0], opt.parameters)
        for x, y in data:
            if opt(grad(x, y)[1], weight=len(x)):
                seen.append(opt.last.lr)
                schedule.step()
    assert seen == pytest.approx([0.1, 0.05, 0.025], rel=1e-6)
    own, schedule = made(nets[1])
    for window in windows(data):
        alone(nets[1], own, [window])
        schedule.step()
    same(*nets)


def test_the_tutorials_accumulator(endpoint):
    """32 x 2 = 64: the loss is divided by accumulate_step, as in MindSpore's tutorial, and two micro-batches are one of 64 rows."""
    data, net, plain = batches([32] * 6), network(), network()
    accumulator = gacc.mindspore.Accumulator(nn.SGD(net.trainable_params(), LR), accumulate_step=2)
    grad = grad_of(net, scale=1 / 2)
    assert [accumulator(grad(x, y)[1]) for x, y in data[:5]] == [False, True, False, True, False]
    assert accumulator.flush()  # the fifth alone: its own mean, not half of it
    whole = [tuple(ops.cat(t) for t in zip(*w)) for w in windows(data[:5], 2)]
    alone(plain, nn.SGD(plain.trainable_params(), LR), [[w] for w in whole])
    same(net, plain)
    accumulator.close()
    with refused("INVALID_ARGUMENT", "Accumulator takes an optimizer of MindSpore, not 'sgd'", "gacc.mindspore.Optimizer"):
        gacc.mindspore.Accumulator("sgd", 2)


class WithLoss(nn.Cell):
    def __init__(self, backbone):
        super().__init__(auto_prefix=False)
        self.backbone = backbone

    def construct(self, x, y):
        return ops.mse_loss(self.backbone(x), y)


@pytest.mark.parametrize("jit", [False, True])
def test_grad_accumulation(endpoint, jit):
    """A call is a step, of parts of any size; the last batches are smaller than micro_size divides, and than micro_size."""
    data, net, plain = batches([16, 13, 2]), network(), network()
    cell = gacc.mindspore.GradAccumulation(WithLoss(net), 4, nn.Momentum(net.trainable_params(), LR, 0.9), jit=jit)
    own, counts = nn.Momentum(plain.trainable_params(), LR, 0.9), []
    for x, y in data:
        want = float(loss_of(plain, x, y).asnumpy())
        assert float(cell(x, y).asnumpy()) == pytest.approx(want, rel=1e-5)
        counts.append(cell.optimizer.last.micro_count)
        alone(plain, own, [[(x, y)]])
    assert counts == [4, 4, 2] and cell.optimizer.last.applied_step == 3
    same(net, plain)
    with refused("INVALID_ARGUMENT", "the inputs have [2, 3] rows"):
        cell(data[2][0], batches([3])[0][1])
    cell.close()


def test_grad_accumulation_goes_on_inside_a_window(endpoint):
    """A process that is started again gives the parts of its batch that were not counted."""
    x, y = batches([13])[0]
    made = dict(micro_size=4, optimizer="sgd", lr=LR, job="again-ms")
    before = gacc.mindspore.GradAccumulation(WithLoss(network()), **made)
    before.optimizer(grad_of(before.network.backbone)(x[:3], y[:3])[1], weight=3)
    before.optimizer.session.detach(done=False)
    net, plain = network(1), network()
    cell = gacc.mindspore.GradAccumulation(WithLoss(net), **made)
    cell(x, y)
    assert cell.optimizer.last.micro_count == 4 and cell.optimizer.last.total_weight == 13
    same(net, alone(plain, nn.SGD(plain.trainable_params(), LR), [[(x, y)]]))
    cell.close()


def test_grad_accumulation_in_a_model(endpoint):
    """mindspore.train.Model and its callbacks take the cell as it is."""
    from mindspore.train import Callback, Model
    x, y = (t.asnumpy() for t in batches([40])[0])
    net, losses = network(), []

    class Losses(Callback):
        def on_train_step_end(self, run_context):
            losses.append(float(run_context.original_args().net_outputs.asnumpy()))
    cell = gacc.mindspore.GradAccumulation(WithLoss(net), 4, "sgd", lr=LR)
    Model(cell).train(3, ms.dataset.NumpySlicesDataset((x, y), shuffle=False).batch(8), callbacks=Losses(), dataset_sink_mode=False)
    plain = network()
    own = nn.SGD(plain.trainable_params(), LR)
    for _ in range(3):
        alone(plain, own, [[(ms.Tensor(x[i:i + 8]), ms.Tensor(y[i:i + 8]))] for i in range(0, 40, 8)])
    assert len(losses) == 15 and losses[-1] < losses[0]
    same(net, plain)
    cell.close()


@pytest.mark.parametrize("dtype", [ms.bfloat16, ms.float16])
def test_16_bits(endpoint, dtype):
    """The daemon keeps the values in f32, so that steps add up that are too small for the parameter's type."""
    p = ms.Parameter(ms.Tensor(np.ones(5, np.float32)).astype(dtype), name="w")
    g = ms.Tensor(np.full(5, 2.0 ** -13, np.float32)).astype(dtype)
    with gacc.mindspore.Optimizer([p], "sgd", lr=1.0, micro_size=1) as opt:
        for _ in range(64):
            opt([g])
    assert p.dtype == dtype and p.astype(ms.float32).asnumpy().tolist() == [1 - 64 * 2.0 ** -13] * 5


def test_a_window_with_nan(endpoint):
    """It is skipped, and the schedule stays where it is."""
    p = ms.Parameter(ms.Tensor(np.ones(3, np.float32)), name="w")
    with gacc.mindspore.Optimizer([p], nn.SGD([p], [1.0, 0.5]), micro_size=1) as opt:
        for v in (1.0, float("nan"), 1.0):
            opt([ms.Tensor(np.full(3, v, np.float32))])
        assert opt.last.applied_step == 2 and p.asnumpy().tolist() == [-0.5] * 3


# ---- processes: MindSpore's Python is for one thread ----


def trainer(rank, world, out, die_after):
    """Rank of a job: its share of the data; where the job was left by a process before this one, what is missing."""
    net = network(seed=int(rank))  # that of rank 0, which is first, counts
    with gacc.mindspore.Optimizer(net, nn.Momentum(net.trainable_params(), LR, 0.9), micro_size=K, job="ranks-ms", rank=int(rank), world=int(world)) as opt:
        print("ready", flush=True)
        sys.stdin.readline()
        grad = grad_of(net, opt.parameters)
        mine = windows(batches(ROWS * 2)[int(rank)::int(world)])
        for pushed in range(1000):
            window, missing = opt.session.window, opt.missing
            if window == len(mine) or missing[0] >= len(mine[window]):
                break
            if pushed == int(die_after):
                os.kill(os.getpid(), signal.SIGKILL)
            x, y = mine[window][missing[0]]
            opt(grad(x, y)[1], weight=len(x))
        opt.finish()
    np.savez(out, **values(net))


def start(node, *args):
    return subprocess.Popen([sys.executable, __file__, *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            env={**os.environ, "GACC_ENDPOINT": node.endpoint, "GACC_TEST": str(node.dir)})


def loaded(path):
    with np.load(path) as f:
        return {n: f[n] for n in f.files}


def test_two_ranks_and_a_death(node, tmp_path):
    """22 micro-batches dealt to two processes, whose last windows are short; one is killed inside a window and started again. Both end with the bits that
    one has, which are those of the plain loop within the tolerance."""
    data = batches(ROWS * 2)
    shares = [windows(data[r::2]) for r in range(2)]
    plain = network()
    alone(plain, nn.Momentum(plain.trainable_params(), LR, 0.9), [a + b for a, b in zip(*shares)])
    first = start(node, 0, 2, tmp_path / "0.npz", -1)
    assert next_line(first, timeout=240) == "ready\n"  # its parameters are the job's
    second = start(node, 1, 2, tmp_path / "1.npz", 4)
    assert next_line(second, timeout=240) == "ready\n"
    for p in (first, second):
        p.stdin.write("go\n")
        p.stdin.flush()
    assert second.wait(120) == -signal.SIGKILL
    again = start(node, 1, 2, tmp_path / "1.npz", -1)
    again.communicate("go\n", 120)
    first.communicate(timeout=120)
    assert (first.returncode, again.returncode) == (0, 0)
    same(loaded(tmp_path / "0.npz"), loaded(tmp_path / "1.npz"), 0)
    same(loaded(tmp_path / "0.npz"), plain)
    second.communicate(timeout=120)


# ---- refusals ----


def vector(n=3, name="w", dtype=np.float32):
    return ms.Parameter(ms.Tensor(np.ones(n, dtype)), name=name)


def ones(*shape):
    return ms.Tensor(np.ones(shape, np.float32))


def test_gradients_that_are_refused(endpoint):
    net = network()
    net[0].bias.requires_grad = False
    with gacc.mindspore.Optimizer(net, "sgd", lr=LR, micro_size=1) as opt:
        good = [ones(*p.shape) for p in opt.parameters]
        names = [p.name for p in opt.parameters]
        assert names == ["0.weight", "2.gamma", "2.beta", "3.weight", "3.bias"]
        for grads, said in [(good + [ones(8)], ["6 gradients for 5 trainable parameters; 1 are frozen: 0.bias", "opt.parameters"]),
                            ({**dict(zip(names, good)), "0.bias": ones(8)}, ["0.bias is frozen"]), ({"other": ones(1)}, ["other is none of the job's tensors"]),
                            ([ones(8, 4), ones(4), *good[2:]], ["the gradient of 2.gamma has the shape [4], and the parameter [8]"])]:
            with refused("INVALID_ARGUMENT", *said):
                opt(grads)
        with refused("NOT_SUPPORTED", "the gradient of 0.weight is a RowTensorInner", "sparse"):
            opt([type("RowTensorInner", (), {})(), *good[1:]])
        net[3].bias.requires_grad = False
        with refused("NOT_SUPPORTED", "parameter 3.bias was frozen after"):
            opt(good)
        net[3].bias.requires_grad = True
        before = values(net)
        net[3].bias.set_data(ones(2) * 7)
        with refused("PARAMETER_CHANGED", "parameter 3.bias was changed by something else", "before the Optimizer is made"):
            opt(good)
        net[3].bias.set_data(ms.Tensor(before["3.bias"]))
        assert opt(good)  # it is usable still
        same({"0.bias": before["0.bias"]}, {"0.bias": values(net)["0.bias"]}, 0)


def test_networks_that_are_refused(endpoint):
    net = network()
    for p in net.get_parameters():
        p.requires_grad = False
    make = gacc.mindspore.Optimizer
    with refused("INVALID_ARGUMENT", "no parameter requires a gradient: all 6 are frozen"):
        make(net, micro_size=1)
    with refused("NOT_SUPPORTED", "parameter w is Float64; gacc has float32, bfloat16 and float16"):
        make([vector(dtype=np.float64)], micro_size=1)
    with refused("INVALID_ARGUMENT", "two parameters are named w"):
        make([vector(), vector()], micro_size=1)
    with refused("INVALID_ARGUMENT", "a Tensor is no Parameter"):
        make([ones(3)], micro_size=1)
    with refused("INVALID_ARGUMENT", "the network is a list, not a Cell"):
        gacc.mindspore.GradAccumulation([vector()], 2)
    cell = gacc.mindspore.GradAccumulation(network(), 2, "sgd", lr=LR)
    with refused("INVALID_ARGUMENT", "the network returns the shape [2, 2]: it must be the mean loss"):
        cell(ones(4, 4))
    cell.close()


@pytest.mark.parametrize("make, reason, said", [
    (lambda p: "adagrad", "INVALID_ARGUMENT", ["no optimizer 'adagrad': gaccd has sgd, adam, adamw and lamb"]),
    (lambda p: 0.1, "INVALID_ARGUMENT", ["the optimizer is a float"]),
    (lambda p: nn.RMSProp(p), "NOT_SUPPORTED", ["RMSProp: gaccd does not have mindspore.nn.optim.rmsprop.RMSProp", "client"]),
    (lambda p: nn.Lamb(p, LR), "NOT_SUPPORTED", ["Lamb: MindSpore has no CPU kernels of it", 'the name "lamb"']),
    (lambda p: ms.mint.optim.AdamW(p, LR), "NOT_SUPPORTED", ["AdamW: MindSpore has no CPU kernels of it", "experimental.optim"]),
    (lambda p: nn.AdamWeightDecay(p), "NOT_SUPPORTED", ["AdamWeightDecay: it has no bias correction", "experimental.optim.AdamW"]),
    (lambda p: nn.Adam(p, use_amsgrad=True), "NOT_SUPPORTED", ["Adam: use_amsgrad is set"]),
    (lambda p: nn.Momentum(p, LR, 0.9, use_nesterov=True), "NOT_SUPPORTED", ["Momentum: use_nesterov is set", "nn.SGD"]),
    (lambda p: nn.Momentum(p, LR, 0.9, weight_decay=nn.ExponentialDecayLR(0.1, 0.9, 4)), "NOT_SUPPORTED", ["weight_decay changes with the step"]),
    (lambda p: nn.SGD([{"params": p, "grad_centralization": True}], LR), "NOT_SUPPORTED", ["grad_centralization is set"]),
    (lambda p: torchlike.Adam(p, amsgrad=True), "NOT_SUPPORTED", ["Adam: amsgrad is set"]),
    (lambda p: torchlike.SGD(p, LR, maximize=True), "NOT_SUPPORTED", ["maximize is set"]),
    (lambda p: torchlike.Adam([{"params": p[:1], "eps": 1e-4}, {"params": p[1:]}]), "NOT_SUPPORTED", ["a parameter group has its own eps"]),
    (lambda p: nn.SGD(p[1:], LR), "INVALID_ARGUMENT", ["a is a trainable parameter of the network or of the optimizer, but not of both"]),
    (lambda p: nn.SGD([{"params": p[:1], "lr": nn.ExponentialDecayLR(0.1, 0.9, 4)}, {"params": p[1:]}], LR), "NOT_SUPPORTED", ["groups with learning rates"]),
])
def test_optimizers_that_gaccd_does_not_have(endpoint, make, reason, said):
    params = [vector(name="a"), vector(name="b")]
    with refused(reason, *said):
        gacc.mindspore.Optimizer(params, make(params), micro_size=1)


def test_settings_twice_and_rates_that_part(endpoint):
    params = [vector(name="a"), vector(name="b")]
    with refused("INVALID_ARGUMENT", "settings are given beside an optimizer that has them"):
        gacc.mindspore.Optimizer(params, nn.SGD(params, LR), lr=0.2, micro_size=1)
    own = torchlike.SGD([{"params": params[:1]}, {"params": params[1:], "lr": 0.2}], LR)
    with gacc.mindspore.Optimizer(params, own, micro_size=1) as opt:
        ops.assign(own.param_groups[1]["lr"], ms.Tensor(0.3, ms.float32))
        with refused("NOT_SUPPORTED", "the learning rate of b is 0.3; it was 2 times the first one's"):
            opt([ones(3), ones(3)])


@pytest.mark.parametrize("how, said", [({"micro_size": 3}, "micro_size is 3 here and 2 in the job"), ({"clip_norm": 1.0}, "clip_norm is 1.0 here and 0.0"),
                                       ({"optimizer": "adam"}, "optimizer.type is adam here and sgd"), ({"momentum": 0.5}, "optimizer.momentum is 0.5 here and 0.0")])
def test_a_job_that_is_another_one(endpoint, how, said):
    with gacc.mindspore.Optimizer([vector()], "sgd", lr=LR, micro_size=2, job="there-ms"):
        with refused("SPEC_MISMATCH", said, "there-ms"):
            gacc.mindspore.Optimizer([vector()], **{"optimizer": "sgd", "lr": LR, "micro_size": 2, "job": "there-ms", **how})


if __name__ == "__main__":
    trainer(*sys.argv[1:])
