# SPDX-License-Identifier: Apache-2.0
"""gacc.torch.Optimizer against the same loop in plain torch (loops.py): uneven windows, ranks and weights, clipping, schedulers, skipped windows, and what
a model may be made of."""
import _thread
import copy
import gc
import math
import threading
import weakref

import pytest
import torch

from loops import batch, check, difference, fresh_name, gacc, in_threads, loss_of, model

OPTIMIZERS = {
    "sgd": (dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01), torch.optim.SGD),
    "adam": (dict(lr=0.02, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.01), torch.optim.Adam),
    "adamw": (dict(lr=0.02, weight_decay=0.1), torch.optim.AdamW),
}
COUNTS = [10, 7]  # batches of each rank; 4 in a window


def windows_of(counts, k=4):
    """By window: what the ranks push to it, if each gives k as long as it has some."""
    most = max(counts)
    return [[batch(rank, i) for rank, n in enumerate(counts) for i in range(at, min(at + k, n))] for at in range(0, most, k)]


def plain_loop(opt, m, rank, n):
    steps = []
    for i in range(n):
        b = batch(rank, i)
        loss = loss_of(m, b)
        loss.backward()
        opt.step(weight=len(b[0]), loss=loss)
        if opt.stepped:
            steps.append(opt.last)
    opt.flush()
    if opt.stepped:
        steps.append(opt.last)
    return steps


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_plain_loop(endpoint, name, ranks):
    """10 and 7 batches of random sizes in windows of 4: the mean is over all rows of a window, also of the short ones."""
    hyper, kind = OPTIMIZERS[name]
    job, begin = fresh_name(), model()

    def train(rank):
        m = copy.deepcopy(begin) if not rank else model(seed=9)  # who comes second gets the first one's parameters
        if rank:
            started.wait()
        with gacc.torch.Optimizer(m, name, micro_size=4, job=job, rank=rank, world=ranks, **hyper) as opt:
            started.set()
            steps = plain_loop(opt, m, rank, COUNTS[rank])
            opt.finish()
        return m, steps
    started = threading.Event()
    trained = in_threads(ranks, train)
    for m, _ in trained[1:]:
        assert difference(m, trained[0][0]) == 0
    told = check(trained[0][0], begin, lambda p: kind(p, **hyper), windows_of(COUNTS[:ranks]))
    steps = trained[0][1]
    assert [s.micro_count for s in steps] == ([4, 4, 2] if ranks == 1 else [8, 7, 2])
    assert [s.grad_norm for s in steps] == pytest.approx([n for n, _, _ in told], rel=1e-5)
    assert [s.mean_loss for s in steps] == pytest.approx([loss for _, _, loss in told], rel=1e-5)


@pytest.mark.parametrize("attach", [{"shared_memory": False}, {"mailbox": False}], ids=["messages", "grpc"])
def test_other_ways_to_the_daemon(endpoint, attach):
    begin = model()
    m = copy.deepcopy(begin)
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=4, attach=attach) as opt:
        plain_loop(opt, m, 0, 10)
        assert (opt.session.is_inline, opt.session.has_mailbox) == ("shared_memory" in attach, False)
    check(m, begin, lambda p: torch.optim.SGD(p, lr=0.1), windows_of([10]))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_loop_that_steps_at_the_boundary(endpoint, ranks):
    """boundary="step": backward pushes, step() closes whatever there is. The loss was divided by k, which the copy undoes; micro_size is the most."""
    job, begin, k = fresh_name(), model(), 3

    def train(rank):
        m = copy.deepcopy(begin)
        with gacc.torch.Optimizer(m, "adamw", lr=0.02, micro_size=64, boundary="step", job=job, rank=rank, world=ranks) as opt:
            for i in range(10):
                b = batch(rank, i)
                opt.micro(weight=len(b[0]), scale=k)
                (loss_of(m, b) / k).backward()
                assert all(p.grad is None for p in m.parameters())
                if i % k == k - 1 or i == 9:
                    opt.step()
                    assert opt.stepped and opt.last.micro_count == ranks * (1 if i == 9 else k)
                    opt.zero_grad()
        return m
    trained = in_threads(ranks, train)
    check(trained[0], begin, lambda p: torch.optim.AdamW(p, lr=0.02), windows_of([10] * ranks, k))
    assert difference(trained[0], trained[-1]) == 0


