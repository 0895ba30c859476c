# SPDX-License-Identifier: Apache-2.0
"""Small models, their data, and the yardstick: the same loop in plain torch, in f64 and in f32.

gacc's f32 must be as near to torch's f64 as torch's own f32 is: at most 1.5 times its error, and 1e-7.
"""
import contextlib
import copy
import itertools
import os
import threading

import pytest
import torch
from python_package import gacc  # noqa: F401
import gacc.torch  # noqa: E402

FEATURES = 6
_names = itertools.count()


def fresh_name():
    return f"torch-{os.getpid()}-{next(_names)}"


def model(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 16), torch.nn.Tanh(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 2)).to(dtype)


def batch(*key):
    """(x, y), with a random number of rows: a function of `key`."""
    drawn = torch.Generator().manual_seed(hash((7,) + key) & (1 << 60) - 1)
    rows = int(torch.randint(1, 9, (), generator=drawn))
    return torch.randn(rows, FEATURES, generator=drawn), torch.randn(rows, 2, generator=drawn)


def loss_of(m, b):
    x, y = (t.to(next(m.parameters()).dtype) for t in b)
    return torch.nn.functional.mse_loss(m(x), y)


def plain(m, make, windows, clip=0.0, scheduler=None, skipped=(), loss=loss_of, weight=lambda b: len(b[0])):
    """The loop without gacc: one step of the true mean over a window. `loss`: mean of a batch, over `weight` rows or tokens. Returns (norm, learning rate,
    loss) for each window."""
    opt = make(m.parameters())
    sched = scheduler(opt) if scheduler else None
    told = []
    for i, window in enumerate(windows):
        if i in skipped:
            continue
        opt.zero_grad()
        rows, mean = sum(weight(b) for b in window), 0.0
        for b in window:
            part = loss(m, b) * weight(b) / rows
            part.backward()
            mean += part.item()
        norm = torch.nn.utils.clip_grad_norm_(m.parameters(), clip or float("inf")).item()
        told.append((norm, opt.param_groups[0]["lr"], mean))
        opt.step()
        if sched:
            sched.step()
    return told


def difference(a, b):
    return max((p.detach().double() - q.detach().double()).abs().max().item() for p, q in zip(a.parameters(), b.parameters()))


def check(got, start, make, windows, **how):
    """`got` after training from `start`, against plain torch. Returns what the f64 loop tells."""
    exact, single = copy.deepcopy(start).double(), copy.deepcopy(start).float()
    told = plain(exact, make, windows, **how)
    plain(single, make, windows, **how)
    mine, torchs = difference(got, exact), difference(single, exact)
    assert mine <= 1.5 * torchs + 1e-7, f"{mine:.2e} from f64, torch's f32 {torchs:.2e}"
    assert difference(got, start) > 1e-3, "nothing was trained"
    return told


def decay(o):
    return torch.optim.lr_scheduler.LambdaLR(o, lambda e: 1 / (1 + e))


def against_plain_torch(state, told, windows, skipped):
    """What an adapter's loop ended with and logged, against plain torch's: SGD with lr 0.1 and momentum 0.9, decay(), clipping at 0.7. `told`: (norm, lr,
    whether it was skipped, mean loss) for each window."""
    got, begin = model(), model()
    got.load_state_dict({n: torch.from_numpy(v) for n, v in state.items()})
    wanted = check(got, begin, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), windows, clip=0.7, scheduler=decay, skipped=skipped)
    applied = [t for t in told if not t[2]]
    assert [t[2] for t in told] == [i in skipped for i in range(len(told))]
    seen = [(norm, lr, loss) for norm, lr, _, loss in applied]
    assert seen == [pytest.approx(w, rel=1e-5) for w in wanted[:len(applied)]]
    assert min(norm for norm, _, _ in wanted) > 0.7, "clipping bites"


@contextlib.contextmanager
def refused(reason, *texts):
    """The block must raise a GaccError with this reason, whose text has all of these (regular expressions, in this order)."""
    with pytest.raises(gacc.GaccError, match=".*".join(texts)) as e:
        yield
    assert e.value.reason == reason, e.value


def in_threads(ranks, train):
    """train(rank) in a thread each; their results."""
    results, errors = [None] * ranks, []

    def run(r):
        try:
            results[r] = train(r)
        except BaseException as e:
            errors.append(e)
    threads = [threading.Thread(target=run, args=(r,)) for r in range(ranks)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    if errors:
        raise errors[0]
    return results


torch.optim.SGD([torch.zeros(1)], lr=0)  # imports what is left of torch, before processes are forked
