# SPDX-License-Identifier: Apache-2.0
"""What gacc.torch.Optimizer refuses, and with which words: a wrong use must not train something else in silence."""
import copy
import pickle

import pytest
import torch

from harness import said_by_a_fork
from loops import batch, fresh_name, gacc, loss_of, model, refused


@pytest.fixture
def trained(endpoint):
    """(model, Optimizer) of a job with micro_size 2."""
    m = model()
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=2) as opt:
        yield m, opt


def backward(m, i=0):
    loss_of(m, batch(0, i)).backward()


def test_a_step_without_a_backward(trained):
    m, opt = trained
    with refused("NO_GRADIENT", "step\\(\\) without a backward", "empty=True"):
        opt.step()
    torch.autograd.grad(loss_of(m, batch(0, 0)), list(m.parameters()))
    with refused("NO_GRADIENT", "without a backward"):
        opt.step()


def test_a_library_that_accumulates_by_itself(trained):
    m, opt = trained
    for i in range(4):
        (loss_of(m, batch(0, i)) / 4).backward()
    with refused("BOUNDARY", "4 backward\\(\\) calls instead of 1", "gacc.accelerate.attach"):
        opt.step()
    with refused("BOUNDARY", "flush\\(\\) while a backward\\(\\) has not been pushed"):
        opt.flush()
    opt.zero_grad()
    backward(m)
    opt.step()


def test_more_micro_batches_than_micro_size(endpoint):
    m = model()
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=2, boundary="step") as opt:
        with refused("NO_GRADIENT", "step\\(\\) without a backward"):
            opt.step()
        backward(m)
        backward(m)
        with refused("WINDOW_FULL", "at most micro_size = 2", "larger micro_size"):
            backward(m)


def test_a_parameter_that_somebody_changes(trained):
    m, opt = trained
    with torch.no_grad():
        m[0].weight.copy_(m[0].weight.clone())  # the same value: nothing is lost
    backward(m)
    opt.step()
    with torch.no_grad():
        m[0].weight.mul_(0.5)
    backward(m)
    with refused("PARAMETER_CHANGED", "0.weight was changed in place"):
        opt.step()


def test_a_parameter_changed_before_the_first_micro_batch(trained):
    m, opt = trained
    m.load_state_dict(model(seed=5).state_dict())
    backward(m)
    with refused("PARAMETER_CHANGED", "was changed in place", "before the Optimizer is made"):
        opt.step()


def test_a_model_that_is_converted(trained):
    m, opt = trained
    m.bfloat16()
    with refused("PARAMETER_CHANGED", "torch.float32 when .* torch.bfloat16 now"):
        backward(m)


def test_a_frozen_parameter_that_is_to_be_trained(endpoint):
    m = model()
    m[0].requires_grad_(False)
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=1) as opt:
        backward(m)
        opt.step()
        m[0].requires_grad_(True)
        backward(m)
        with refused("NOT_SUPPORTED", "0.weight was frozen"):
            opt.step()


def test_learning_rates_that_a_job_cannot_have(endpoint):
    m = model()
    groups = [{"params": list(m[0].parameters())}, {"params": list(m[3].parameters()), "lr": 0.2}]
    with gacc.torch.Optimizer(groups, "sgd", lr=0.1, micro_size=2) as opt:
        opt.param_groups[1]["lr"] = 0.3
        backward(m)
        with refused("NOT_SUPPORTED", "learning rate of group 1 is 0.3", "2 times the base"):
            opt.step()
        opt.param_groups[1]["lr"] = 0.2
        opt.step()
        for g in opt.param_groups:
            g["lr"] /= 2
        backward(m)
        with refused("LR_MISMATCH", "0.05", "0.1"):
            opt.step()
        for g in opt.param_groups:
            g["lr"] *= 2
        opt.step()
        opt.param_groups[0]["weight_decay"] = 0.1
        backward(m)
        with refused("NOT_SUPPORTED", "weight_decay of group 0 was 0.0 and is 0.1"):
            opt.step()


def test_one_cycle_with_momentum(endpoint):
    m = model()
    with gacc.torch.Optimizer(m, "adamw", lr=0.1, micro_size=2) as opt:
        torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=4)
        backward(m)
        with refused("NOT_SUPPORTED", "betas of group 0", "cycle_momentum=False"):
            opt.step()


def test_clipping_elsewhere(trained):
    m, opt = trained
    with refused("CLIP_MISMATCH", "clipping at 1, and the job has clip_norm 0", "clip_norm=1"):
        opt.clip_grad_norm_(1.0)


def test_sparse_gradients(endpoint):
    m = torch.nn.Embedding(5, 3, sparse=True)
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=1):
        with refused("NOT_SUPPORTED", "the gradient of weight is sparse", "sparse=False"):
            m(torch.tensor([1, 2])).sum().backward()


