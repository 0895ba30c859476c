# SPDX-License-Identifier: Apache-2.0
"""fuse(model): linear layers whose backward writes the gradient of their weight straight into the slot, so that it is never anywhere else.

Where that cannot be, the gradient is torch's own and the hooks of gradients.py copy it: see _is_plain(), _accumulates() and Gradients.write().
"""
from __future__ import annotations

from typing import Any, Optional

import torch

from ..errors import GaccError
from .optimizer import write_gradient


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor]) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.leaf = weight  # with checkpointing what is saved may be another tensor of the same memory
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        of_x = grad.matmul(weight) if ctx.needs_input_grad[0] else None
        of_bias = rows.sum(0) if ctx.needs_input_grad[2] else None
        of_weight = None
        if ctx.needs_input_grad[1]:
            inputs = x.reshape(-1, x.shape[-1])
            if not (_accumulates(ctx.next_functions[1][0]) and write_gradient(ctx.leaf, rows, inputs)):
                of_weight = rows.t().mm(inputs)
        return of_x, of_weight, of_bias


def _accumulates(node: Any) -> bool:
    """The backward that runs is going to add to this leaf's gradient: not autograd.grad(), nor one whose graph is to be differentiated again, nor
    backward(inputs=..) for others."""
    if torch.is_grad_enabled() or node is None:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # autograd.grad() for this leaf
        return False


def _is_plain(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """torch's own function is called: the weight is computed from others, or is in another type than the input, as with autocast; or dynamo, torch.func
    or forward-mode differentiation is at work, which would each need more than a backward."""
    return (not weight.requires_grad or not weight.is_leaf or x.dtype != weight.dtype or x.dim() < 2 or x.layout is not torch.strided
            or torch.is_autocast_enabled(x.device.type) or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
            or torch.autograd.forward_ad._current_level >= 0)


class FusedLinear(torch.nn.Linear):
    """What fuse() makes of a torch.nn.Linear. Its parameters, their names and its results are the same."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if _is_plain(x, self.weight):
            return super().forward(x)
        return _Linear.apply(x, self.weight, self.bias)


def fuse(model: torch.nn.Module) -> torch.nn.Module:
    """Changes all torch.nn.Linear of the model, before or after the Optimizer is made, and returns it. Subclasses of Linear stay as they are: nobody
    knows what their forward does."""
    layers = [m for m in model.modules() if type(m) is torch.nn.Linear]
    if not layers and not any(isinstance(m, FusedLinear) for m in model.modules()):
        raise GaccError("fuse: the model has no torch.nn.Linear", reason="INVALID_ARGUMENT", hint="leave it out")
    for m in layers:
        m.__class__ = FusedLinear
    return model
