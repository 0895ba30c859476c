# SPDX-License-Identifier: Apache-2.0
"""gacc for transformers' Trainer, 5.0 or later (the tests run 5.23).

    opt = gacc.torch.Optimizer(model, "adamw", lr=2e-5, micro_size=8, clip_norm=1.0)    # micro_size: at least gradient_accumulation_steps
    trainer = Trainer(model, args, optimizers=(opt, scheduler), ...)                    # clip_norm: args.max_grad_norm
    gacc.transformers.attach(trainer)
    trainer.train()
"""
from __future__ import annotations

import functools
from importlib import metadata
from typing import Any, Optional

from .accelerate import attach as attach_accelerator
from .accelerate import unwrapped
from .errors import GaccError
from .torch.optimizer import Optimizer

LEAST = 5  # of transformers


def attach(trainer: Any, opt: Any = None) -> Optimizer:
    """Makes a Trainer train with its gacc.torch.Optimizer (or `opt`, which becomes it). Trainer keeps its counting, its loss and its logs; the daemon
    divides by the labels of all ranks.

    * A micro-batch weighs its labels that are not -100, counted as Trainer counts them. What Trainer has divided the loss by (num_items_in_batch, or the
      number of micro-batches) is undone as gradients are copied.
    * Clipping, skipped windows and ranks: as gacc.accelerate.attach says. global_step counts skipped windows, as Trainer does with fp16.
    * At the end of train() this rank waits for those that have more data.

    Returns the Optimizer.
    """
    version = metadata.version("transformers")
    if int(version.split(".")[0]) < LEAST:  # 4.51, with accelerate 1.15, divides otherwise
        raise GaccError(f"transformers {version} divides losses in another way than this adapter undoes", reason="VERSION_SKEW",
                        hint=f"transformers {LEAST}.0 or later")
    if opt is not None:
        trainer.optimizer = opt
    if trainer.optimizer is None:
        raise GaccError("the Trainer has no optimizer yet", reason="INVALID_ARGUMENT", hint="Trainer(..., optimizers=(opt, scheduler))")
    inner = unwrapped(trainer.optimizer)
    args = trainer.args
    if args.n_gpu > 1:
        raise GaccError("the Trainer uses DataParallel over several GPUs", reason="NOT_SUPPORTED", hint="one process for each GPU: CUDA_VISIBLE_DEVICES")
    if args.max_grad_norm and args.max_grad_norm > 0:
        inner.check_clip_norm(args.max_grad_norm)
    attach_accelerator(trainer.accelerator, inner)
    _wrap_training_step(trainer, inner)
    _finish_at_the_end(trainer, inner)
    return inner


def labels_of(trainer: Any, inputs: Any) -> Optional[float]:
    """How many labels the loss of this micro-batch is the mean of; None: nobody knows. As Trainer counts them for num_items_in_batch."""
    labels = inputs.get("shift_labels")
    if labels is None:
        labels = inputs.get("labels")
        if labels is not None and getattr(trainer, "_loss_shifts_labels", False):
            labels = labels[..., 1:]
    return float(labels.ne(-100).sum().item()) if hasattr(labels, "ne") else None


def divisor(trainer: Any, items: Any, own: Optional[float]) -> float:
    """What Trainer divides this micro-batch's mean loss by, so to speak: its loss is mean * own / items then."""
    scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
    if scaled is None:
        scaled = (trainer.model_accepts_loss_kwargs and items is not None) or trainer.compute_loss_func is not None
    if not scaled:
        return float(getattr(trainer, "current_gradient_accumulation_steps", trainer.args.gradient_accumulation_steps))
    return float(items) / own if items is not None and own else 1.0


def _wrap_training_step(trainer: Any, opt: Optimizer) -> None:
    original = trainer.training_step

    @functools.wraps(original)
    def training_step(model: Any, inputs: Any, num_items_in_batch: Any = None, **kwargs: Any) -> Any:
        own = labels_of(trainer, inputs)
        opt.micro(weight=own, scale=1.0 if opt.ddp else divisor(trainer, num_items_in_batch, own))
        return original(model, inputs, num_items_in_batch, **kwargs)
    trainer.training_step = training_step


def _finish_at_the_end(trainer: Any, opt: Optimizer) -> None:
    from transformers import TrainerCallback

    class Finish(TrainerCallback):  # type: ignore[misc]
        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            opt.finish()
    trainer.add_callback(Finish())
