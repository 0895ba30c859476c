# SPDX-License-Identifier: Apache-2.0
"""gacc.jax.Optimizer: a training loop of JAX whose steps the daemon takes.

    grad = jax.jit(jax.value_and_grad(loss_of))
    opt = gacc.jax.Optimizer(params, "adamw", lr=1e-3, micro_size=4)
    for batch in batches:
        loss, g = grad(opt.params, batch)
        opt.step(g, loss=loss)                    # one micro-batch; the fourth one makes a step

All of it is outside of jit. Parameters and gradients are trees (dictionaries, lists, Flax's, Equinox's arrays) of f32, bf16 or f16 arrays.
"""
from __future__ import annotations

from typing import Any, Mapping, Optional

import jax
import jax.numpy as jnp

from .dtypes import BF16, number_of
from .environment import named_identity
from .errors import GaccError
from .join import attach as _attach
from .leaving import Leaving
from .results import Step
from .spec import agree, keys_of_optimizer, spec_of


def _flat(tree: Any) -> tuple[list[str], list[Any], Any]:
    """Names, leaves and structure."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(path) or "params" for path, _ in leaves]
    return names, [leaf for _, leaf in leaves], structure


class Optimizer(Leaving):
    """Pushes gradients and has the parameters. One thread; all errors are gacc.GaccError. It leaves its job at close(), when it is collected, and at the
    end of the process.

    params        the tree to train; the first rank's values are the job's, unless it is there already or begins with a checkpoint
    optimizer     "sgd", "adam", "adamw" (also if nothing is said) or "lamb"; lr, betas=, eps=, weight_decay= and others as in a job file
    micro_size    micro-batches that each rank gives to one step
    job, rank, world    which job, and which rank of how many; None: from the environment, else a job of its own. One that is not there is made; one
                  that is there must agree with what is given (SPEC_MISMATCH)
    spec          more keys of a job file: {"steps": 100, "clip_norm": 1.0, "reduction": "weighted_mean"}
    attach        more arguments of gacc.attach(): {"progress": True}
    """

    def __init__(self, params: Any, optimizer: Optional[str] = None, *, micro_size: int, lr: Optional[float] = None, job: Any = None,
                 rank: Optional[int] = None, world: Optional[int] = None, endpoint: Optional[str] = None, spec: Optional[Mapping[str, Any]] = None,
                 attach: Optional[Mapping[str, Any]] = None, **hyper: Any):
        names, leaves, self._structure = _flat(params)
        self._names = names
        if not leaves:
            raise GaccError("the tree has no arrays", reason="INVALID_ARGUMENT")
        self._is_bf16 = [number_of(jnp.asarray(leaf).dtype) == BF16 for leaf in leaves]
        who = named_identity(job, rank, world)
        made = spec_of({**(spec or {}), "name": who.job, "ranks": who.world_size, "micro_size": micro_size,
                        "optimizer": {"type": optimizer or "adamw", **({} if lr is None else {"lr": float(lr)}), **hyper}})
        self.session = _attach(who.job, who.rank, who.world_size, spec=None if who.job.isdigit() else made, endpoint=endpoint, **(attach or {}))
        try:
            keys = [k for k in spec or {} if k not in ("name", "ranks", "labels", "timeouts", "checkpoint", "launch", "output")]
            agree(made, self.session.spec, ["micro_size", *keys, *["optimizer.type"] * (optimizer is not None), *keys_of_optimizer(hyper)])
            self.session.register([(n, jnp.asarray(leaf).dtype, jnp.shape(leaf)) for n, leaf in zip(names, leaves)])
            if self.session.params_needed:
                self.session.upload(leaves)
            self.last: Optional[Step] = None
            self._fetch()
        except BaseException:
            self.session.close()
            raise
        self._leaves()

    def _fetch(self) -> None:
        """Copies: the session's arrays are memory that the next step changes, and JAX may use an array's memory as it is."""
        values = self.session.parameters
        leaves = [jnp.array(values[n].view(jnp.bfloat16) if is_bf16 else values[n], copy=True) for n, is_bf16 in zip(self._names, self._is_bf16)]
        self._params = jax.tree_util.tree_unflatten(self._structure, leaves)

    @property
    def params(self) -> Any:
        """The parameters as of the last step, as a tree like the one given."""
        return self._params

    @property
    def missing(self) -> list[int]:
        """Micro-batches of the open window that this rank still owes. After a restart: those that were not counted."""
        return list(self.session.missing)

    def step(self, grads: Any, *, weight: float = 1.0, loss: Any = 0.0, lr: float = 0.0) -> bool:
        """One micro-batch: its gradient, the mean over `weight` samples. Returns whether it was the window's last one; then the step is over, `last` tells
        how, and `params` are new."""
        names, leaves, structure = _flat(grads)
        if structure != self._structure:
            strange = sorted(set(names) ^ set(self._names))
            raise GaccError(f"the gradients are another tree than the parameters{': ' + strange[0] if strange else ''}", reason="INVALID_ARGUMENT")
        self.session.fill(leaves)
        self.session.push(weight=float(weight), loss=float(loss), lr=lr)
        return self._end_window() if not self.session.missing else False

    def flush(self) -> bool:
        """There is no more data for the open window: a step of what came. Returns whether there was anything to end, which other ranks may have."""
        if len(self.session.missing) == self.session.micro_size and self.session.spec.ranks == 1:
            return False
        self.session.flush()
        return self._end_window()

    def _end_window(self) -> bool:
        self.last = self.session.wait()
        self._fetch()
        return True
