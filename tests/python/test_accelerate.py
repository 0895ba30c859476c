# SPDX-License-Identifier: Apache-2.0
"""gacc.accelerate with Accelerate's own release: its example's seed, and a loop with all that goes wrong elsewhere, beside plain torch."""
import copy
import math
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("accelerate")
from accelerate import Accelerator  # noqa: E402
from accelerate.utils import DistributedType, GradientAccumulationPlugin  # noqa: E402
from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402

from loops import against_plain_torch, batch, check, decay, difference, fresh_name, gacc, loss_of, model, refused  # noqa: E402
from ranks import KEPT, Rank  # noqa: E402

K, NAN = 4, 1  # batches in a window; the window that has a NaN


@pytest.fixture(autouse=True)
def fresh_state():
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def accelerator(**how):
    return Accelerator(cpu=True, **how)


def test_the_guides_example(endpoint):
    """Its "Self-contained example" with another optimizer line and attach: "the final model weight is 2.04000"."""
    x = torch.tensor([1., 2., 3., 4., 5., 6., 7., 8.])
    y = torch.tensor([2., 4., 6., 8., 10., 12., 14., 16.])
    dataset = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(dataset, batch_size=2)
    criterion = torch.nn.MSELoss()
    m = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(m.weight)
    acc = accelerator(gradient_accumulation_steps=4)
    opt = gacc.torch.Optimizer(m, "sgd", lr=0.02, micro_size=4)
    m, opt, loader = acc.prepare(m, opt, loader)
    gacc.accelerate.attach(acc, opt)
    for inputs, targets in loader:
        with acc.accumulate(m):
            inputs, targets = inputs.view(-1, 1), targets.view(-1, 1)
            loss = criterion(m(inputs), targets)
            acc.backward(loss)
            opt.step()
            opt.zero_grad()
    assert f"{m.weight.item():.5f}" == "2.04000"
    opt.optimizer.close()


class Batches(torch.utils.data.Dataset):
    """A rank's batches, whole."""
    def __init__(self, rank, n):
        self.all = [batch(rank, i) for i in range(n)]

    def __len__(self):
        return len(self.all)

    def __getitem__(self, i):
        return (*self.all[i], torch.tensor(i))


def train(rank, world, n, job, micro_size=16, nan=True):
    """Accelerate's loop. Returns parameters and what a logger sees after each step: (norm, lr before the scheduler moves, skipped, mean loss)."""
    torch.set_num_threads(1)
    m = model()
    acc = accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=K))
    opt = gacc.torch.Optimizer(m, "sgd", lr=0.1, momentum=0.9, micro_size=micro_size, clip_norm=0.7, job=job, rank=rank, world=world)
    loader = torch.utils.data.DataLoader(Batches(rank, n), batch_size=None)
    m, opt, loader, sched = acc.prepare(m, opt, loader, decay(opt))
    inner = gacc.accelerate.attach(acc, opt)
    told = []
    for x, y, i in loader:
        with acc.accumulate(m):
            inner.micro(weight=len(x))
            acc.backward(loss_of(m, (x, y)) * (math.nan if nan and i == K * NAN else 1))
            norm = acc.clip_grad_norm_(m.parameters(), 0.7)
            lr = opt.param_groups[0]["lr"]
            opt.step()
            sched.step()
            opt.zero_grad()
            if acc.sync_gradients:
                told.append((norm.item(), lr, acc.optimizer_step_was_skipped, inner.last.mean_loss))
    acc.end_training()
    state = {name: p.numpy().copy() for name, p in m.state_dict().items()}
    inner.close()
    return state, told


def test_a_loop_with_a_short_window_tokens_clipping_a_scheduler_and_nan(endpoint):
    """14 batches: windows of 4, 4 (NaN, skipped), 4 and 2."""
    state, told = train(0, 1, 14, None)
    windows = [[batch(0, i) for i in range(at, min(at + K, 14))] for at in range(0, 14, K)]
    against_plain_torch(state, told, windows, (NAN,))


def test_two_ranks_with_6_and_4_batches(node):
    """Two processes without a process group. The second joins the first one's last window with nothing to give."""
    job, counts = fresh_name(), (6, 4)
    ranks = [Rank(node, train, r, 2, counts[r], job, 16, False) for r in range(2)]
    (state, told), (other, _) = [r.result() for r in ranks]
    assert all((state[n] == other[n]).all() for n in state)
    windows = [[batch(r, i) for r in range(2) for i in range(at, min(at + K, counts[r]))] for at in (0, K)]
    against_plain_torch(state, told, windows, ())