def test_clipping_that_bites(endpoint):
    begin = model()
    m = copy.deepcopy(begin)
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=4, clip_norm=0.3) as opt:
        steps = plain_loop(opt, m, 0, 10)
        assert opt.clip_grad_norm_(0.3).item() == pytest.approx(steps[-1].grad_norm)
    told = check(m, begin, lambda p: torch.optim.SGD(p, lr=0.1), windows_of([10]), clip=0.3)
    assert min(n for n, _, _ in told) > 0.3 and [s.grad_norm for s in steps] == pytest.approx([n for n, _, _ in told], rel=1e-5)


def test_a_call_of_clip_grad_norm_closes_the_window_before_step_brings_the_parameters(endpoint):
    begin = model()
    m = copy.deepcopy(begin)
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=4, clip_norm=0.3, boundary="step") as opt:
        for i in range(2):
            opt.micro(weight=len(batch(0, i)[0]))
            loss_of(m, batch(0, i)).backward()
        norm = opt.clip_grad_norm_(0.3)
        assert difference(m, begin) == 0 and norm.item() == pytest.approx(opt.grad_norm()) and norm > 0.3
        with pytest.raises(gacc.GaccError, match="call step") as e:
            loss_of(m, batch(0, 3)).backward()
        assert e.value.reason == "WINDOW_CLOSED"
        opt._gradients.clear()
        opt.step()
    check(m, begin, lambda p: torch.optim.SGD(p, lr=0.1), [[batch(0, 0), batch(0, 1)]], clip=0.3)


SCHEDULERS = {
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda e: 1 / (1 + e)),
    "warm-up from 0": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda e: e / 3),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=8, cycle_momentum=False),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 6),
}


@pytest.mark.parametrize("which", SCHEDULERS)
def test_schedulers_of_torch_step_for_step(endpoint, which):
    begin = model()
    m = copy.deepcopy(begin)
    with gacc.torch.Optimizer(m, "sgd", lr=0.05, momentum=0.9, micro_size=2) as opt:
        sched, used = SCHEDULERS[which](opt), []
        for i in range(10):
            b = batch(0, i)
            loss_of(m, b).backward()
            opt.step(weight=len(b[0]))
            if opt.stepped:
                used.append(opt.last.lr)
                sched.step()
    told = check(m, begin, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), windows_of([10], 2), scheduler=SCHEDULERS[which])
    assert used == [lr for _, lr, _ in told]


def test_a_schedule_of_the_job(endpoint):
    m = model()
    with gacc.torch.Optimizer(m, "sgd", lr=1.0, micro_size=1, schedule={"type": "step", "step_size": 1, "gamma": 0.5}) as opt:
        seen = []
        for i in range(3):
            loss_of(m, batch(0, i)).backward()
            opt.step()
            seen.append((opt.last.lr, opt.param_groups[0]["lr"]))
        assert seen == [(1, 1), (0.5, 0.5), (0.25, 0.25)]
        opt.param_groups[0]["lr"] = 0.1
        loss_of(m, batch(0, 3)).backward()
        with pytest.raises(gacc.GaccError, match="either a scheduler of torch or schedule="):
            opt.step()


def test_a_window_with_nan_is_skipped_and_said(endpoint):
    begin = model()
    m = copy.deepcopy(begin)
    with gacc.torch.Optimizer(m, "adamw", lr=0.02, micro_size=4) as opt:
        stepped = []
        for i in range(12):
            b = batch(0, i)
            loss = loss_of(m, b) * (math.nan if i == 5 else 1)
            loss.backward()
            before = copy.deepcopy(m)
            opt.step(weight=len(b[0]), loss=loss)
            if i % 4 == 3:
                stepped.append((opt.stepped, opt.last.outcome, opt.last.skip_reason))
                assert (difference(m, before) > 0) == opt.stepped
    assert stepped == [(True, "APPLIED", ""), (False, "SKIPPED", "NONFINITE"), (True, "APPLIED", "")]
    check(m, begin, lambda p: torch.optim.AdamW(p, lr=0.02), windows_of([12]), skipped=(1,))


