# SPDX-License-Identifier: Apache-2.0
"""gacc for MindSpore: sums, optimizer state and step are the daemon's. docs/python.md, section MindSpore, is the guide.

    opt = gacc.mindspore.Optimizer(net, "adamw", lr=1e-3, micro_size=4)
    grad_fn = mindspore.value_and_grad(forward, None, opt.parameters)
    for x, y in dataset:
        loss, grads = grad_fn(x, y)
        opt(grads, weight=len(x), loss=loss)        # every micro-batch; the fourth one takes the step
    opt.flush()                                     # a short last window

Accumulator and GradAccumulation are what MindSpore's documentation calls so. Tested with mindspore 2.10 on CPUs.
"""
from __future__ import annotations

from .cells import Accumulator, GradAccumulation
from .optimizer import Optimizer

__all__ = ["Accumulator", "GradAccumulation", "Optimizer"]
