# SPDX-License-Identifier: Apache-2.0
"""gacc.torch.fuse(): linear layers whose backward writes to the slot, against the same loop in plain torch; and where it must not."""
import contextlib
import copy
import math
import pickle

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from loops import FEATURES, batch, check, difference, fresh_name, gacc, in_threads, loss_of, model
from test_torch import COUNTS, plain_loop, windows_of

ADAMW = dict(lr=0.02, weight_decay=0.1)


@contextlib.contextmanager
def taken(opt):
    """Names of the parameters whose gradients were tensors of their own."""
    names, take = [], type(opt._gradients).take

    def note(self, i, p):
        names.extend([self.names[i]] if p.grad is not None else [])
        take(self, i, p)
    type(opt._gradients).take = note
    try:
        yield names
    finally:
        type(opt._gradients).take = take


@pytest.mark.parametrize("parameters", ["copy", "view"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_plain_loop(endpoint, ranks, parameters):
    """Uneven windows; the slots have NaN before, which nobody reads."""
    job, begin = fresh_name(), model()

    def train(rank):
        m = gacc.torch.fuse(copy.deepcopy(begin))
        with gacc.torch.Optimizer(m, "adamw", micro_size=4, job=job, rank=rank, world=ranks, parameters=parameters, **ADAMW) as opt:
            for i in range(opt.session.slots):
                for place in opt.session.slot(i).values():
                    place[...] = math.nan
            with taken(opt) as names:
                plain_loop(opt, m, rank, COUNTS[rank])
            opt.finish()
        return m, set(names)
    trained = in_threads(ranks, train)
    for m, names in trained:
        assert names == {"0.bias", "2.weight", "2.bias", "3.bias"}
        assert difference(m, trained[0][0]) == 0
    check(trained[0][0], begin, lambda p: torch.optim.AdamW(p, **ADAMW), windows_of(COUNTS[:ranks]))


class Shared(torch.nn.Module):
    """An embedding that is also the head, a layer that is called twice, one without a bias, and three dimensions."""
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.emb, self.twice, self.bare = torch.nn.Embedding(11, 6), torch.nn.Linear(6, 6), torch.nn.Linear(6, 6, bias=False)
        self.head = torch.nn.Linear(6, 11, bias=False)
        self.head.weight = self.emb.weight
        self.reentrant = None

    def body(self, h):
        return torch.tanh(self.bare(torch.tanh(self.twice(torch.tanh(self.twice(h))))))

    def forward(self, t):
        h = self.emb(t)
        h = self.body(h) if self.reentrant is None else checkpoint(self.body, h, use_reentrant=self.reentrant)
        return self.head(h)


def tokens(i):
    drawn = torch.Generator().manual_seed(i)
    return torch.randint(0, 11, (2 + i % 3, 5), generator=drawn)


def token_loss(m, t):
    return torch.nn.functional.cross_entropy(m(t[:, :-1]).flatten(0, 1), t[:, 1:].flatten())


@pytest.mark.parametrize("reentrant", [None, False, True], ids=["plain", "checkpoint", "reentrant"])
def test_layers_that_are_used_twice_and_tied_ones(endpoint, reentrant):
    begin = Shared()
    m = copy.deepcopy(begin)
    m.reentrant = reentrant
    batches = [tokens(i) for i in range(6)]
    with gacc.torch.Optimizer(m, "sgd", lr=0.5, micro_size=3) as opt:
        gacc.torch.fuse(m)  # after the Optimizer is made
        with taken(opt) as names:
            for t in batches:
                loss = token_loss(m, t)
                loss.backward()
                opt.step(weight=t[:, 1:].numel(), loss=loss)
    assert set(names) == {"emb.weight", "twice.bias"}  # the head's is there before the embedding's is added
    check(m, begin, lambda p: torch.optim.SGD(p, lr=0.5), [batches[:3], batches[3:]], loss=token_loss, weight=lambda t: t[:, 1:].numel())


def test_a_window_that_its_loop_divides(endpoint):
    """boundary "step": the scale of gradients is that of micro(), and the end of a backward is seen although no hook of a parameter is called for it."""
    begin = torch.nn.Sequential(torch.nn.Linear(FEATURES, 4, bias=False), torch.nn.Linear(4, 2, bias=False))
    m = gacc.torch.fuse(copy.deepcopy(begin))
    batches = [batch(0, i) for i in range(6)]
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=3, boundary="step") as opt:
        with taken(opt) as names:
            for i, b in enumerate(batches):
                opt.micro(weight=len(b[0]), scale=3)
                (loss_of(m, b) / 3).backward()
                if i % 3 == 2:
                    opt.step()
        assert not names
    check(m, begin, lambda p: torch.optim.SGD(p, lr=0.1), [batches[:3], batches[3:]])


@pytest.fixture
def one(endpoint):
    m = gacc.torch.fuse(torch.nn.Sequential(torch.nn.Linear(FEATURES, 4), torch.nn.Linear(4, 2)))
    with gacc.torch.Optimizer(m, "sgd", lr=1.0, micro_size=1) as opt:
        yield m, opt


def plain_copy(m):
    """Of the same layers, not fused and without an Optimizer."""
    other = torch.nn.Sequential(*(torch.nn.Linear(layer.in_features, layer.out_features) for layer in m))
    other.load_state_dict(m.state_dict())
    return other


def test_gradients_that_are_asked_for_are_given(one):
    """autograd.grad(), of inputs and of weights, and backward(inputs=..) leave the slot alone."""
    m, opt = one
    x, y = torch.randn(3, FEATURES, requires_grad=True), torch.randn(3, 2)
    for wanted in ([x], [m[0].weight, m[1].weight], [x, m[0].weight]):
        got = torch.autograd.grad(loss_of(m, (x, y)), wanted)
        other = plain_copy(m)
        same = {id(x): x, id(m[0].weight): other[0].weight, id(m[1].weight): other[1].weight}
        for a, b in zip(got, torch.autograd.grad(loss_of(other, (x, y)), [same[id(w)] for w in wanted])):
            torch.testing.assert_close(a, b)
        assert not opt._gradients.touched
    loss_of(m, (x, y)).backward(inputs=[x])
    assert not opt._gradients.touched and x.grad is not None
    loss_of(m, (x, y)).backward(inputs=[m[1].weight])
    assert opt._gradients.touched == {2}
    opt.zero_grad()


def test_a_penalty_on_gradients(one):
    """Second derivatives: the graph of the first ones is torch's own."""
    m, opt = one
    other = plain_copy(m)
    x = torch.randn(3, FEATURES)
    for one_of in (m, other):
        t = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(torch.tanh(one_of(t)).sum(), t, create_graph=True)
        (torch.tanh(one_of(t)).sum() + g.pow(2).sum()).backward()
    before = [p.detach().clone() for p in m.parameters()]
    opt.step()
    results = [b - p.detach() for b, p in zip(before, m.parameters())]
    for a, p in zip(results, other.parameters()):
        torch.testing.assert_close(a, torch.zeros_like(p) if p.grad is None else p.grad, rtol=1e-5, atol=1e-6)


def test_a_graph_of_the_backward_itself(one):
    m, opt = one
    with taken(opt) as names:
        loss_of(m, batch(3)).backward(create_graph=True)
    assert {"0.weight", "1.weight"} <= set(names)
    other = plain_copy(m)
    loss_of(other, batch(3)).backward()
    before = [p.detach().clone() for p in m.parameters()]
    opt.step()
    for b, p, q in zip(before, m.parameters(), other.parameters()):
        torch.testing.assert_close(b - p.detach(), q.grad, rtol=1e-5, atol=1e-6)


def test_who_wants_to_see_a_gradient_sees_it(one):
    m, opt = one
    seen = []
    handles = [m[0].weight.register_hook(seen.append), m[1].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p))]
    with taken(opt) as names:
        loss_of(m, batch(1)).backward()
        assert len(seen) == 2 and {"0.weight", "1.weight"} <= set(names)
        opt.step()
    for h in handles:
        h.remove()
    with taken(opt) as names:
        loss_of(m, batch(2)).backward()
        assert not {"0.weight", "1.weight"} & set(names)
    opt.zero_grad()


