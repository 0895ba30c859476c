# SPDX-License-Identifier: Apache-2.0
"""Threads about what happens at the wrong moment of a window: clipping, schedules, zero_grad, hooks."""
import pytest
import torch
from loops import gacc

from scalar import mean, optimizer, scalar


def test_transformers_1563_clipped_in_every_micro_batch(endpoint):
    """Clipping after each backward is not clipping of the sum: of gradients 3 and -1, clipped to 1 one by one, nothing is left. gacc clips the average,
    once, and tells the norm before it."""
    p = torch.nn.Parameter(torch.zeros(1))
    for g in (3.0, -1.0):
        (p * g).sum().backward()
        torch.nn.utils.clip_grad_norm_([p], 1.0)
    assert p.grad.item() == pytest.approx(0, abs=1e-5)
    m = scalar()
    with optimizer(m, 2, clip_norm=0.5) as opt:
        for g in (3.0, -1.0):
            mean(m, [g]).backward()
            opt.step()
        assert opt.last.grad_norm == 1 and m.weight.item() == pytest.approx(-0.5, rel=1e-5)


def test_accelerate_963_the_scheduler_moves_in_every_micro_batch(endpoint):
    """The learning rate moved with micro-batches instead of steps, so a schedule of n steps was over after n / k. gacc says when a step was taken, all
    micro-batches of a window have the rate of its first, and a rate that changes inside a window changes nothing in it."""
    m = scalar()
    with optimizer(m, 4) as opt:
        sched, used = torch.optim.lr_scheduler.LambdaLR(opt, lambda e: 0.5 ** e), []
        for _ in range(12):
            mean(m, [1.0]).backward()
            opt.step()
            if opt.stepped:
                used.append(opt.last.lr)
                sched.step()
    assert used == [1.0, 0.5, 0.25] and m.weight.item() == -1.75


def test_accelerate_641_clipping_inside_accumulate(endpoint):
    """clip_grad_norm_ in every turn of the loop failed, or clipped partial sums. With gacc's adapter the call inside a window only compares, and at the
    boundary it answers with the norm of the average."""
    accelerate = pytest.importorskip("accelerate")
    m, acc = scalar(), accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    inner = optimizer(m, 2, clip_norm=0.5)
    m, opt = acc.prepare(m, inner)
    gacc.accelerate.attach(acc, inner)
    norms = []
    for g in (3.0, -1.0):
        with acc.accumulate(m):
            acc.backward(mean(m, [g]))
            norms.append(acc.clip_grad_norm_(m.parameters(), 0.5).item())
            opt.step()
            opt.zero_grad()
    assert norms[0] != norms[0] and norms[1] == 1 and m.weight.item() == pytest.approx(-0.5, rel=1e-5)
    inner.close()


def test_longcat_image_46_zero_grad_at_the_top_of_the_loop(endpoint):
    """zero_grad() before every backward threw away all but the last micro-batch. What gacc has counted no zero_grad() of optimizer or model can take
    back; it gives up only a backward that was not stepped."""
    m = scalar()
    torchs = torch.optim.SGD(m.parameters(), lr=1.0)
    for g in (2.0, 4.0):
        torchs.zero_grad()
        mean(m, [g]).backward()
    assert m.weight.grad.item() == 4
    with optimizer(m, 2) as opt:
        for g in (2.0, 4.0):
            opt.zero_grad()
            m.zero_grad()
            mean(m, [g]).backward()
            opt.step()
    assert m.weight.item() == -3


def test_torchtitan_4601_a_place_for_code_in_every_micro_batch(endpoint):
    """A trainer that runs its micro-batches by itself has no place for a user's code between them. With gacc the loop is the user's: between two
    micro-batches it may look at where the job stands, skip one, or close the window."""
    m, seen = scalar(), []
    with optimizer(m, 3) as opt:
        for g in (1.0, 2.0, 3.0, 4.0):
            seen.append((opt.window, opt.missing))
            mean(m, [g]).backward()
            if g == 2:
                opt.zero_grad()  # the user does not like this one
                opt.step(empty=True)
            else:
                opt.step()
        opt.flush()
        assert seen == [(0, [0, 1, 2]), (0, [1, 2]), (0, [2]), (1, [0, 1, 2])]
        assert m.weight.item() == -2 - 4 and opt.last.micro_count == 1


def test_verl_1295_the_optimizer_in_backward_forbids_accumulation(endpoint):
    """Stepping inside backward saves the memory of gradients, and each micro-batch becomes a step of its own. gacc takes gradients out of .grad in the
    same hooks, and still steps once, by the average."""
    p = scalar()
    hooked = torch.optim.SGD(p.parameters(), lr=1.0)

    def at_once(w):
        hooked.step()
        w.grad = None
    p.weight.register_post_accumulate_grad_hook(at_once)
    m = scalar()
    with optimizer(m, 2) as opt:
        for g in (2.0, 4.0):
            mean(p, [g]).backward()
            mean(m, [g]).backward()
            assert m.weight.grad is None
            opt.step()
        assert opt.last.applied_step == 1
    assert p.weight.item() == -6 and m.weight.item() == -3


def test_pytorch_124523_eight_micro_batches_are_eight_steps(endpoint):
    """_apply_optimizer_in_backward steps for each micro-batch, so a batch of 64 in eight parts is eight steps of AdamW. With gacc it is one, to what f32
    can that of the whole batch, and no gradient stays in .grad either."""
    from torch.distributed.optim import _apply_optimizer_in_backward
    drawn = torch.Generator().manual_seed(2)
    whole = torch.randn(64, 1, generator=drawn) * 3 + 1

    def trained(step_in_backward, parts):
        m = scalar()
        if step_in_backward:
            _apply_optimizer_in_backward(torch.optim.AdamW, m.parameters(), {"lr": 0.1, "weight_decay": 0.0})
            torchs = None
        else:
            torchs = torch.optim.AdamW(m.parameters(), lr=0.1, weight_decay=0.0)
        for part in whole.split(64 // parts):
            ((m(part) - 1) ** 2).mean().backward()
        if torchs:
            torchs.step()
        return m.weight.item()
    want = trained(False, 1)
    assert trained(True, 1) == pytest.approx(want) and abs(trained(True, 8) - want) > 0.05
    m = scalar()
    with gacc.torch.Optimizer(m, "adamw", lr=0.1, weight_decay=0.0, micro_size=8) as opt:
        for part in whole.split(8):
            ((m(part) - 1) ** 2).mean().backward()
            assert m.weight.grad is None
            opt.step(weight=len(part))
        assert opt.last.applied_step == 1 and m.weight.item() == pytest.approx(want, rel=1e-6)


def test_maxtext_5039_the_type_that_gradients_are_summed_in(endpoint):
    """A sum in bf16 stands still: 256 + 1 is 256. gacc sums in f32, whatever the type of parameters and gradients: 257."""
    p = torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)
    gradients = [256.0] + [1.0] * 256
    for g in gradients:
        (p * g).sum().backward()
    assert p.grad.item() == 256
    m = scalar().bfloat16()
    with optimizer(m, len(gradients), reduction="sum") as opt:
        for g in gradients:
            m(torch.tensor([[g]], dtype=torch.bfloat16)).sum().backward()
            opt.step()
        assert opt.last.grad_norm == 512 and m.weight.item() == -512
