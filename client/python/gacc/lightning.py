# SPDX-License-Identifier: Apache-2.0
"""gacc for Lightning, 2.x (`lightning`, or `pytorch_lightning`).

    def configure_optimizers(self):
        self.opt = gacc.torch.Optimizer(self, "adamw", lr=1e-3, micro_size=8)    # micro_size: at least accumulate_grad_batches
        return self.opt

    trainer = Trainer(accumulate_grad_batches=8, callbacks=[gacc.lightning.Callback()])
"""
from __future__ import annotations

import contextlib
import functools
import importlib
from typing import Any, Optional

from .accelerate import unwrapped
from .errors import GaccError
from .torch.optimizer import Optimizer
from .torch.wrapped import ALREADY_REDUCED


def _base() -> Any:
    """Of the package that is there."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name).Callback
    raise ImportError("gacc.lightning needs lightning, or pytorch_lightning")


_Callback: Any = _base()


class Callback(_Callback):  # type: ignore[misc]
    """Makes a Trainer train with the gacc.torch.Optimizer that configure_optimizers() returns.

    Automatic optimization: each batch is a micro-batch, and Lightning's step closes the window, also a short one at the end of an epoch. What Lightning
    divides the loss by (accumulate_grad_batches) is undone as gradients are copied. self.opt.micro(weight=tokens) in training_step() weighs a batch.
    gradient_clip_val must be the Optimizer's clip_norm; Lightning clips nothing. A window that was skipped leaves schedulers of each step where they are.

    Manual optimization: self.opt.step(weight=.., loss=..) for every batch, or self.optimizers().step(..); the end of an epoch flushes.

    At the end of the training this rank waits for those that have more data.
    """

    def __init__(self) -> None:
        self._opt: Optional[Optimizer] = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.world_size > 1:
            raise GaccError(f"Lightning has a process group of {trainer.world_size} processes: {ALREADY_REDUCED}", reason="NOT_SUPPORTED",
                            hint='Trainer(devices=1), and ranks as processes with GACC_RANK and GACC_WORLD_SIZE')
        if len(trainer.optimizers) != 1:
            raise GaccError(f"{len(trainer.optimizers)} optimizers; the callback has one", reason="NOT_SUPPORTED",
                            hint="manual optimization needs no callback")
        if getattr(trainer.precision_plugin, "scaler", None) is not None:
            raise GaccError("Lightning has a GradScaler of its own", reason="NOT_SUPPORTED", hint='precision="bf16-mixed"')
        self._opt = opt = unwrapped(trainer.optimizers[0])
        if not pl_module.automatic_optimization:
            return
        opt.close_by_step()
        trainer.precision_plugin.clip_gradients = functools.partial(_check_clipping, opt)
        original = pl_module.lr_scheduler_step

        @functools.wraps(original)
        def lr_scheduler_step(scheduler: Any, metric: Any) -> None:
            each_step = any(c.scheduler is scheduler and c.interval == "step" for c in trainer.lr_scheduler_configs)
            if opt.stepped or not each_step:
                original(scheduler, metric)
        pl_module.lr_scheduler_step = lr_scheduler_step

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        if self._opt is not None and pl_module.automatic_optimization:
            k = trainer.accumulate_grad_batches
            self._opt.divided_by(k, loss.detach() * k)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._opt is not None and not pl_module.automatic_optimization:
            self._opt.flush()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._opt is not None:
            self._opt.finish()


def _check_clipping(opt: Optimizer, optimizer: Any, clip_val: Any = 0.0, gradient_clip_algorithm: Any = "norm") -> None:
    """In the place of the Precision plug-in's clip_gradients."""
    if not clip_val or clip_val <= 0:
        return
    if str(getattr(gradient_clip_algorithm, "value", gradient_clip_algorithm)) == "norm":
        opt.check_clip_norm(clip_val)
    elif float(clip_val) != opt.session.spec.clip_value:
        raise GaccError(f"clipping values at {clip_val:g}, and the job has clip_value {opt.session.spec.clip_value:g}", reason="CLIP_MISMATCH",
                        hint=f'Optimizer(spec={{"clip_value": {clip_val:g}}})')
