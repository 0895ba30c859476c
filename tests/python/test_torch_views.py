# SPDX-License-Identifier: Apache-2.0
"""Optimizer(parameters="view"): the same bits as with copies, also over a restart of gaccd, and an error before a write that would be SIGSEGV."""
import copy
import io
import signal

import pytest
import torch
from harness import Daemon, wait_until

from loops import batch, fresh_name, gacc, loss_of, model, refused
from ranks import Rank


def train(parameters, dtype, windows=6, job=None, boundary="count"):
    """The parameters' bits after each window, as the model has them."""
    torch.set_num_threads(1)
    m, seen = model(dtype=dtype), []
    with gacc.torch.Optimizer(m, "adamw", lr=0.02, micro_size=3, clip_norm=0.7, job=job, boundary=boundary, parameters=parameters) as opt:
        for w in range(windows):
            for i in range(3):
                loss = loss_of(m, batch(w, i))
                loss.backward()
                if boundary == "count":
                    opt.step(loss=loss)
            if boundary == "step":
                opt.step()
            assert opt.stepped
            seen.append([p.detach().view(torch.int16 if dtype == torch.bfloat16 else torch.int32).clone().numpy() for p in m.parameters()])
            if parameters == "view":
                held = opt.session.parameters
                assert all(p.data_ptr() == held[n].__array_interface__["data"][0] for n, p in m.named_parameters()), "a copy"
    seen.append([p.detach().float().numpy() for p in m.parameters()])
    return seen


def same(a, b):
    return len(a) == len(b) and all((x == y).all() for v, w in zip(a, b) for x, y in zip(v, w))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("boundary", ["count", "step"])
def test_the_bits_of_copies(endpoint, dtype, boundary):
    copies, views = [train(p, dtype, boundary=boundary) for p in ("copy", "view")]
    assert same(copies, views) and not (copies[0][0] == copies[1][0]).all()


@pytest.mark.parametrize("which", ["gaccd", "engine"])
def test_a_restart(node, which):
    """Memory that comes to the place of the old one is seen by the model."""
    copies = Rank(node, train, "copy", torch.bfloat16, 300).result()
    with Daemon(supervise=True) as d:
        rank = Rank(d, train, "view", torch.bfloat16, 300, fresh_name())
        wait_until("a window", lambda: d.client.jobs.List().jobs and d.get_job(1).window >= 1, 60)
        d.kill_gaccd() if which == "gaccd" else d.kill_engine(1)
        assert same(rank.result(), copies)


@pytest.fixture
def viewed(endpoint):
    m = model()
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=1, parameters="view") as opt:
        yield m, opt


WRITES = {
    "copy_": lambda p: p.copy_(torch.zeros_like(p)), "add_": lambda p: p.add_(1), "+=": lambda p: p.__iadd__(1), "[]": lambda p: p.__setitem__(0, 1.0),
    "init": lambda p: torch.nn.init.zeros_(p), "normal": lambda p: torch.nn.init.normal_(p), "out": lambda p: torch.add(p, p, out=p),
    "foreach": lambda p: torch._foreach_add_([p], 1.0), "SGD": lambda p: sgd(p, foreach=False),
    "SGD, foreach": lambda p: sgd(p, foreach=True)}


def sgd(p, **how):
    p.grad = torch.zeros_like(p.detach())
    torch.optim.SGD([p], lr=0.1, **how).step()


@pytest.mark.parametrize("write", WRITES)
def test_a_write(viewed, write):
    before = [p.detach().clone() for p in viewed[0].parameters()]
    with refused("PARAMETER_CHANGED", 'parameters="view"', "cannot be written to"), torch.no_grad():
        WRITES[write](next(viewed[0].parameters()))
    assert all(torch.equal(a, b) for a, b in zip(before, viewed[0].parameters()))


def test_load_state_dict(viewed):
    with pytest.raises(RuntimeError, match='parameters="view"'):  # torch packs what goes wrong
        viewed[0].load_state_dict(model(1).state_dict())


@pytest.mark.parametrize("how", ["data", "set_"])
def test_other_memory(viewed, how):
    p = next(viewed[0].parameters())
    if how == "data":
        p.data = torch.zeros_like(p)
    else:
        with torch.no_grad():
            p.set_(torch.zeros_like(p))
    loss_of(viewed[0], batch(0, 0)).backward()
    with refused("PARAMETER_CHANGED", "parameter 0.weight has other memory"):
        viewed[1].step()


def test_a_graph_from_before_the_step(viewed):
    m, opt = viewed
    old = loss_of(m, batch(0, 0))
    loss_of(m, batch(0, 1)).backward()
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        old.backward()


def test_copies_of_the_model_are_its_own(viewed):
    m, opt = viewed
    saved = io.BytesIO()
    torch.save(m.state_dict(), saved)
    saved.seek(0)
    other = copy.deepcopy(m)
    other.load_state_dict(torch.load(saved))
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1)
    assert all(torch.equal(a + 1, b) and type(b) is torch.nn.Parameter for a, b in zip(m.parameters(), other.parameters()))
    m.requires_grad_(True)
    x = torch.zeros(16, 6)
    assert torch.equal(x.add_(m[0].weight), m[0].weight) and type(m[0].weight + 1) is torch.Tensor
    opt.close()
    assert all(type(p) is torch.nn.Parameter for p in m.parameters())
    m.load_state_dict(other.state_dict())


def wild():
    m = model()
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=1, parameters="view"):
        m[0].weight.data.zero_()


def test_what_is_not_seen_is_no_silent_change(node):
    """docs/python.md says so: a write to .data."""
    assert Rank(node, wild).ended() == -signal.SIGSEGV


def test_where_it_cannot_be(endpoint):
    class Mine(torch.nn.Parameter):
        pass
    m = model()
    with refused("INVALID_ARGUMENT", "copy or view"):
        gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=1, parameters="views")
    with refused("NOT_SUPPORTED", "session has messages", 'parameters="copy"'):
        gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=1, parameters="view", attach={"shared_memory": False})
    m[0].weight = Mine(m[0].weight.detach())
    with refused("NOT_SUPPORTED", "0.weight is a Mine"):
        gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=1, parameters="view")