def test_autocast_and_other_types_are_torchs_own(one):
    m, opt = one
    with taken(opt) as names:
        with torch.autocast("cpu", torch.bfloat16):
            loss = m(torch.randn(3, FEATURES)).float().sum()
        loss.backward()
        assert {"0.weight", "1.weight"} <= set(names)
    opt.zero_grad()


def test_compiled_layers_are_torchs_own(one):
    m, opt = one
    compiled, b = torch.compile(m, backend="eager"), batch(4)
    with taken(opt) as names:
        loss_of(compiled, b).backward()
        assert {"0.weight", "1.weight"} <= set(names)
    opt.zero_grad()


def test_other_ways_to_differentiate_are_torchs_own(one):
    """torch.func and forward mode, inside a window."""
    m, opt = one
    other, (x, y) = plain_copy(m), batch(6)

    def gradients(layers):
        values = {n: p.detach() for n, p in other.named_parameters()}
        return torch.func.grad(lambda v: torch.nn.functional.mse_loss(torch.func.functional_call(layers, v, (x,)), y))(values)
    torch.testing.assert_close(gradients(m), gradients(other))
    torch.testing.assert_close(torch.vmap(m)(x[:, None]), other(x)[:, None])
    torch.testing.assert_close(torch.func.jvp(m, (x,), (x,)), torch.func.jvp(other, (x,), (x,)))
    with torch.autograd.forward_ad.dual_level():
        out = torch.autograd.forward_ad.unpack_dual(m(torch.autograd.forward_ad.make_dual(x, x)))
    torch.testing.assert_close(out.tangent, torch.func.jvp(other, (x,), (x,))[1])
    assert not opt._gradients.touched


