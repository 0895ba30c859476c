# SPDX-License-Identifier: Apache-2.0
"""gacc.colossalai: the loops of Colossal-AI's guide to gradient accumulation, with its own Booster where it is installed, and with no_sync() and backward()
of the package in any case; beside plain torch."""
import contextlib
import math
from importlib.util import find_spec

import pytest
import torch

from loops import against_plain_torch, batch, check, decay, fresh_name, gacc, loss_of, model, refused
from ranks import KEPT, Rank

K, NAN = 4, 1  # what the loops divide by; the window that has a NaN
REAL = pytest.param("booster", marks=pytest.mark.skipif(not find_spec("colossalai"), reason="no Colossal-AI"))


def booster_of(plugin="TorchDDPPlugin", **how):
    """A Booster of Colossal-AI's on CPUs, in a process group of one process."""
    import colossalai
    from colossalai.booster import Booster, plugin as plugins
    from harness import free_port
    if not torch.distributed.is_initialized():
        colossalai.launch(rank=0, world_size=1, host="127.0.0.1", port=free_port(), verbose=False)
    return Booster(plugin=getattr(plugins, plugin)(), **how)


@pytest.fixture(scope="module", autouse=True)
def no_process_group():
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


class Loop:
    """What a loop has: model, opt, and the two calls; `inner` is the Optimizer. "booster": Colossal-AI's own, "own": the package's."""
    def __init__(self, kind, k=K, clip_norm=0.0, micro_size=K, **how):
        self.model = model()
        self.opt = gacc.torch.Optimizer(self.model, "sgd", lr=0.1, momentum=0.9, micro_size=micro_size, clip_norm=clip_norm, **how)
        self.scheduler = decay(self.opt)
        booster, (self.no_sync, self.backward) = None, (gacc.colossalai.no_sync, gacc.colossalai.backward)
        self.clip = self.opt.clip_grad_norm_
        if kind == "booster":
            booster = booster_of()
            self.model, self.opt, *_ = booster.boost(self.model, self.opt)
        self.inner = gacc.colossalai.attach(booster, self.model, self.opt, k)
        if kind == "booster":
            self.no_sync, self.backward, self.clip = booster.no_sync, booster.backward, self.opt.clip_grad_by_norm

    def micro(self, b, inside=False, times=1.0, k=K):
        with self.no_sync(self.model, self.opt) if inside else contextlib.nullcontext():
            self.inner.micro(weight=len(b[0]))
            self.backward(loss_of(self.model, b) * times / k, self.opt)


@pytest.fixture(params=["own", REAL])
def loop(request, endpoint):
    loop = Loop(request.param)
    with loop.inner:
        yield loop


def train(kind, form, rank, world, n, job=None, nan=True):
    """The loop of the guide, or Gemini's. Returns parameters, and (norm, lr before the scheduler moves, skipped, mean loss) of each window."""
    torch.set_num_threads(1)
    loop = Loop(kind, clip_norm=0.7, micro_size=16, job=job, rank=rank, world=world)
    told = []
    for i in range(n):
        is_boundary = (i + 1) % K == 0 or i + 1 == n
        loop.micro(batch(rank, i), inside=form == "no_sync" and not is_boundary, times=math.nan if nan and i == K * NAN else 1.0)
        if is_boundary:
            norm, lr = loop.clip(0.7), loop.opt.param_groups[0]["lr"]
            loop.opt.step()
            loop.opt.zero_grad()
            if loop.inner.stepped:
                loop.scheduler.step()
            told.append((norm.item(), lr, not loop.inner.stepped, loop.inner.last.mean_loss))
    loop.inner.finish()
    state = {name.replace("module.", ""): p.numpy().copy() for name, p in loop.model.state_dict().items()}
    loop.inner.close()
    return state, told


@pytest.mark.parametrize("kind", ["own", REAL])
@pytest.mark.parametrize("form", ["no_sync", "gemini"])
def test_a_loop_with_a_short_window_tokens_clipping_a_scheduler_and_nan(endpoint, kind, form):
    """10 batches: windows of 4, 4 (NaN, skipped) and 2."""
    state, told = train(kind, form, 0, 1, 10)
    against_plain_torch(state, told, [[batch(0, i) for i in range(at, min(at + K, 10))] for at in range(0, 10, K)], (NAN,))


@pytest.mark.parametrize("kind", ["own", REAL])
def test_two_ranks_with_6_and_4_batches(node, kind):
    """The second joins the first one's last window with nothing to give."""
    job, counts = fresh_name(), (6, 4)
    ranks = [Rank(node, train, kind, "no_sync", r, 2, counts[r], job, False) for r in range(2)]
    (state, told), (other, _) = [r.result() for r in ranks]
    assert all((state[n] == other[n]).all() for n in state)
    against_plain_torch(state, told, [[batch(r, i) for r in range(2) for i in range(at, min(at + K, counts[r]))] for at in (0, K)], ())