def test_groups_have_their_own_lr_and_decay(endpoint):
    def groups(m):
        decay = [p for n, p in m.named_parameters() if n.endswith("weight") and p.ndim > 1]
        rest = [p for p in m.parameters() if not any(p is d for d in decay)]
        return [{"params": decay, "weight_decay": 0.2}, {"params": rest, "lr": 0.005, "weight_decay": 0.0}]

    def named(m):
        names = {p: n for n, p in m.named_parameters()}
        return [{**g, "params": [(names[p], p) for p in g["params"]]} for g in groups(m)]
    begin = model()
    m = copy.deepcopy(begin)
    with gacc.torch.Optimizer(named(m), "adamw", lr=0.02, micro_size=4) as opt:
        assert len(opt.session.spec.param_groups) < 6
        sched = SCHEDULERS["lambda"](opt)
        for i in range(12):
            loss_of(m, batch(0, i)).backward()
            opt.step(weight=len(batch(0, i)[0]))
            if opt.stepped:
                sched.step()

    class Grouped(torch.optim.AdamW):
        def __init__(self, params):
            owner = next(x for x in gc.get_objects() if isinstance(x, torch.nn.Sequential) and x[0].weight is params[0])
            super().__init__(groups(owner), lr=0.02)
    check(m, begin, lambda p: Grouped(list(p)), windows_of([12]), scheduler=SCHEDULERS["lambda"])


class Tied(torch.nn.Module):
    """An embedding that is also the head, a frozen layer, and a layer that is never used."""
    def __init__(self):
        super().__init__()
        self.emb = torch.nn.Embedding(11, 6)
        self.body = torch.nn.Linear(6, 6)
        self.frozen = torch.nn.Linear(6, 6)
        self.head = torch.nn.Linear(6, 11, bias=False)
        self.head.weight = self.emb.weight
        self.frozen.requires_grad_(False)

    def forward(self, t):
        return self.head(torch.tanh(self.frozen(torch.tanh(self.body(self.emb(t))))))


def test_tied_and_frozen_parameters(endpoint):
    torch.manual_seed(0)
    m = Tied()
    ref = copy.deepcopy(m).double()
    with gacc.torch.Optimizer(m, "adamw", lr=0.05, micro_size=2) as opt:
        assert opt.session.names == ["emb.weight", "body.weight", "body.bias"]
        torchs = torch.optim.AdamW([p for p in ref.parameters() if p.requires_grad], lr=0.05)
        for i in range(6):
            t = torch.randint(0, 11, (8,), generator=torch.Generator().manual_seed(i))
            for n, it in ((m, opt), (ref, torchs)):
                loss = torch.nn.functional.cross_entropy(n(t[:-1]), t[1:])
                (loss / 2 if it is torchs else loss).backward()
                if it is opt or i % 2:
                    it.step()
                    it.zero_grad()
        assert m.head.weight is m.emb.weight
    assert difference(m, ref) < 2e-6
    m.frozen.requires_grad_(True)


@pytest.mark.parametrize("boundary", ["count", "step"])
def test_a_hook_that_calls_backward_is_no_second_micro_batch(endpoint, boundary):
    m = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(m.weight)
    with gacc.torch.Optimizer(m, "sgd", lr=1.0, micro_size=1, boundary=boundary) as opt:
        out, more = m(torch.ones(1, 1)) * 1, m(torch.ones(1, 1)).sum()
        out.register_hook(lambda grad: more.backward())
        (out.sum() + m.weight.sum()).backward()
        opt.step()
        assert opt.stepped and opt.last.micro_count == 1 and m.weight.item() == -3


@pytest.mark.parametrize("boundary", ["count", "step"])
def test_a_thread_that_python_has_not_started(endpoint, boundary):
    """As those of other languages are, and of execnet."""
    done = threading.Event()
    m = model()
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=1, boundary=boundary) as opt:
        def train():
            try:
                loss_of(m, batch(0, 0)).backward()
                assert opt._gradients.backwards == (1 if boundary == "count" else 0)  # 0: pushed already
                opt.step()
            finally:
                done.set()
        _thread.start_new_thread(train, ())
        assert done.wait(30) and opt.stepped


