# SPDX-License-Identifier: Apache-2.0
"""gacc for Hugging Face Accelerate, 1.x.

    opt = gacc.torch.Optimizer(model, "adamw", lr=1e-3, micro_size=8)    # micro_size: at least gradient_accumulation_steps
    model, opt, loader, scheduler = accelerator.prepare(model, opt, loader, scheduler)
    gacc.accelerate.attach(accelerator, opt)

The loop stays as it is: `with accelerator.accumulate(model)`, accelerator.backward, accelerator.clip_grad_norm_, step.
"""
from __future__ import annotations

import functools
from typing import Any

from .errors import GaccError
from .torch.optimizer import Optimizer
from .torch.wrapped import ALREADY_REDUCED, WHOLE, refuse_wrapped, stop_reducing

SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM")  # of accelerate.utils.DistributedType


def unwrapped(opt: Any) -> Optimizer:
    """The gacc.torch.Optimizer in a library's wrapper."""
    inner = opt
    while not isinstance(inner, Optimizer) and hasattr(inner, "optimizer"):
        inner = inner.optimizer
    if not isinstance(inner, Optimizer):
        raise GaccError(f"not a gacc.torch.Optimizer but a {type(opt).__name__}", reason="INVALID_ARGUMENT")
    return inner


def attach(accelerator: Any, opt: Any) -> Optimizer:
    """Makes an Accelerator train with this optimizer; before or after prepare(), and before the first backward().

    * Each accelerator.backward() is a micro-batch; opt.step() closes the window, also a short one at the end of the data. opt.micro(weight=tokens), said
      before backward(), weighs it.
    * Accelerate's division by gradient_accumulation_steps is undone as gradients are copied, and the daemon divides by the true weight.
    * accelerator.clip_grad_norm_ answers with the daemon's norm; its max_norm must be the Optimizer's clip_norm, or inf.
    * A window that was skipped counts as an overflow: accelerator.optimizer_step_was_skipped, and the scheduler stays where it is.
    * accelerator.end_training() waits for ranks that have more data: opt.finish().

    Ranks are processes with GACC_RANK and GACC_WORLD_SIZE, and no process group: data are dealt by gacc.torch.Sampler. With
    Optimizer(.., ddp=True) they are Accelerate's process group, which deals data as ever; gradients are what its DDP would make of them, and the division
    stays. Returns the Optimizer.
    """
    inner = unwrapped(opt)
    if accelerator.distributed_type.value in SHARDED:
        raise GaccError(f"Accelerate trains by {accelerator.distributed_type.value}, which has the gradients and the step itself", reason="NOT_SUPPORTED",
                        hint=WHOLE)
    if accelerator.num_processes > 1 and not inner.ddp:
        raise GaccError(f"Accelerate has a process group of {accelerator.num_processes} processes: {ALREADY_REDUCED}", reason="NOT_SUPPORTED",
                        hint="start ranks with GACC_RANK and GACC_WORLD_SIZE, without RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR; "
                             "or keep it with Optimizer(model, .., ddp=True)")
    for model in accelerator._models:
        refuse_wrapped(model, inner.ddp)
    if accelerator.scaler is not None:
        raise GaccError("Accelerate has a GradScaler of its own", reason="NOT_SUPPORTED",
                        hint='mixed_precision="bf16", or gacc.torch.GradScaler without Accelerate')
    inner.close_by_step()
    _wrap_backward(accelerator, inner)
    if inner.ddp:
        _wrap_sync(accelerator)
    wrap_clipping(accelerator, inner)
    _wrap_end(accelerator, inner)

    def tell_skipped(optimizer: Any, args: Any, kwargs: Any) -> None:
        for wrapper in accelerator._optimizers:
            if getattr(wrapper, "optimizer", None) is inner:
                wrapper._is_overflow = not inner.stepped
    inner.register_step_post_hook(tell_skipped)
    return inner


def _wrap_backward(accelerator: Any, opt: Optimizer) -> None:
    original = accelerator.backward

    @functools.wraps(original)
    def backward(loss: Any, **kwargs: Any) -> Any:
        opt.divided_by(accelerator.gradient_accumulation_steps, loss)
        return original(loss, **kwargs)
    accelerator.backward = backward


def _wrap_sync(accelerator: Any) -> None:
    """The DistributedDataParallel that prepare() makes is seen here first. A loop that calls neither lets it reduce gradients that are zero by then."""
    def stopping(original: Any) -> Any:
        @functools.wraps(original)
        def call(*models: Any, **kwargs: Any) -> Any:
            for model in [*models, *kwargs.values()]:
                if getattr(model, "require_backward_grad_sync", False):
                    stop_reducing(model)
            return original(*models, **kwargs)
        return call
    accelerator.accumulate, accelerator.no_sync = stopping(accelerator.accumulate), stopping(accelerator.no_sync)


def wrap_clipping(accelerator: Any, opt: Optimizer) -> None:
    """The Accelerator's two ways to clip."""
    @functools.wraps(accelerator.clip_grad_norm_)
    def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        if float(norm_type) != 2:
            raise GaccError(f"clipping by the {norm_type}-norm; a job clips by the 2-norm", reason="CLIP_MISMATCH")
        if not accelerator.sync_gradients:
            return opt.check_clip_norm(max_norm)  # the window goes on, and is clipped when it is closed
        return opt.clip_grad_norm_(max_norm)

    @functools.wraps(accelerator.clip_grad_value_)
    def clip_grad_value_(parameters: Any, clip_value: float) -> None:
        if float(clip_value) != opt.session.spec.clip_value:
            raise GaccError(f"clipping values at {clip_value:g}, and the job has clip_value {opt.session.spec.clip_value:g}", reason="CLIP_MISMATCH",
                            hint=f'Optimizer(spec={{"clip_value": {clip_value:g}}})')
    accelerator.clip_grad_norm_, accelerator.clip_grad_value_ = clip_grad_norm_, clip_grad_value_


def _wrap_end(accelerator: Any, opt: Optimizer) -> None:
    original = accelerator.end_training

    @functools.wraps(original)
    def end_training(*args: Any, **kwargs: Any) -> Any:
        opt.finish()
        return original(*args, **kwargs)
    accelerator.end_training = end_training
