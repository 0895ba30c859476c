# SPDX-License-Identifier: Apache-2.0
"""What an optimizer of MindSpore does, in the words of a job: the same formula, or an error that says why not."""
from __future__ import annotations

from typing import Any, Callable, NoReturn, Optional, Sequence

import mindspore as ms
import numpy as np
from mindspore import nn

from ..errors import GaccError

HAS = "gaccd has sgd, adam, adamw and lamb"
OF_ONES_OWN = "for another one use gacc.attach() and a job with optimizer client"
# of nn.Adam and the like: options that are another formula
STRANGE = ("use_amsgrad", "use_nesterov", "use_lazy", "use_offload")
TORCH_LIKE = "mindspore.experimental.optim."


def number(value: Any) -> float:
    """Of a number, a Tensor or a Parameter with one element. What MindSpore keeps in f32 is taken as the decimal number that the user wrote: 0.1, not
    0.10000000149."""
    return float(str(np.float32(value.asnumpy().item()))) if isinstance(value, ms.Tensor) else float(value)


def _refuse(optimizer: Any, why: str, hint: str = HAS) -> NoReturn:
    raise GaccError(f"{type(optimizer).__name__}: {why}", reason="NOT_SUPPORTED", hint=hint)


class Settings:
    """What one of MindSpore's optimizers was made with.

    kind, hyper    the job's optimizer
    scale          gradients are multiplied by it: one over the optimizer's loss_scale
    rules()        param_groups of the job, for tensors whose learning rate or weight decay is not the first one's
    lr(step)       of the step after `step` applied ones
    """

    def __init__(self, optimizer: Any):
        self._optimizer = optimizer
        self.names = [p.name for p in optimizer.parameters]
        self.scale = 1.0
        self._decays: list[float] = []  # of each parameter
        self._rates: Callable[[int], list[float]]
        kind = type(optimizer)
        if f"{kind.__module__}.".startswith(TORCH_LIKE) and kind.__name__ in ("SGD", "Adam", "AdamW"):
            self._of_groups(kind.__name__.lower())
        elif kind in (nn.SGD, nn.Momentum, nn.Adam):
            self._of_nn("adam" if kind is nn.Adam else "sgd")
        elif kind is nn.AdamWeightDecay:
            _refuse(optimizer, "it has no bias correction, which gaccd's adamw has", "use mindspore.experimental.optim.AdamW, or the name \"adamw\"")
        elif kind is nn.Lamb or kind.__module__.startswith("mindspore.mint.optim."):
            _refuse(optimizer, "MindSpore has no CPU kernels of it, so it was not compared with gaccd's",
                    "the name \"lamb\", or mindspore.experimental.optim")
        else:
            _refuse(optimizer, f"gaccd does not have {kind.__module__}.{kind.__name__}", f"{HAS}; {OF_ONES_OWN}")
        rates = self._rates(0)
        self._scales = [self._ratio(r, rates[0]) for r in rates]
        self.hyper["weight_decay"] = self._decays[0]
        if rates[0]:  # each push says the rate; gaccd warns of a job whose own is 0
            self.hyper["lr"] = rates[0]

    def _ratio(self, rate: float, base: float) -> float:
        if rate == base:
            return 1.0
        if rate <= 0 or base <= 0:
            _refuse(self._optimizer, "groups with different learning rates, one of them 0", "freeze those parameters (requires_grad = False)")
        return rate / base

    def _of_groups(self, kind: str) -> None:
        """Optimizers with PyTorch's formulas and param_groups."""
        o, groups = self._optimizer, self._optimizer.param_groups
        keys = ("momentum", "dampening", "nesterov") if kind == "sgd" else ("betas", "eps")
        for group in groups:
            for key in ("amsgrad", "maximize", "grad_centralization"):
                if group.get(key):
                    _refuse(o, f"{key} is set")
            for key in keys:
                if group.get(key) != groups[0].get(key):
                    _refuse(o, f"a parameter group has its own {key}", "lr and weight_decay can be a group's")
        self.kind = kind
        self.hyper = {k: tuple(map(number, v)) if k == "betas" else v if k == "nesterov" else number(v) for k, v in groups[0].items() if k in keys}
        members = [g for g in groups for _ in g["params"]]
        self._decays = [number(g["weight_decay"]) for g in members]
        self._rates = lambda step: [number(g["lr"]) for g in members]

    def _of_nn(self, kind: str) -> None:
        o = self._optimizer
        if type(o) is nn.Momentum and o.use_nesterov:  # MindSpore 2.10 has no effect of it on CPUs
            _refuse(o, "use_nesterov is set", "nn.SGD(.., nesterov=True)")
        for key in STRANGE:
            if getattr(o, key, False):
                _refuse(o, f"{key} is set")
        if getattr(o, "grad_centralization", False) or any(getattr(o, "grad_centralization_flags", ())):
            _refuse(o, "grad_centralization is set")
        if o.dynamic_weight_decay:
            _refuse(o, "weight_decay changes with the step", "gaccd's weight decay is a number")
        if o.is_group_lr and o.dynamic_lr:
            _refuse(o, "groups with learning rates of their own that change with the step", "one schedule for all parameters")
        self.kind, self.scale = kind, 1 / float(o.loss_scale)
        if kind == "sgd":
            self.hyper = {"momentum": number(o.momentum), "dampening": float(getattr(o, "dampening", 0.0)),
                          "nesterov": bool(getattr(o, "nesterov", False))}
        else:
            self.hyper = {"betas": (number(o.beta1), number(o.beta2)), "eps": number(o.eps)}
        # without groups, parameters named gamma or beta (of normalisations) are not decayed
        given = o.weight_decay if o.is_group else [o.weight_decay] * len(self.names)
        self._decays = [number(w) if flag else 0.0 for w, flag in zip(given, o.decay_flags)]
        self._rates = self._nn_rates

    def _nn_rates(self, step: int) -> list[float]:
        o = self._optimizer
        if o.is_group_lr:
            return [number(r) for r in o.learning_rate]
        rate = o.learning_rate(ms.Tensor([step], ms.int32)).reshape(()) if o.dynamic_lr else o.learning_rate
        return [number(rate)] * len(self.names)

    def rules(self) -> list[dict[str, Any]]:
        found: dict[Any, list[str]] = {}
        for name, ratio, decay in zip(self.names, self._scales, self._decays):
            if (ratio, decay) != (1.0, self._decays[0]):
                found.setdefault((ratio, decay), []).append(name)
        return [{"tensors": names, "lr_scale": ratio, "weight_decay": decay} for (ratio, decay), names in found.items()]

    def lr(self, step: int) -> float:
        rates = self._rates(step)
        for name, rate, ratio in zip(self.names, rates, self._scales):
            if abs(rate - rates[0] * ratio) > 1e-6 * abs(rate):
                raise GaccError(f"the learning rate of {name} is {rate:g}; it was {ratio:g} times the first one's, which is {rates[0]:g} now",
                                reason="NOT_SUPPORTED", hint="move the learning rates of all groups by the same factor")
        return rates[0]


def settings_of(optimizer: Any, names: Sequence[str]) -> Optional[Settings]:
    """None for a name, such as "adamw". `names`: what is trained, in the order of the gradients."""
    if optimizer is None or isinstance(optimizer, str):
        return None
    if not (isinstance(optimizer, nn.Cell) and hasattr(optimizer, "parameters")):
        raise GaccError(f"the optimizer is a {type(optimizer).__name__}: give a name, or one of MindSpore's optimizers", reason="INVALID_ARGUMENT",
                        hint=HAS)
    settings = Settings(optimizer)
    strange = sorted(set(settings.names) ^ set(names))
    if strange:
        raise GaccError(f"{strange[0]} is a trainable parameter of the network or of the optimizer, but not of both", reason="INVALID_ARGUMENT",
                        hint="make the optimizer of network.trainable_params()")
    return settings
