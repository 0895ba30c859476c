# SPDX-License-Identifier: Apache-2.0
"""gacc.torch.TrainerState: dropout, BatchNorm, shuffling and a scheduler go on bit for bit, in a job that begins with a checkpoint and in a rank that
died; and what it refuses."""
import random

import numpy as np
import pytest
import torch

from loops import FEATURES, fresh_name, gacc

STEPS, MICROS = 6, 2


def noisy_model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 2))


def optimizer(endpoint, m, **spec):
    keys = {"steps": STEPS, "checkpoint": {"at_end": True}, **spec}
    return gacc.torch.Optimizer(m, "adamw", lr=0.02, micro_size=MICROS, job=fresh_name(), rank=0, world=1, spec=keys)


def train(opt, m, state, scheduler, until):
    """Data from three generators, none of them a function of the window."""
    while opt.session.applied_step < until:
        state.save()
        x = torch.randn(8, FEATURES) + random.random() + np.random.rand()
        loss = m(x).square().mean()
        loss.backward()
        opt.step(weight=8, loss=loss)
        state.values["batches"] = state.values.get("batches", 0) + 1
        if opt.stepped:
            scheduler.step()
    state.save()


def all_of(m):
    return {k: v.clone() for k, v in m.state_dict().items()}


def begin(endpoint, seed=3, **spec):
    m = noisy_model()
    torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
    opt = optimizer(endpoint, m, **spec)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)
    return m, opt, scheduler, gacc.torch.TrainerState(opt, m, scheduler=scheduler)


def checkpoint_of(job):
    with gacc.connect() as client:
        client.wait(job)
        return client.checkpoints(job)[-1]


def test_a_job_from_a_checkpoint_goes_on_bit_for_bit(endpoint):
    m, opt, scheduler, state = begin(endpoint)
    assert not state.restore()
    train(opt, m, state, scheduler, STEPS)
    opt.close()
    whole = all_of(m)
    m, opt, scheduler, state = begin(endpoint, steps=3)
    train(opt, m, state, scheduler, 3)
    job = opt.session.job_id
    opt.close()
    saved = checkpoint_of(job)
    assert saved.state_bytes > 5000
    m, opt, scheduler, state = begin(endpoint, seed=99, restore_from=saved.path)
    assert state.restore() and state.values["batches"] == 3 * MICROS
    train(opt, m, state, scheduler, STEPS)
    opt.close()
    assert all(torch.equal(v, whole[k]) for k, v in all_of(m).items())


def test_another_model_is_refused_and_changes_nothing(endpoint):
    m, opt, _, state = begin(endpoint)
    assert state.save() and not state.save()  # once in a window
    before = torch.get_rng_state()
    other = gacc.torch.TrainerState(opt, torch.nn.BatchNorm2d(3))
    with pytest.raises(gacc.GaccError) as e:
        other.restore()
    assert e.value.reason == "STATE_MISMATCH" and "1.running_mean" in str(e.value) and torch.equal(before, torch.get_rng_state())
    torch.randn(3)
    with pytest.raises(gacc.GaccError):
        gacc.torch.TrainerState(opt, every=0)
    fits = gacc.torch.TrainerState(opt, m, scheduler=torch.optim.lr_scheduler.StepLR(opt, 2))
    assert fits.restore() and torch.equal(before, torch.get_rng_state())
    opt.close()


def test_only_in_the_windows_that_are_saved(endpoint):
    m, opt, scheduler, _ = begin(endpoint)
    state, saved = gacc.torch.TrainerState(opt, m, every=2), []
    for _ in range(2 * MICROS * 2):
        saved.append(state.save())
        m(torch.randn(8, FEATURES)).square().mean().backward()
        opt.step(weight=8)
    assert saved == [True, False, False, False, True, False, False, False]
    opt.close()
