# SPDX-License-Identifier: Apache-2.0
"""gacc.torch.GradScaler."""
from __future__ import annotations

import weakref
from typing import Any, Optional

import torch

from ..errors import GaccError
from .optimizer import Optimizer


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler for a gacc.torch.Optimizer, for float16. The scale is the job's: spec={"loss_scale": 65536, "dynamic_loss_scale": {"enabled":
    True}}. The daemon divides by it, skips windows that are not finite, and moves it; every rank has the same one.

        loss = scaler.scale(loss); loss.backward(); scaler.step(opt); scaler.update()
    """

    def __init__(self, opt: Optimizer):
        super().__init__("cpu", enabled=False)  # torch's own never works
        self._of = weakref.ref(opt)

    def _opt(self) -> Optimizer:
        opt = self._of()
        if opt is None:
            raise GaccError("the Optimizer of this GradScaler is gone", reason="INVALID_ARGUMENT")
        return opt

    def scale(self, outputs: Any) -> Any:
        """The loss, or a list of losses, times the window's scale."""
        opt = self._opt()
        opt._scaled = True
        times = self.get_scale()
        return outputs * times if isinstance(outputs, torch.Tensor) else type(outputs)(self.scale(o) for o in outputs)

    def unscale_(self, optimizer: Any) -> None:
        """Nothing: norms and clipping are of unscaled gradients anyway."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        """Nothing: the daemon does it with the step."""
        if new_scale is not None:
            raise GaccError("the loss scale is the job's", reason="NOT_SUPPORTED", hint='spec={"loss_scale": ...}')

    def get_scale(self) -> float:
        return float(self._opt().session.loss_scale)

    def is_enabled(self) -> bool:
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.get_scale()}

    def load_state_dict(self, state_dict: Optional[dict[str, Any]]) -> None:
        """Nothing: the job has it."""