def test_without_attach_it_says_so(endpoint):
    m, acc = model(), accelerator(gradient_accumulation_steps=2)
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=2) as inner:
        m, opt = acc.prepare(m, inner)
        with refused("BOUNDARY", "2 backward.*gacc.accelerate.attach"):
            for i in range(2):
                with acc.accumulate(m):
                    acc.backward(loss_of(m, batch(0, i)))
                    opt.step()


def test_clipping_elsewhere(endpoint):
    m, acc = model(), accelerator()
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=2) as opt:
        with refused("INVALID_ARGUMENT", "not a gacc.torch.Optimizer but a SGD"):
            gacc.accelerate.attach(acc, torch.optim.SGD(m.parameters(), lr=0.1))
        gacc.accelerate.attach(acc, opt)
        with refused("CLIP_MISMATCH", "clipping at 1, and the job has clip_norm 0"):
            acc.clip_grad_norm_(m.parameters(), 1.0)
        with refused("CLIP_MISMATCH", "clip_value"):
            acc.clip_grad_value_(m.parameters(), 1.0)


def in_a_process_group():
    """What gaccctl run's RANK and WORLD_SIZE bring about."""
    m, acc = torch.nn.Linear(1, 1), accelerator()
    wrapped = acc.prepare(m)
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=2, job=fresh_name(), rank=0, world=1) as opt:
        said = [type(wrapped).__name__]
        acc2, fsdp = copy.copy(acc), SimpleNamespace(distributed_type=DistributedType.FSDP)
        for call in (lambda: gacc.accelerate.attach(acc2, opt), lambda: gacc.accelerate.attach(fsdp, opt), lambda: gacc.torch.Optimizer(wrapped, "sgd", lr=0.1, micro_size=2)):
            try:
                call()
            except gacc.GaccError as e:
                said.append(f"{e.reason} {e}")
    KEPT.append((acc, wrapped))
    return said


def processes(node, target, *args):
    """Two, as torchrun starts them; their results."""
    from harness import free_port
    env = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    return [r.result() for r in [Rank(node, target, *args, RANK=r, LOCAL_RANK=r, **env) for r in range(2)]]


def test_a_process_group_is_refused(node):
    for kind, attach, sharded, made in processes(node, in_a_process_group):
        assert kind == "DistributedDataParallel" and "process group of 2" in attach and "GACC_RANK" in attach and "ddp=True" in attach
        assert sharded.startswith("NOT_SUPPORTED") and "Accelerate trains by FSDP" in sharded
        assert made.startswith("NOT_SUPPORTED") and "the model is a DistributedDataParallel" in made
    assert difference(model(), model()) == 0


def in_its_own_process_group(attach_first):
    """Accelerate's DistributedDataParallel with gacc, and without."""
    torch.set_num_threads(1)
    ends = []
    for by in ("gacc", "DDP"):
        m, acc = model(), accelerator(gradient_accumulation_steps=K)
        if by == "gacc":
            opt = inner = gacc.torch.Optimizer(m, "sgd", lr=0.1, momentum=0.9, micro_size=16, clip_norm=0.7, ddp=True)
            if attach_first:
                gacc.accelerate.attach(acc, opt)
        else:
            opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
        m, opt = acc.prepare(m, opt)
        assert type(m).__name__ == "DistributedDataParallel"
        if by == "gacc" and not attach_first:
            gacc.accelerate.attach(acc, opt)
        KEPT.append((acc, m, opt))
        norms = []
        for i in range(3 * K):
            with acc.accumulate(m):
                acc.backward(loss_of(m, batch(acc.process_index, i)))
                if acc.sync_gradients:
                    norms.append(acc.clip_grad_norm_(m.parameters(), 0.7).item())
                opt.step()
                opt.zero_grad()
        if by == "gacc":
            seen = inner.last.applied_step, m.require_backward_grad_sync
            assert seen == (3, False), seen
            inner.close()
        ends.append(([p.detach().numpy().copy() for p in m.parameters()], norms))
    return ends


@pytest.mark.parametrize("attach_first", [False, True])
def test_ddp(node, attach_first):
    """Batches of any number of rows: the mean of the ranks' means, as DDP has it."""
    ((mine, norms), (ddp, _)), ((other, _), _) = processes(node, in_its_own_process_group, attach_first)
    assert all((a == b).all() for a, b in zip(mine, other))
    got, plain = model(), model()
    for m, arrays in ((got, mine), (plain, ddp)):
        m.load_state_dict({n: torch.from_numpy(a) for (n, _), a in zip(m.named_parameters(), arrays)})
    windows = [[batch(r, i) for r in range(2) for i in range(at, at + K)] for at in (0, K, 2 * K)]
    for m in (got, plain):
        told = check(m, model(), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), windows, clip=0.7, weight=lambda b: 1)
    assert norms == [pytest.approx(norm, rel=1e-5) for norm, _, _ in told]
    assert difference(got, plain) < 1e-6