def test_the_guides_loop_as_it_stands(loop):
    """Its `idx % (GRADIENT_ACCUMULATION - 1)` makes windows of 1, 3 and 3, all divided by 4 there; here each is a mean."""
    start = model()
    loop.opt.zero_grad()
    for idx in range(7):
        sync_context = loop.no_sync(loop.model, loop.opt)
        if idx % (K - 1) != 0:
            with sync_context:
                loop.micro(batch(0, idx))
        else:
            loop.micro(batch(0, idx))
            loop.opt.step()
            loop.opt.zero_grad()
    windows = [[batch(0, i) for i in w] for w in ([0], [1, 2, 3], [4, 5, 6])]
    check(getattr(loop.model, "module", loop.model), start, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), windows)


def test_parameters_move_at_the_boundary_alone(loop):
    first = [next(loop.model.parameters()).detach().clone()]
    for i in range(K):
        loop.micro(batch(0, i), inside=i < K - 1)
        loop.opt.zero_grad()
        first.append(next(loop.model.parameters()).detach().clone())
    loop.opt.step()
    assert all(torch.equal(first[0], f) for f in first) and not torch.equal(first[0], next(loop.model.parameters()))


def test_a_step_in_the_middle(loop):
    with refused("BOUNDARY", r"step\(\) inside no_sync\(\)", "leave the with block"), loop.no_sync(loop.model, loop.opt):
        loop.micro(batch(0, 0))
        loop.opt.step()
    with refused("BOUNDARY", r"step\(\) after micro-batches inside no_sync\(\) alone", r"flush\(\)"):
        loop.opt.step()
    loop.micro(batch(0, 1))
    loop.opt.step()
    assert loop.inner.stepped and loop.inner.last.micro_count == 2


def test_a_boundary_without_a_step(loop):
    loop.micro(batch(0, 0), inside=True)
    loop.micro(batch(0, 1))
    for inside in (True, False):
        with refused("BOUNDARY", r"after the boundary's.* no step\(\)"):
            loop.micro(batch(0, 2), inside=inside)
    loop.opt.step()
    loop.micro(batch(0, 3))
    assert loop.inner.last.micro_count == 2 and loop.inner.pushed == 1


def test_more_micro_batches_than_the_loss_is_divided_by(endpoint):
    loop = Loop("own", k=2)
    with loop.inner:
        for i in range(2):
            loop.micro(batch(0, i))
        with refused("BOUNDARY", r"number 3 since the last step\(\), and the loss is divided by 2"):
            loop.micro(batch(0, 2))


def test_the_end_of_the_data_inside(loop):
    """flush() takes the step of a window whose boundary never comes, and the next window is one like any other."""
    start = model()
    for i in range(2):
        loop.micro(batch(0, i), inside=True)
    loop.inner.flush()
    loop.micro(batch(0, 2))
    loop.opt.step()
    windows = [[batch(0, 0), batch(0, 1)], [batch(0, 2)]]
    check(getattr(loop.model, "module", loop.model), start, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), windows)


def test_a_backward_elsewhere(loop):
    loss_of(loop.model, batch(0, 0)).backward()
    for call in (loop.opt.step, lambda: loop.micro(batch(0, 1)), lambda: loop.inner.step()):
        with refused("BOUNDARY", r"was not booster.backward\(loss, optimizer\)"):
            call()


def test_a_backward_that_fails_leaves_nothing(loop):
    """The next one is weighed and multiplied as if that had not been."""
    start = model()
    for i in range(2):
        loop.inner.micro(weight=9)
        if i:
            with pytest.raises(RuntimeError, match="does not require grad"):
                loop.backward(torch.zeros(()), loop.opt)
        else:
            with refused("NO_GRADIENT", "reached no parameter"):
                loop.backward(torch.zeros((), requires_grad=True) * 1, loop.opt)
        loop.backward(loss_of(loop.model, batch(0, i)) / K, loop.opt)
    assert all(p.grad is None for p in loop.model.parameters())
    loop.opt.step()
    check(getattr(loop.model, "module", loop.model), start, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), [[batch(0, 0), batch(0, 1)]], weight=lambda b: 1)


def test_a_division_by_3_is_undone(endpoint):
    start, loop = model(), Loop("own", k=3)
    with loop.inner:
        for i in range(3):
            loop.micro(batch(0, i), inside=i < 2, k=3)
        loop.opt.step()
        check(loop.model, start, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), [[batch(0, i) for i in range(3)]])