def test_all_gradients_from_inside_reentrant_checkpoints(endpoint):
    """Nobody can tell where such a backward ends: it is said, not passed over."""
    from torch.utils.checkpoint import checkpoint
    m = model()
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=2, boundary="step") as opt:
        x = batch(0, 0)[0].requires_grad_(True)
        checkpoint(m, x, use_reentrant=True).sum().backward()
        with pytest.raises(gacc.GaccError, match="use_reentrant=False"):
            opt.step()
        opt._gradients.clear()
        checkpoint(m, x, use_reentrant=False).sum().backward()
        opt.step()
        assert opt.stepped


def test_two_losses_in_one_micro_batch(endpoint):
    begin = model()
    m = copy.deepcopy(begin)
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=4, backwards=2) as opt:
        for i in range(8):
            loss = loss_of(m, batch(0, i))
            (loss * 0.25).backward(retain_graph=True)
            (loss * 0.75).backward()
            opt.step(weight=len(batch(0, i)[0]))
    check(m, begin, lambda p: torch.optim.SGD(p, lr=0.1), windows_of([8]))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("boundary", ["count", "step"])
def test_checkpointed_layers_and_a_layer_that_is_used_twice(endpoint, reentrant, boundary):
    from torch.utils.checkpoint import checkpoint

    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.first, self.body, self.head = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6), torch.nn.Linear(6, 2)

        def forward(self, x):
            h = self.first(x)
            for _ in range(2):
                h = checkpoint(lambda t: torch.tanh(self.body(t)), h, use_reentrant=reentrant)
            return self.head(h)
    begin = Twice()
    m = copy.deepcopy(begin)
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=2, boundary=boundary) as opt:
        for i in range(6):
            rows = len(batch(0, i)[0])
            opt.micro(weight=rows)
            loss_of(m, batch(0, i)).backward()
            if boundary == "count" or i % 2:
                opt.step(**({"weight": rows} if boundary == "count" else {}))
        assert opt.last.applied_step == 3
    check(m, begin, lambda p: torch.optim.SGD(p, lr=0.1), windows_of([6], 2))


def test_a_parameter_that_only_one_micro_batch_touches(endpoint):
    """And old bytes of the slot count for nothing: the third micro-batch has the first one's slot."""
    m = torch.nn.ModuleDict({"a": torch.nn.Linear(1, 1, bias=False), "b": torch.nn.Linear(1, 1, bias=False)})
    for p in m.parameters():
        torch.nn.init.zeros_(p)
    one = torch.ones(1, 1)
    with gacc.torch.Optimizer(m, "sgd", lr=1.0, micro_size=3) as opt:
        for _ in range(3):
            (m["a"](one) + 6 * m["b"](one)).sum().backward()
            opt.step()
            for _ in range(2):
                m["a"](one).sum().backward()
                opt.step()
    assert m["a"].weight.item() == -3 and m["b"].weight.item() == -6


def test_a_parameter_that_a_window_does_not_touch_is_not_stepped(endpoint):
    """No decay and no moments, as in torch, whose .grad is None: not before its first gradient, and not after it."""
    torch.manual_seed(0)
    m = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 1), "b": torch.nn.Linear(3, 1), "never": torch.nn.Linear(3, 1)})
    ref = copy.deepcopy(m).double()
    torchs = torch.optim.AdamW(ref.parameters(), lr=0.05, weight_decay=0.1)
    with gacc.torch.Optimizer(m, "adamw", lr=0.05, weight_decay=0.1, micro_size=2) as opt:
        for window, layers in enumerate(["aa", "ab", "aa", "bb", "aa"]):
            for micro, layer in enumerate(layers):
                x = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * window + micro))
                m[layer](x).pow(2).mean().backward()
                opt.step()
                (ref[layer](x.double()).pow(2).mean() / 2).backward()
            torchs.step()
            torchs.zero_grad()
    assert difference(m, ref) < 2e-7 and difference(m["never"], ref["never"]) < 1e-8


def test_a_closure(endpoint):
    m = model()
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=1) as opt:
        def closure():
            loss = loss_of(m, batch(0, 0))
            loss.backward()
            return loss
        first = opt.step(closure)
        assert isinstance(first, torch.Tensor) and opt.last.mean_loss == pytest.approx(first.item())
        assert opt.step(closure).item() < first.item() and opt.stepped


