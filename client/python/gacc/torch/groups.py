# SPDX-License-Identifier: Apache-2.0
"""Parameter groups: from what torch.optim takes to a job's tensors and param_groups, and what may change in them later."""
from __future__ import annotations

import fnmatch
from typing import Any, Iterable, Mapping, Optional

import torch

from ..errors import GaccError
from .gradients import DTYPES
from .wrapped import plain_of, refuse_sharded, refuse_wrapped, stop_reducing

MAX_RULES = 256  # gaccd's SPEC_MAX_RULES


def _items(params: Any, first: int, ddp: bool) -> list[tuple[str, torch.Tensor]]:
    if isinstance(params, torch.nn.Module):
        refuse_wrapped(params, ddp)
        if ddp:
            stop_reducing(params)
        return list(plain_of(params).named_parameters())
    if isinstance(params, torch.Tensor):
        params = [params]
    return [p if isinstance(p, tuple) else (f"parameter{first + i}", p) for i, p in enumerate(params)]


class Groups:
    """What is trained. `params`: a module, parameters, named parameters, or dictionaries of them with lr and weight_decay of their own.

    groups    for torch.optim.Optimizer: [{"params": tensors, "lr": ..}]
    names, params    of all trainable ones, in order
    frozen    names and tensors of the others, which the job does not have
    ddp       a module may be a DistributedDataParallel, which does not reduce any more
    """

    def __init__(self, params: Any, ddp: bool = False):
        given: list[Any] = [{"params": params}] if isinstance(params, (torch.nn.Module, torch.Tensor)) else list(params)
        if not (given and isinstance(given[0], Mapping)):
            given = [{"params": given}]
        self.groups: list[dict[str, Any]] = []
        self.members: list[list[str]] = []
        self.names: list[str] = []
        self.params: list[torch.Tensor] = []
        self.frozen: list[tuple[str, torch.Tensor]] = []
        self._seen: set[str] = set()
        total = 0
        for group in given:
            items = _items(group["params"], total, ddp)
            total += len(items)
            self._add(dict(group), items)
        if not self.names:
            raise GaccError("no parameter requires a gradient", reason="INVALID_ARGUMENT")

    def _add(self, group: dict[str, Any], items: list[tuple[str, torch.Tensor]]) -> None:
        trained = [(n, p) for n, p in items if p.requires_grad]
        self.frozen += [(n, p) for n, p in items if not p.requires_grad]
        for name, p in trained:
            refuse_sharded(name, p)
            if p.dtype not in DTYPES:
                raise GaccError(f"parameter {name} is {p.dtype}; gacc has float32, bfloat16 and float16", reason="NOT_SUPPORTED", hint="convert the model")
            if p.is_meta:
                raise GaccError(f"parameter {name} is on the device meta and has no values", reason="NOT_SUPPORTED")
            if name in self._seen:
                raise GaccError(f"two parameters are named {name}", reason="INVALID_ARGUMENT", hint="give model.named_parameters(), or groups of them")
            self._seen.add(name)
        strange = set(group) - {"params", "lr", "weight_decay", "name", "param_names", "initial_lr"}
        if strange:
            raise GaccError(f"a parameter group has its own {sorted(strange)[0]}: lr and weight_decay can be a group's", reason="NOT_SUPPORTED")
        group.pop("param_names", None)
        self.groups.append({**group, "params": [p for _, p in trained]})
        self.members.append([n for n, _ in trained])
        self.names += [n for n, _ in trained]
        self.params += [p for _, p in trained]

    def rules(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """param_groups of a job with this base."""
        owner = {n: i for i, names in enumerate(self.members) for n in names}
        rules = []
        for i, (group, names) in enumerate(zip(self.groups, self.members)):
            rule = {"lr_scale": scale(float(group.get("lr", lr)), lr)}
            if group.get("weight_decay", weight_decay) != weight_decay:
                rule["weight_decay"] = float(group["weight_decay"])
            if rule != {"lr_scale": 1.0}:
                rules += [{"pattern": pattern, **rule} for pattern in _patterns(names, i, owner)]
        if len(rules) > MAX_RULES:
            raise GaccError(f"the groups need {len(rules)} patterns, and a job may have {MAX_RULES}", reason="NOT_SUPPORTED",
                            hint="group parameters whose names end alike, as in bias or norm.weight")
        return rules


def scale(lr: float, base: float) -> float:
    if lr == base:
        return 1.0
    if base <= 0 or lr <= 0:
        raise GaccError("groups with different learning rates, one of them 0", reason="NOT_SUPPORTED", hint="leave frozen parameters out")
    return lr / base


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _patterns(names: Iterable[str], group: int, owner: Mapping[str, int]) -> list[str]:
    """Few patterns that match these names and no other group's: the shortest endings that only this group has."""
    found: list[str] = []
    left = list(names)
    while left:
        parts = left[0].split(".")
        endings = ["*." + _escaped(".".join(parts[-n:])) for n in range(1, len(parts))]
        for pattern in [*endings, _escaped(left[0])]:
            hits = [n for n in owner if fnmatch.fnmatchcase(n, pattern)]
            if all(owner[n] == group for n in hits):
                break
        found.append(pattern)
        left = [n for n in left[1:] if n not in hits]
    return found


def plain(value: Any) -> Any:
    """A number of a group, also where a scheduler keeps it as a tensor."""
    return value.item() if isinstance(value, torch.Tensor) else tuple(value) if isinstance(value, list) else value


class Watch:
    """What the daemon has been told of the groups: learning rates may move together, nothing else may change."""

    def __init__(self, groups: list[dict[str, Any]], base: float, scheduled: bool):
        self._scales = [scale(float(g["lr"]), base) for g in groups]
        self._fixed = [{k: plain(v) for k, v in g.items() if k in KEYS} for g in groups]
        self.is_scheduled = scheduled
        self._shown: Optional[list[float]] = [float(g["lr"]) for g in groups]

    def lr(self, groups: list[dict[str, Any]]) -> float:
        """The base learning rate of the next window; 0: the job's schedule says."""
        for i, (group, fixed) in enumerate(zip(groups, self._fixed)):
            for key, value in fixed.items():
                if plain(group[key]) != value:
                    raise GaccError(f"{key} of group {i} was {value} and is {plain(group[key])}: of a running job only lr can change",
                                    reason="NOT_SUPPORTED", hint="schedulers that move it have an option, such as cycle_momentum=False")
        rates = [float(g["lr"]) for g in groups]
        if self.is_scheduled:
            if rates != self._shown:
                raise GaccError("the learning rate was changed, and the job has a schedule of its own", reason="LR_MISMATCH",
                                hint="either a scheduler of torch or schedule=")
            return 0.0
        base = rates[0] / self._scales[0]
        for i, (rate, times) in enumerate(zip(rates, self._scales)):
            if abs(rate - base * times) > 1e-9 * abs(rate):
                raise GaccError(f"the learning rate of group {i} is {rate:g}; it was {times:g} times the base, which is {base:g} now",
                                reason="NOT_SUPPORTED", hint="schedule all groups by the same factor")
        return base

    def show(self, groups: list[dict[str, Any]], lr: float) -> None:
        """The schedule's learning rate, for loggers."""
        if self.is_scheduled and lr:
            for group, times in zip(groups, self._scales):
                group["lr"] = lr * times
            self._shown = [float(g["lr"]) for g in groups]


KEYS = ("betas", "eps", "weight_decay", "momentum", "dampening", "nesterov")