def test_slots_of_another_type(endpoint):
    m = gacc.torch.fuse(torch.nn.Linear(FEATURES, 2, bias=False))
    torch.nn.init.zeros_(m.weight)
    with gacc.torch.Optimizer(m, "sgd", lr=1.0, micro_size=1, spec={"gradient_dtype": "bf16"}) as opt:
        m(torch.full((1, FEATURES), 1 + 2.0 ** -9)).sum().backward()
        opt.step()
    assert (m.weight == -1).all()


def test_16_bits(endpoint):
    m = gacc.torch.fuse(torch.nn.Linear(FEATURES, 2, bias=False, dtype=torch.bfloat16))
    torch.nn.init.zeros_(m.weight)
    with gacc.torch.Optimizer(m, "sgd", lr=1.0, micro_size=1) as opt, taken(opt) as names:
        m(torch.ones(3, FEATURES, dtype=torch.bfloat16)).sum().backward()
        opt.step()
        assert not names
    assert (m.weight == -3).all()


def test_without_an_optimizer_they_are_layers_as_others():
    """Also when it has been closed, and in copies."""
    m = gacc.torch.fuse(torch.nn.Sequential(torch.nn.Linear(FEATURES, 4), torch.nn.Linear(4, 2)))
    copies = [m, copy.deepcopy(m), pickle.loads(pickle.dumps(m))]
    b, other = batch(5), plain_copy(m)
    loss_of(other, b).backward()
    for c in copies:
        loss_of(c, b).backward()
        assert list(c.state_dict()) == list(other.state_dict()) and all(isinstance(layer, torch.nn.Linear) for layer in c)
        for p, q in zip(c.parameters(), other.parameters()):
            torch.testing.assert_close(p.grad, q.grad)


def test_after_its_optimizer(endpoint):
    m = gacc.torch.fuse(torch.nn.Sequential(torch.nn.Linear(FEATURES, 2)))
    with gacc.torch.Optimizer(m, "sgd", lr=1.0, micro_size=1) as opt:
        pass
    loss_of(m, batch(1)).backward()
    assert m[0].weight.grad is not None and not opt._gradients.touched


def test_what_is_not_fused():
    class Own(torch.nn.Linear):
        pass
    with pytest.raises(gacc.GaccError, match="no torch.nn.Linear"):
        gacc.torch.fuse(torch.nn.Sequential(Own(2, 2), torch.nn.Tanh()))
    m = gacc.torch.fuse(torch.nn.Sequential(torch.nn.Linear(2, 2), Own(2, 2)))
    assert gacc.torch.fuse(m) is m and type(m[1]) is Own
