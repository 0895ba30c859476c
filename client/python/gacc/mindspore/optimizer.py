# SPDX-License-Identifier: Apache-2.0
"""gacc.mindspore.Optimizer."""
from __future__ import annotations

import sys
from typing import Any, Mapping, Optional

import mindspore as ms
import numpy as np
from mindspore import nn

from ..dtypes import BF16, F16, F32, Array, as_wire, from_bf16
from ..environment import named_identity
from ..errors import GaccError
from ..join import attach as _attach
from ..leaving import Leaving
from ..results import Step
from ..spec import agree, keys_of_optimizer, spec_of
from .settings import HAS, OF_ONES_OWN, settings_of

LEAST = sys.float_info.min  # stands for a learning rate of 0, which means the job's schedule on the wire; in f32 it is 0
DTYPES = {ms.float32: F32, ms.bfloat16: BF16, ms.float16: F16}
NAMES = ("sgd", "adam", "adamw", "lamb")
TAKE_THESE = "mindspore.value_and_grad(forward, None, opt.parameters)"


def _trainable(network: Any) -> tuple[list[Any], list[str]]:
    """Parameters that are trained, and names of the frozen ones."""
    found = list(network.get_parameters()) if isinstance(network, nn.Cell) else list(network)
    for p in found:
        if not isinstance(p, ms.Parameter):
            raise GaccError(f"a {type(p).__name__} is no Parameter", reason="INVALID_ARGUMENT", hint="give a Cell, or a list of its parameters")
    trained = [p for p in found if p.requires_grad]
    if not trained:
        raise GaccError("no parameter requires a gradient" + (f": all {len(found)} are frozen" if found else ""), reason="INVALID_ARGUMENT",
                        hint="requires_grad = True for those that are to be trained")
    seen = set()
    for p in trained:
        if p.dtype not in DTYPES:
            raise GaccError(f"parameter {p.name} is {p.dtype}; gacc has float32, bfloat16 and float16", reason="NOT_SUPPORTED",
                            hint="convert the network, or freeze it (requires_grad = False)")
        if p.name in seen:
            raise GaccError(f"two parameters are named {p.name}", reason="INVALID_ARGUMENT",
                            hint="make them parts of one Cell, which gives them names of their own, or set Parameter.name")
        seen.add(p.name)
    return trained, [p.name for p in found if not p.requires_grad]


def _array(t: Any) -> Array:
    """A tensor's values; those of bf16 in f32, which is exact."""
    a: Array = (t.astype(ms.float32) if t.dtype == ms.bfloat16 else t).asnumpy()
    return a