def test_micro_batches_without_anything(endpoint):
    """weight 0: its mean is over nothing, that is NaN; empty=True: there was no backward at all. Neither moves the mean of the others."""
    m = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(m.weight)
    with gacc.torch.Optimizer(m, "sgd", lr=1.0, micro_size=3) as opt:
        m(torch.ones(1, 1)).sum().backward()
        opt.step(weight=4)
        (m(torch.ones(1, 1)).sum() * math.nan).backward()
        opt.step(weight=0)
        opt.step(empty=True)
        assert opt.stepped and opt.last.total_weight == 4 and m.weight.item() == -1


def test_zero_grad_gives_up_a_backward(endpoint):
    m = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(m.weight)
    with gacc.torch.Optimizer(m, "sgd", lr=1.0, micro_size=2) as opt:
        for factor in (1, 100, 3):
            (factor * m(torch.ones(1, 1))).sum().backward()
            if factor == 100:
                opt.zero_grad()
            else:
                opt.step()
    assert m.weight.item() == -2


def test_a_compiled_model(endpoint):
    begin = model()
    m = copy.deepcopy(begin)
    fast = torch.compile(m, backend="aot_eager")
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=4) as opt:
        for i in range(8):
            b = batch(0, i)
            torch.nn.functional.mse_loss(fast(b[0]), b[1]).backward()
            opt.step(weight=len(b[0]))
    check(m, begin, lambda p: torch.optim.SGD(p, lr=0.1), windows_of([8]))


def test_a_second_optimizer_takes_the_parameters_over(endpoint, node):
    m = model()
    first = gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=1)
    second = gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=1)
    assert second.session.job_id != first.session.job_id
    loss_of(m, batch(0, 0)).backward()
    second.step()
    assert second.stepped
    with pytest.raises(gacc.GaccError):
        first.step(empty=True)
    second.close()


def test_an_optimizer_that_nobody_has_any_more_is_gone(endpoint, node):
    from harness import wait_until
    m = model()
    opt = gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=1)
    sched = torch.optim.lr_scheduler.StepLR(opt, 1)
    job, seen = opt.session.job_id, weakref.ref(opt)
    del opt, sched
    gc.collect()
    assert seen() is None
    wait_until("the job's end", lambda: node.state(job) == "COMPLETED")
    loss_of(m, batch(0, 0)).backward()
    assert all(p.grad is not None for p in m.parameters())


def test_accelerates_seed(endpoint):
    """Accelerate's self-contained example, its loop without the library: "the final model weight is 2.04000"."""
    m = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(m.weight)
    x = torch.arange(1.0, 9).unsqueeze(1)
    with gacc.torch.Optimizer(m, "sgd", lr=0.02, micro_size=4) as opt:
        for i in range(0, 8, 2):
            torch.nn.functional.mse_loss(m(x[i:i + 2]), 2 * x[i:i + 2]).backward()
            opt.step(weight=2)
    assert f"{m.weight.item():.5f}" == "2.04000"


def test_loss_scaling_of_the_job(endpoint):
    """A window with inf is skipped and halves the scale, as torch.amp.GradScaler does."""
    begin = model()
    m = copy.deepcopy(begin)
    spec = {"loss_scale": 1024, "dynamic_loss_scale": {"enabled": True}}
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=2, spec=spec) as opt:
        scaler = gacc.torch.GradScaler(opt)
        loss_of(m, batch(0, 0)).backward()
        with pytest.raises(gacc.GaccError, match="was not multiplied by it"):
            opt.step()
        opt.zero_grad()
        scales = []
        for i in range(8):
            b = batch(0, i)
            scaler.scale(loss_of(m, b) * (math.inf if i == 2 else 1)).backward()
            scaler.unscale_(opt)
            scaler.step(opt, weight=len(b[0]))
            scaler.update()
            scales.append(scaler.get_scale())
        assert scales == [1024] * 3 + [512] * 5
    check(m, begin, lambda p: torch.optim.SGD(p, lr=0.1), windows_of([8], 2), skipped=(1,))