def test_copies_and_new_groups(trained):
    m, opt = trained
    with refused("NOT_SUPPORTED", "second rank"):
        copy.deepcopy(opt)
    with refused("NOT_SUPPORTED", "state_dict"):
        pickle.dumps(opt)
    with refused("NOT_SUPPORTED", "add_param_group"):
        opt.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    ema = copy.deepcopy(m)  # has no hooks
    loss_of(ema, batch(0, 0)).backward()
    assert ema[0].weight.grad is not None and not opt._gradients.touched


def test_torchs_grad_scaler(trained):
    m, opt = trained
    with refused("NOT_SUPPORTED", "gacc.torch.GradScaler"):
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(m, batch(0, 0))).backward()
        scaler.step(opt)


def test_a_forked_child(trained):
    m, opt = trained
    backward(m)

    def say():
        try:
            opt.step()
            return "done"
        except gacc.GaccError as e:
            return e.reason
    assert said_by_a_fork(say) == "FORKED"
    opt.step()


@pytest.mark.parametrize("params, how, reason, texts", [
    (lambda: model().double(), {}, "NOT_SUPPORTED", ["0.weight is torch.float64", "convert"]),
    (lambda: model(), {"betas": (0.9, 0.99)}, "INVALID_ARGUMENT", ["sgd has no betas"]),
    (lambda: model(), {"optimizer": "adagrad"}, "INVALID_ARGUMENT", ["no optimizer 'adagrad'", "client"]),
    (lambda: model(), {"micro_size": None}, "INVALID_ARGUMENT", ["micro_size is not given"]),
    (lambda: model(), {"boundary": "micro"}, "INVALID_ARGUMENT", ["count or step"]),
    (lambda: model(), {"rank": 0, "world": 2}, "INVALID_ARGUMENT", ["does not know its job", "job="]),
    (lambda: [], {}, "INVALID_ARGUMENT", ["no parameter requires a gradient"]),
    (lambda: [{"params": model().parameters(), "eps": 1e-4}], {}, "NOT_SUPPORTED", ["its own eps"]),
    (lambda: [p for m in (model(), model()) for p in m.named_parameters()], {}, "INVALID_ARGUMENT", ["two parameters are named 0.weight"]),
])
def test_arguments(endpoint, params, how, reason, texts):
    with refused(reason, *texts):
        gacc.torch.Optimizer(params(), **{"optimizer": "sgd", "lr": 0.1, "micro_size": 2, **how})


def test_a_wrapped_model(endpoint):
    class DistributedDataParallel(torch.nn.Module):  # a real one needs a process group: test_accelerate.py has one
        pass
    with refused("NOT_SUPPORTED", "all-reduces gradients inside the window", "GACC_RANK"):
        gacc.torch.Optimizer(DistributedDataParallel(), "sgd", lr=0.1, micro_size=1)


@pytest.mark.parametrize("how, text", [
    ({"micro_size": 3}, "micro_size is 3 here and 2 in the job"), ({"clip_norm": 1.0}, "clip_norm is 1.0 here and 0.0 in the job"),
    ({"optimizer": "adam"}, "optimizer.type is adam here and sgd"), ({"momentum": 0.9}, "optimizer.momentum is 0.9 here and 0.0"), ({"reduction": "sum"}, "reduction"),
])
def test_a_job_that_is_another_one(endpoint, how, text):
    job = fresh_name()
    with gacc.torch.Optimizer(model(), "sgd", lr=0.1, micro_size=2, job=job, rank=0, world=2) as opt:
        assert opt.clip_norm == 0
        with refused("SPEC_MISMATCH", text, job):
            gacc.torch.Optimizer(model(), **{"optimizer": "sgd", "lr": 0.1, "micro_size": 2, "job": job, "rank": 1, "world": 2, **how})
        gacc.torch.Optimizer(model(), lr=0.1, job=opt.session.job_id, rank=1, world=2).close()  # takes the job as it is


def test_states(endpoint, trained, tmp_path):
    """A state is where the job stands; loading compares, and takes learning rates alone."""
    m, opt = trained
    opt.param_groups[0]["lr"] = 0.05
    backward(m)
    opt.step()
    state = opt.state_dict()
    assert state["state"] == {} and state["gacc"] == {"job": opt.session.job_id, "window": 0, "applied_step": 0, "missing": [1]}
    torch.save(state, tmp_path / "state")
    backward(m)
    opt.step()
    opt.param_groups[0]["lr"] = 0.1
    opt.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert opt.param_groups[0]["lr"] == 0.05 and opt.window == 1 and opt.missing == [0, 1]
    with refused("STATE_MISMATCH", "state is of step 7, and the job is at step 1"):
        opt.load_state_dict({**state, "gacc": {**state["gacc"], "applied_step": 7}})
    with refused("STATE_MISMATCH", "not the state of a gacc.torch.Optimizer"):
        opt.load_state_dict(torch.optim.SGD(m.parameters(), lr=0.1).state_dict())
    with gacc.torch.Optimizer(model(), "sgd", lr=0.1, micro_size=2) as other:
        with refused("STATE_MISMATCH", "state of job [0-9]+, and"):
            other.load_state_dict(state)
