# SPDX-License-Identifier: Apache-2.0
"""The job of an Optimizer: joined, or made from the Optimizer's arguments; and what they must agree about."""
from __future__ import annotations

from typing import Any, Mapping, Optional

from ..environment import named_identity
from ..errors import GaccError
from ..join import attach
from ..spec import agree, keys_of_optimizer, spec_of
from .groups import Groups

HYPER = {"sgd": {"weight_decay", "momentum", "dampening", "nesterov"}, "adam": {"weight_decay", "betas", "eps"}}
HYPER["adamw"] = HYPER["lamb"] = HYPER["adam"]
DEFAULTS = {"untouched": "skip"}  # of jobs that are made here: torch does not step a parameter without a gradient


class Wanted:
    """The arguments that say what the job is; None means: the job's, if it is there, else the default."""

    def __init__(self, optimizer: Optional[str], lr: Optional[float], micro_size: Optional[int], hyper: Mapping[str, Any], spec: Mapping[str, Any],
                 **keys: Any):
        kind = optimizer or "adamw"
        if kind not in HYPER:
            raise GaccError(f"no optimizer {optimizer!r}: sgd, adam, adamw or lamb", reason="INVALID_ARGUMENT",
                            hint="for one of your own use gacc.attach() and a job with optimizer client")
        strange = set(hyper) - HYPER[kind]
        if strange:
            raise GaccError(f"{kind} has no {sorted(strange)[0]}", reason="INVALID_ARGUMENT", hint=f"it has lr, {', '.join(sorted(HYPER[kind]))}")
        self.optimizer = {"type": kind, **hyper, **({} if lr is None else {"lr": float(lr)})}
        self.keys = {**spec, **{k: v for k, v in {"micro_size": micro_size, **keys}.items() if v is not None}}
        self._compared = [*self.keys, *(["optimizer.type"] if optimizer else [])]
        self._compared += keys_of_optimizer(hyper)
        self._has_groups = False

    def message(self, name: str, groups: Groups, ranks: int) -> Any:
        """As a JobSpec."""
        keys = {**DEFAULTS, **self.keys, "name": name, "ranks": ranks, "optimizer": self.optimizer}
        made = spec_of(keys)
        rules = groups.rules(made.optimizer.lr, made.optimizer.weight_decay)
        self._has_groups = bool(rules)
        return spec_of({**keys, "param_groups": rules}) if rules else made

    def compare(self, mine: Any, job: Any) -> None:
        """Raises if the job is another one than the arguments say."""
        keys = [k for k in self._compared if k not in ("name", "ranks", "labels", "timeouts", "checkpoint", "launch", "output")]
        agree(mine, job, keys + ["param_groups"] * self._has_groups)


def join(wanted: Wanted, groups: Groups, job: Any, rank: Optional[int], world: Optional[int], endpoint: Optional[str], more: Mapping[str, Any]) -> Any:
    """A Session with the tensors registered and the parameters there."""
    who = named_identity(job, rank, world)
    mine = wanted.message(who.job, groups, who.world_size)
    makes = not who.job.isdigit()
    if makes and "micro_size" not in wanted.keys:
        raise GaccError("micro_size is not given", reason="INVALID_ARGUMENT", hint="how many micro-batches does a rank give to one step?")
    session = attach(who.job, who.rank, who.world_size, spec=mine if makes else None, endpoint=endpoint, **more)
    try:
        wanted.compare(mine, session.spec)
        session.register([(n, p.dtype, p.shape) for n, p in zip(groups.names, groups.params)])
        if session.params_needed:
            session.upload([_array(p) for p in groups.params])
        session.ready()
    except BaseException:
        session.close()
        raise
    return session


def _array(p: Any) -> Any:
    """Initial values, f32: exact for all types that a parameter may have."""
    return p.detach().float().cpu().contiguous().numpy()
