# SPDX-License-Identifier: Apache-2.0
"""A model with one weight, 0 at first, whose gradients are the data: with lr 1 the weight is minus the sum of what the steps were made of."""
import contextlib
import threading

import torch
from loops import gacc, in_threads


def scalar():
    m = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(m.weight)
    return m


def mean(m, values):
    """A loss whose gradient is the mean of these numbers."""
    return m(torch.tensor(values, dtype=torch.float32)[:, None]).mean()


def optimizer(m, k, **how):
    return gacc.torch.Optimizer(m, "sgd", lr=1.0, micro_size=k, **how)


def plain_torch(windows, divisor=None):
    """What plain torch makes of windows of micro-batches, dividing each mean by `divisor`, or by the number of micro-batches."""
    m = scalar()
    opt = torch.optim.SGD(m.parameters(), lr=1.0)
    for window in windows:
        for values in window:
            (mean(m, values) / (divisor or len(window))).backward()
        opt.step()
        opt.zero_grad()
    return m.weight.item()


def ranks(n, train, k, job, make=scalar, **how):
    """train(opt, m, rank) in a thread for each rank of a new job; [(what it returns, model)]. All have attached before the first one trains."""
    attached, models = threading.Barrier(n), [make() for _ in range(n)]  # not in threads: torch has one random generator

    def run(rank):
        m = models[rank]
        with contextlib.closing(optimizer(m, k, job=job, rank=rank, world=n, **how)) as opt:
            attached.wait(60)
            return train(opt, m, rank), m
    return in_threads(n, run)