def test_wrong_arguments(endpoint):
    m = model()
    with refused("INVALID_ARGUMENT", "not a gacc.torch.Optimizer but a SGD"):
        gacc.colossalai.attach(None, m, torch.optim.SGD(m.parameters(), lr=0.1), 2)
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=2) as opt:
        for call in (lambda: gacc.colossalai.no_sync(m, opt).__enter__(), lambda: gacc.colossalai.backward(loss_of(m, batch(0, 0)), opt)):
            with refused("INVALID_ARGUMENT", "not attached"):
                call()
        for k in (0, 2.5, "2"):
            with refused("INVALID_ARGUMENT", "accumulation is"):
                gacc.colossalai.attach(None, m, opt, k)
        with refused("WINDOW_FULL", "accumulation is 4, and a window has at most micro_size = 2", "micro_size=4"):
            gacc.colossalai.attach(None, m, opt, 4)


needs_colossalai = pytest.mark.skipif(not find_spec("colossalai"), reason="no Colossal-AI")


@needs_colossalai
def test_clipping_of_the_wrapper(endpoint):
    loop = Loop("booster", clip_norm=0.7)
    with loop.inner:
        loop.micro(batch(0, 0), inside=True, times=math.inf)
        with refused("BOUNDARY", r"clip_grad_by_norm\(\) after micro-batches inside"):
            loop.clip(0.7)
        loop.micro(batch(0, 1))
        with refused("CLIP_MISMATCH", "clipping at 1, and the job has clip_norm 0.7"):
            loop.clip(1.0)
        with refused("CLIP_MISMATCH", "2-norm"):
            loop.clip(0.7, 1.0)
        with refused("CLIP_MISMATCH", "clip_value"):
            loop.opt.clip_grad_by_value(1.0)
        with refused("NONFINITE", "norm"):
            loop.clip(0.7, error_if_nonfinite=True)
        loop.opt.step()
        assert not loop.inner.stepped


def in_one_process_group(rank, port):
    """Two processes of Colossal-AI's: what attach() says without ddp, and the parameters with it."""
    import colossalai
    torch.set_num_threads(1)
    colossalai.launch(rank=rank, world_size=2, host="127.0.0.1", port=port, verbose=False)
    said = "nothing"
    try:
        Loop("booster", job=fresh_name(), rank=0, world=1)
    except gacc.GaccError as e:
        said = str(e)
    loop = Loop("booster", ddp=True)
    with loop.inner:
        for i in range(2 * K):
            loop.micro(batch(rank, i), inside=(i + 1) % K != 0)
            if (i + 1) % K == 0:
                loop.opt.step()
    KEPT.append(loop)
    return said, {n.replace("module.", ""): p.numpy().copy() for n, p in loop.model.state_dict().items()}


@needs_colossalai
def test_a_process_group(node):
    """With ddp=True the result is that of DDP: the division by K stays, and the ranks' gradients are averaged."""
    from harness import free_port
    port, got = free_port(), model()
    (said, mine), (_, other) = [r.result() for r in [Rank(node, in_one_process_group, r, port) for r in range(2)]]
    assert "process group of 2" in said and "ddp=True" in said
    assert all((mine[n] == other[n]).all() for n in mine)
    got.load_state_dict({n: torch.from_numpy(v) for n, v in mine.items()})
    windows = [[batch(r, i) for r in range(2) for i in range(at, at + K)] for at in (0, K)]
    check(got, model(), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), windows, weight=lambda b: 1)


@needs_colossalai
def test_boosters_that_cannot_be(endpoint):
    m = model()
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=2) as opt:
        booster = booster_of()
        with refused("INVALID_ARGUMENT", "was not boosted"):
            gacc.colossalai.attach(booster, m, opt, 2)
        scaled = booster_of(mixed_precision="fp16")
        with refused("NOT_SUPPORTED", "TorchAMPOptimizer", "bfloat16"):
            gacc.colossalai.attach(scaled, *scaled.boost(m, opt)[:2], 2)
        with refused("NOT_SUPPORTED", "LowLevelZeroPlugin", "TorchDDPPlugin"):
            gacc.colossalai.attach(booster_of("LowLevelZeroPlugin"), m, opt, 2)


@needs_colossalai
def test_another_model_of_the_booster_is_left_alone(endpoint):
    """As a GAN has: one Optimizer of gacc's, and one of torch's."""
    booster, m, n, before = booster_of(), model(), model(1), model(1)
    theirs, its = booster.boost(n, torch.optim.SGD(n.parameters(), lr=0.1))[:2]
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=2) as opt:
        mine, opt = booster.boost(m, opt)[:2]
        inner = gacc.colossalai.attach(booster, mine, opt, 2)
        gacc.colossalai.attach(booster, mine, opt, 2)  # again: it is the same
        with booster.no_sync(mine):
            booster.backward(loss_of(mine, batch(0, 0)) / 2, opt)
            booster.backward(loss_of(theirs, batch(0, 0)), its)
        with booster.no_sync(theirs):
            booster.backward(loss_of(mine, batch(0, 1)) / 2, opt)
            opt.step()
        its.step()
        assert inner.stepped and inner.last.micro_count == 2
    check(n, before, lambda p: torch.optim.SGD(p, lr=0.1), [[batch(0, 0)]])
