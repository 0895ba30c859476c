# SPDX-License-Identifier: Apache-2.0
"""gacc for PyTorch: an optimizer whose sums, state and step are the daemon's. docs/python.md, section PyTorch, is the guide.

    opt = gacc.torch.Optimizer(model, "adamw", lr=1e-3, micro_size=8)
    for x, y in loader:
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step(weight=len(x), loss=loss)  # every micro-batch; the eighth one takes the step
    opt.flush()                             # a short last window

Needs torch 2.1 or newer.
"""
from __future__ import annotations

from .fused import fuse
from .optimizer import Optimizer
from .sampler import Sampler
from .scaler import GradScaler
from .state import TrainerState

__all__ = ["GradScaler", "Optimizer", "Sampler", "TrainerState", "fuse"]