class Optimizer(Leaving):
    """One rank of a job, in the place of MindSpore's optimizer. The daemon adds up the micro-batches of all ranks, divides by their true weight, clips,
    and takes the step; then the network's parameters are set to the new values, which have the same bits on all ranks.

    network       a Cell, or parameters. Tensors are named by Parameter.name. Frozen ones (requires_grad False) are left out. float32, bfloat16 or float16
    optimizer     "sgd", "adam", "adamw" or "lamb", with lr, betas=, eps=, weight_decay= and others as in a job file; or an optimizer of MindSpore, whose
                  settings and learning rate are taken (its own state is not used): nn.SGD, Momentum, Adam; SGD, Adam, AdamW of experimental.optim.
                  None: "adamw", or what the job has
    micro_size    micro-batches that this rank gives to one step
    clip_norm     2-norm at which the averaged gradient is clipped; 0: not at all
    job, rank, world    which job, and which rank of how many; None: from the environment, else a job of its own. One that is not there is made; one that
                  is there must agree with what is given (SPEC_MISMATCH)
    spec          more keys of a job file: {"steps": 100, "nonfinite": "error"}
    attach        more arguments of gacc.attach(): {"progress": True}
    scale         what gradients are multiplied by as they are copied: k for a loss that was divided by k

    One thread, outside of jit; the function that computes gradients may be compiled. All errors are gacc.GaccError.
    """

    def __init__(self, network: Any, optimizer: Any = None, *, micro_size: int, lr: Optional[float] = None, clip_norm: Optional[float] = None,
                 job: Any = None, rank: Optional[int] = None, world: Optional[int] = None, endpoint: Optional[str] = None,
                 spec: Optional[Mapping[str, Any]] = None, attach: Optional[Mapping[str, Any]] = None, scale: float = 1.0, **hyper: Any):
        params, self._frozen = _trainable(network)
        self.parameters = ms.ParameterTuple(params)
        self._by_name = {p.name: p for p in params}
        self._names = list(self._by_name)
        self._settings = settings_of(optimizer, self._names)
        self._scale = scale * (self._settings.scale if self._settings else 1.0)
        who = named_identity(job, rank, world)
        given = {"micro_size": micro_size, **({} if clip_norm is None else {"clip_norm": float(clip_norm)}),
                 **self._optimizer_keys(optimizer, {**hyper, **({} if lr is None else {"lr": float(lr)})}, spec or {})}
        mine = spec_of({**(spec or {}), "name": who.job, "ranks": who.world_size, **given})
        self.session = _attach(who.job, who.rank, who.world_size, spec=None if who.job.isdigit() else mine, endpoint=endpoint, **(attach or {}))
        try:
            self._compare(mine, given, optimizer is not None)
            self.session.register([(p.name, DTYPES[p.dtype], p.shape) for p in params])
            if self.session.params_needed:
                self.session.upload([_array(p) for p in params])
            self.last: Optional[Step] = None
            self._checked = False  # the parameters, since the open window began
            self._fetch()
        except BaseException:
            self.session.close()
            raise
        self._leaves()

    def _optimizer_keys(self, optimizer: Any, hyper: dict[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
        """Keys of a job file."""
        if not self._settings:
            kind = "adamw" if optimizer is None else optimizer
            if kind not in NAMES:
                raise GaccError(f"no optimizer {kind!r}: {HAS}", reason="INVALID_ARGUMENT", hint=OF_ONES_OWN)
            return {"optimizer": {"type": kind, **hyper}}
        if hyper or spec.get("schedule"):
            raise GaccError("settings are given beside an optimizer that has them", reason="INVALID_ARGUMENT",
                            hint="give them to MindSpore's optimizer, or say the optimizer's name here")
        rules = self._settings.rules()
        return {"optimizer": {"type": self._settings.kind, **self._settings.hyper}, **({"param_groups": rules} if rules else {})}

    def _compare(self, mine: Any, given: Mapping[str, Any], has_type: bool) -> None:
        """Raises if the job, which was there, is another one than the arguments say. Learning rates come with the pushes."""
        keys = [k for k in given if k != "optimizer"] + ["optimizer.type"] * has_type
        agree(mine, self.session.spec, keys + keys_of_optimizer(given["optimizer"]))

    # ---- parameters ----

    def _fetch(self) -> None:
        """The daemon's parameters into the network, by copy_: functions that are compiled already do not see what set_data brings, and assign has no bf16
        on CPUs (MindSpore 2.10)."""
        values = self.session.parameters
        for p in self.parameters:
            new = ms.Tensor(from_bf16(values[p.name]) if p.dtype == ms.bfloat16 else np.array(values[p.name]))
            p.copy_(new.astype(p.dtype))
        self._checked = False

    def _check_unchanged(self) -> None:
        """Before a window's first push: what somebody else wrote to a parameter would be lost in silence."""
        values = self.session.parameters
        for p in self.parameters:
            if p.dtype not in DTYPES or p.shape != values[p.name].shape:
                raise GaccError(f"parameter {p.name} is {p.dtype}{list(p.shape)} now, and was registered as another one", reason="PARAMETER_CHANGED",
                                hint="make the Optimizer when the network is as it is to be trained")
            here = np.ascontiguousarray(as_wire(_array(p), DTYPES[p.dtype]))
            if here.tobytes() != values[p.name].tobytes():
                raise GaccError(f"parameter {p.name} was changed by something else than the job's steps", reason="PARAMETER_CHANGED",
                                hint="load checkpoints before the Optimizer is made, and leave out MindSpore's own optimizer")
        self._checked = True

    # ---- a window ----

    @property
    def missing(self) -> list[int]:
        """Micro-batches of the open window that this rank still owes. After a restart: those that were not counted."""
        return list(self.session.missing)

    def _named(self, grads: Any) -> dict[str, Array]:
        given = list(grads.values()) if isinstance(grads, Mapping) else list(grads) if isinstance(grads, (list, tuple)) else [grads]
        names = [str(n) for n in grads] if isinstance(grads, Mapping) else self._names
        strange = [n for n in names if n not in self._by_name]
        if strange:
            why = " is frozen, so the job does not have it" if strange[0] in self._frozen else " is none of the job's tensors"
            raise GaccError(f"{strange[0]}{why}", reason="INVALID_ARGUMENT", hint=TAKE_THESE)
        if len(given) != len(self._names):
            frozen = f"; {len(self._frozen)} are frozen: {self._frozen[0]}" if self._frozen else ""
            raise GaccError(f"{len(given)} gradients for {len(self._names)} trainable parameters{frozen}", reason="INVALID_ARGUMENT", hint=TAKE_THESE)
        out = {}
        for name, g in zip(names, given):
            p = self._by_name[name]
            if not isinstance(g, ms.Tensor):
                raise GaccError(f"the gradient of {name} is a {type(g).__name__}, not a Tensor", reason="NOT_SUPPORTED",
                                hint="sparse gradients are not supported: nn.Embedding instead of nn.EmbeddingLookup(sparse=True)")
            if g.shape != p.shape:
                raise GaccError(f"the gradient of {name} has the shape {list(g.shape)}, and the parameter {list(p.shape)}", reason="INVALID_ARGUMENT",
                                hint=TAKE_THESE)
            if not p.requires_grad:
                raise GaccError(f"parameter {name} was frozen after the Optimizer was made", reason="NOT_SUPPORTED",
                                hint="make a new Optimizer, which starts a new job")
            a = _array(g)
            out[name] = a if self._scale == 1 else a.astype(np.float32) * np.float32(self._scale)
        return out

    def step(self, grads: Any, *, weight: float = 1.0, loss: Any = 0.0, lr: Optional[float] = None) -> bool:
        """One micro-batch: its gradient, the mean over `weight` samples or tokens, as a tuple in the order of `parameters` or by name. Returns whether it
        was the window's last one; then the step is over, `last` tells how, and the network has the new parameters.

        loss    for Step.mean_loss
        lr      learning rate of this window; None: of MindSpore's optimizer if one was given, else the job's
        """
        arrays = self._named(grads)
        if not self._checked:
            self._check_unchanged()
        if lr is None and self._settings:
            lr = self._settings.lr(self.session.applied_step)
        self.session.fill(arrays)
        said = float(loss.asnumpy().item()) if isinstance(loss, ms.Tensor) else float(loss)
        self.session.push(weight=float(weight), loss=said, lr=0.0 if lr is None else lr or LEAST)
        return self._end_window() if not self.session.missing else False

    __call__ = step

    def flush(self) -> bool:
        """There is no more data for the open window: a step of what came, with its true divisor. Returns whether there was anything to end, which other
        ranks may have."""
        if self.session.done or (self.session.spec.ranks == 1 and len(self.session.missing) == self.session.micro_size):
            return False
        self.session.flush()
        return self._end_window()

    def finish(self) -> None:
        """This rank has no more data: joins the windows of ranks that still have some, so that all end with the same parameters."""
        while self.flush():
            if self.session.spec.ranks == 1 or (self.last and self.last.outcome == "EMPTY"):
                break

    def _end_window(self) -> bool:
        self.last = self.session.wait()
        self._fetch()
        return True
