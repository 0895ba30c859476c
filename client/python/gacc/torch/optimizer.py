# SPDX-License-Identifier: Apache-2.0
"""gacc.torch.Optimizer."""
from __future__ import annotations

import dataclasses
import sys
import weakref
from typing import Any, Callable, Mapping, Optional

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..errors import GaccError
from ..leaving import Leaving
from ..results import Step
from .gradients import Gradients, without_dynamo
from .groups import Groups, Watch
from .job import Wanted, join
from .wrapped import group_identity

LEAST = sys.float_info.min  # stands for a learning rate or a weight of 0, which mean something else on the wire; in f32 it is 0
BOUNDARIES = ("count", "step")
_owners: Any = WeakIdKeyDictionary()  # parameter -> weak reference to the Optimizer that has its hooks


def write_gradient(p: torch.Tensor, rows: torch.Tensor, inputs: torch.Tensor) -> bool:
    """For fused.py, in a backward that accumulates: rows^T inputs is p's gradient. False: nobody has taken it."""
    owner = _owners.get(p)
    opt = owner() if owner else None
    return opt is not None and not opt.ddp and opt._gradients.write(p, rows, inputs)


def _call(function: Optional[Callable[[], None]]) -> None:
    if function is not None:
        function()


def number(value: Any) -> float:
    """Of a number or a tensor with one element."""
    return float(value.item() if isinstance(value, torch.Tensor) else value)


def _refusal(what: str, hint: str) -> Callable[..., Any]:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise GaccError(what, reason="NOT_SUPPORTED", hint=hint)
    return refuse


class Optimizer(Leaving, torch.optim.Optimizer):
    """One rank of a job, in the place of torch.optim's optimizer. The daemon adds up the micro-batches of all ranks, divides by their true weight, clips,
    and takes the step; parameters change in step() alone, on all ranks to the same bits.

    params        a module (recommended: tensors get its names), parameters, named parameters, or dictionaries of them as torch.optim takes, with lr and
                  weight_decay of their own. Those without requires_grad are left out. f32, bf16 or f16
    optimizer     "sgd", "adam", "adamw" or "lamb"; hyper: its weight_decay, betas, eps, momentum, dampening, nesterov, with torch's defaults
    lr            torch's schedulers may move it: each window has the one that its first micro-batch finds. schedule={"type": "cosine", ...}: the job's own
    micro_size    micro-batches of this rank in a step; with boundary="step" the most that there may be
    boundary      "count": step() is called for every micro-batch, and every micro_size-th call takes the step. "step": each backward() is a micro-batch,
                  and step() closes the window, as libraries that accumulate expect it; their adapters set it
    backwards     boundary "count": backward() calls in one micro-batch
    reduction     "weighted_mean": of all samples or tokens, by the weights of the micro-batches; others: docs/integrate.md, section 5
    clip_norm     2-norm at which the averaged gradient is clipped; 0: not at all
    ddp           the processes are torch's process group, and the model is or will be in DistributedDataParallel: the gradient of a window is what DDP
                  makes of the same losses, the sum over a rank's micro-batches, averaged over the ranks. The daemon does it in the place of the
                  all-reduce. Sets reduction; weights do not divide, so the loss is divided as DDP needs it. All processes make their Optimizer together
    parameters    "copy", or "view": the model's parameters are the daemon's memory, read-only (docs/python.md has the dangers). CPU alone
    job, rank, world    which job, and which rank of how many; None: from the environment. A job that is not there is made from these arguments; one that
                  is there must agree with what is given (SPEC_MISMATCH)
    spec          more keys of a job file: {"steps": 100, "nonfinite": "error"}
    attach        more arguments of gacc.attach(): {"mailbox": False}

    Gradients do not stay in .grad: hooks move them to the daemon's memory, so torch.nn.utils.clip_grad_norm_ finds nothing and clips nothing; use
    clip_norm. A window that is not finite is skipped, and `stepped` is False then. All errors are gacc.GaccError. What the daemon refuses of a micro-batch
    that is not the window's last is raised by the next call, and the micro-batch is owed again.
    """

    def __init__(self, params: Any, optimizer: Optional[str] = None, *, lr: Optional[float] = None, micro_size: Optional[int] = None,
                 boundary: str = "count", backwards: int = 1, reduction: Optional[str] = None, grad_of: Optional[str] = None,
                 clip_norm: Optional[float] = None, ddp: bool = False, parameters: str = "copy",
                 schedule: Optional[Mapping[str, Any]] = None, job: Any = None, rank: Optional[int] = None, world: Optional[int] = None,
                 endpoint: Optional[str] = None, spec: Optional[Mapping[str, Any]] = None, attach: Optional[Mapping[str, Any]] = None, **hyper: Any):
        if boundary not in BOUNDARIES:
            raise GaccError(f"boundary is {boundary!r}: count or step", reason="INVALID_ARGUMENT")
        if ddp and (reduction is not None or "reduction" in (spec or {})):
            raise GaccError("ddp=True has the reduction of DistributedDataParallel", reason="INVALID_ARGUMENT", hint="leave reduction out, or ddp")
        if parameters not in ("copy", "view"):
            raise GaccError(f"parameters is {parameters!r}: copy or view", reason="INVALID_ARGUMENT")
        groups = Groups(params, ddp)
        more = {}
        if ddp:
            job, rank, world = group_identity(job, rank, world)
            reduction, more = "fixed_divisor", {"fixed_divisor": float(world)}
        for p in groups.params:
            before = _owners.get(p)
            if before and before():
                before().close()
        wanted = Wanted(optimizer, lr, micro_size, hyper, spec or {}, reduction=reduction, grad_of=grad_of, clip_norm=clip_norm, schedule=schedule, **more)
        self.session = join(wanted, groups, job, rank, world, endpoint, attach or {})
        try:
            defaults = _defaults(self.session.spec.optimizer, lr)
            self._built = False
            super().__init__(groups.groups, defaults)
            self._watch = Watch(self.param_groups, float(defaults["lr"]), self.session.spec.schedule.type > 1)
            self._gradients = Gradients(self.session, groups.names, groups.params, parameters == "view")
        except BaseException:
            self.session.close()
            raise
        self._built, self._frozen, self._backwards = True, groups.frozen, backwards
        self.ddp = ddp
        self._last: Optional[Step] = None
        self._scaled = False  # a GradScaler has multiplied the loss
        self._micro, self._is_closed, self._checked = 0, False, False  # of the open window: pushed, closed by us, parameters looked at
        self.stepped = False
        self.key_of: Optional[Callable[[int, int], int]] = None  # data_key of a micro-batch (Sampler)
        self._weight: Optional[float] = None
        self._loss: Any = None
        self.boundary = boundary
        me = weakref.ref(self)
        for p in groups.params:
            _owners[p] = me
        self._leaves(self._gradients.leave)
        self._gradients.fetch()

    # ---- what there is to know ----

    @property
    def boundary(self) -> str:
        return self._boundary

    @boundary.setter
    def boundary(self, boundary: str) -> None:
        """For adapters: before the first micro-batch."""
        self._boundary = boundary
        me = weakref.WeakMethod(self._ended)
        self._gradients.on_end = None if boundary == "count" else lambda: _call(me())

    @property
    def last(self) -> Optional[Step]:
        """How the last window ended: outcome, grad_norm before clipping, lr, mean_loss, ... None before the first."""
        return self._last

    @property
    def window(self) -> int:
        """Number of the open window."""
        return int(self.session.window)

    @property
    def missing(self) -> list[int]:
        """Micro-batches of the open window that this rank owes. After a restart: those that were not counted."""
        return list(self.session.missing)

    @property
    def micro_size(self) -> int:
        return int(self.session.micro_size)

    @property
    def done(self) -> bool:
        """The job has all its steps (spec={"steps": n})."""
        return bool(self.session.done)

    @property
    def clip_norm(self) -> float:
        return float(self.session.spec.clip_norm)

    # ---- a micro-batch ----

    def micro(self, weight: Any = None, scale: float = 1.0, loss: Any = None) -> None:
        """Before backward(), with boundary "step": the weight of the micro-batch that it makes, and by what to multiply its gradients because the loss was
        divided by it."""
        if self.ddp and scale != 1:
            raise GaccError("micro(scale=..) with ddp=True, which takes gradients as the loss has them", reason="INVALID_ARGUMENT", hint="leave scale out")
        self._weight, self._gradients.scale = weight, float(scale)
        self._loss = loss

    def divided_by(self, divisor: float, loss: Any = None) -> None:
        """For adapters, before backward(): the loss is going to be divided by this, besides what micro() says. `loss`: before that. With
        ddp=True the division stays."""
        if self._loss is None and loss is not None:
            self._loss = number(loss) * self._gradients.scale
        if not self.ddp:
            self._gradients.scale *= float(divisor)

    def close_by_step(self) -> None:
        """For adapters: boundary "step" from now on."""
        if self._micro or self._gradients.touched:
            raise GaccError("a window is open", reason="BOUNDARY", hint="attach before the first backward()")
        self.boundary = "step"

    @property
    def pushed(self) -> int:
        """Micro-batches that this process has given to the open window."""
        return self._micro

    def give_up(self) -> None:
        """For adapters: what a backward() has left that was not pushed, because it failed, is not of this or another micro-batch."""
        self._gradients.clear()
        self._weight = self._loss = None

    def _ended(self) -> None:
        """The end of a backward, boundary "step"."""
        if self._is_closed:
            raise GaccError("a backward() after grad_norm() or clip_grad_norm_(), which have closed the window", reason="WINDOW_CLOSED",
                            hint="call step() first")
        if self._micro >= self.session.micro_size:
            raise GaccError(f"a window has at most micro_size = {self.session.micro_size} micro-batches, and step() was not called", reason="WINDOW_FULL",
                            hint="give a larger micro_size; it is the most that there may be")
        self._push(self._weight, self._loss, self._micro)
        self._weight = self._loss = None

    def _push(self, weight: Any, loss: Any, micro: Optional[int] = None) -> None:
        g = self._gradients
        if self.session.loss_scale != 1 and not self._scaled:
            raise GaccError(f"the job's loss scale is {self.session.loss_scale:g}, and the loss was not multiplied by it", reason="LOSS_SCALE",
                            hint="loss = gacc.torch.GradScaler(opt).scale(loss), before backward()")
        if not self._checked:
            g.check_unchanged(True)
            self._check_frozen()
            self._checked = True
        weight = 1.0 if weight is None else number(weight)
        if weight == 0:  # nothing was averaged, and the mean over nothing is NaN
            g.zero(sorted(g.touched))
        lr = self._watch.lr(self.param_groups)
        lr = lr or (0.0 if self._watch.is_scheduled else LEAST)
        key = 0
        if self.key_of is not None and self.session.missing:
            key = self.key_of(self.session.window, self.session.missing[0] if micro is None else micro)
        more = len(self.session.missing) > 1  # the last one is waited for in any case, and what it is refused for is raised while its gradients are here
        self.session.push(weight or LEAST, 0.0 if loss is None else number(loss), lr, micro, present=g.present(), data_key=key, asynchronous=more,
                          stream=g.stream())
        g.clear()
        self._micro += 1
        self._scaled = False

    def _check_frozen(self) -> None:
        for name, p in self._frozen:
            if p.requires_grad:
                raise GaccError(f"parameter {name} was frozen when the Optimizer was made, so the job does not have it", reason="NOT_SUPPORTED",
                                hint="make the Optimizer when all that is to be trained requires gradients")

    def _restart_window(self) -> None:
        self._micro, self._is_closed, self._checked = 0, False, False

    # ---- the step ----

    @without_dynamo
    def step(self, closure: Optional[Callable[[], Any]] = None, *, weight: Any = None, loss: Any = None, empty: bool = False) -> Any:
        """boundary "count": after backward(), for every micro-batch. boundary "step": at the end of a window. Returns what the closure returns; how the
        window ended is in `last`, and `stepped` says whether this call brought new parameters.

        weight    samples or tokens that the loss was averaged over; None: 1. 0: the micro-batch counts as one without gradients
        loss      for Step.mean_loss
        empty     there was no backward(): this micro-batch has nothing to give
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
            loss = result if loss is None else loss
        self.stepped = False
        if self._boundary == "count":
            self._step_of_micro(weight, loss, empty)
        else:
            self._step_of_window(empty)
        return result

    def _step_of_micro(self, weight: Any, loss: Any, empty: bool) -> None:
        g = self._gradients
        if empty and not g.touched:
            g.zero([0])
            g.touched.add(0)
            weight = 0.0 if weight is None else weight
        elif not g.touched:
            raise GaccError("step() without a backward() that reached a parameter", reason="NO_GRADIENT",
                            hint="a micro-batch without one: step(empty=True)")
        elif g.backwards not in (0, self._backwards):  # 0: all inside others
            raise GaccError(f"step() after {g.backwards} backward() calls instead of {self._backwards}: with boundary=\"count\" it is called for every "
                            "micro-batch", reason="BOUNDARY", hint="several losses: backwards=n. A library that accumulates by itself: "
                            "gacc.accelerate.attach, gacc.transformers.attach, gacc.lightning.Callback, or boundary=\"step\"")
        self._push(weight, loss)
        if not self.session.missing:
            self._close_window()
            self._open_window()

    def _step_of_window(self, empty: bool) -> None:
        self.refuse_open("step()")
        if not (self._micro or self._is_closed or empty):
            raise GaccError("step() without a backward() that reached a parameter", reason="NO_GRADIENT", hint="a window without one: step(empty=True)")
        self._close_window()
        self._open_window()

    def refuse_open(self, what: str) -> None:
        """Raises if there are gradients that were not pushed."""
        if self._gradients.touched:
            nested = "all gradients came from inside checkpoint(use_reentrant=True): use_reentrant=False"
            hint = "call step() for it" if self._boundary == "count" else nested
            raise GaccError(f"{what} while a backward() has not been pushed", reason="BOUNDARY", hint=hint)

    def _close_window(self) -> None:
        if self._is_closed:
            return
        if self.session.missing:
            self.session.flush()
        step = self.session.wait()
        self._last = dataclasses.replace(step, lr=0.0) if step.lr == LEAST else step
        self._is_closed = True

    def _open_window(self) -> None:
        assert self._last
        self._gradients.fetch()
        self.stepped = self._last.applied
        self._watch.show(self.param_groups, self._last.lr)
        self._restart_window()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Gives up a backward() that was not stepped (boundary "count"); else there is nothing to do."""
        if self._boundary == "count":
            self._gradients.clear()

    def log(self, values: Optional[Mapping[str, Any]] = None, /, **named: Any) -> None:
        """Numbers for the job's history: see gacc.Session.log."""
        self.session.log(values, **named)

    def flush(self) -> None:
        """The end of the data: closes the window with the micro-batches that it has, with their true divisor. With more ranks it also joins a window that
        only others have pushed to."""
        self.refuse_open("flush()")
        self.stepped = False
        if self.session.done or (self.session.world_size == 1 and not self._micro and len(self.session.missing) == self.session.micro_size):
            return
        self._close_window()
        self._open_window()

    def finish(self) -> None:
        """This rank has no more data: joins the windows of the ranks that still have some, so that all end with the same parameters. Returns when every
        rank has called it, has left, or has nothing more."""
        stepped = False
        while not self.session.done:
            self.flush()
            stepped |= self.stepped
            if self.session.world_size == 1 or (self._last and self._last.outcome == "EMPTY"):
                break
        self.stepped = stepped

    def grad_norm(self) -> float:
        """The 2-norm of the averaged gradient before clipping. boundary "step": closes the window, and step() brings the parameters. boundary "count": of
        the last window; NaN before the first."""
        if self._boundary == "step":
            self.refuse_open("grad_norm()")
            self._close_window()
        return self._last.grad_norm if self._last else float("nan")

    def check_clip_norm(self, max_norm: Any) -> torch.Tensor:
        """Raises unless the job clips at max_norm (inf: whatever it does). Returns NaN: the norm is known when the window is closed."""
        if number(max_norm) not in (self.clip_norm, float("inf")):
            raise GaccError(f"clipping at {number(max_norm):g}, and the job has clip_norm {self.clip_norm:g}", reason="CLIP_MISMATCH",
                            hint=f"Optimizer(clip_norm={number(max_norm):g})")
        return torch.tensor(float("nan"))

    def clip_grad_norm_(self, max_norm: Any) -> torch.Tensor:
        """In the place of torch.nn.utils.clip_grad_norm_: the daemon clips at clip_norm, which max_norm must be (or inf, to ask for the norm alone).
        Returns grad_norm()."""
        self.check_clip_norm(max_norm)
        return torch.tensor(self.grad_norm())

    # ---- what torch and libraries ask an optimizer ----

    def state_dict(self) -> dict[str, Any]:
        """param_groups, and where the job stands. The daemon has the optimizer's state (and saves it: spec={"checkpoint": ...})."""
        s = self.session
        position = {"job": s.job_id, "window": s.window, "applied_step": s.applied_step, "missing": list(s.missing)}
        return {**super().state_dict(), "state": {}, "gacc": position}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes param_groups (learning rates), and compares the position. It never moves the daemon: to go back, start a job with restore_from."""
        position = state_dict.get("gacc")
        if position is None:
            raise GaccError("this is not the state of a gacc.torch.Optimizer", reason="STATE_MISMATCH", hint="moments cannot be loaded into the daemon")
        position = {k: torch.as_tensor(v).tolist() for k, v in position.items()}
        s = self.session
        if position["job"] != s.job_id and not s.spec.restore_from:
            raise GaccError(f"this is the state of job {position['job']}, and the Optimizer has job {s.job_id}", reason="STATE_MISMATCH",
                            hint='attach to that job, or start this one with spec={"restore_from": its checkpoint}')
        if position["applied_step"] > s.applied_step:
            raise GaccError(f"the state is of step {position['applied_step']}, and the job is at step {s.applied_step}", reason="STATE_MISMATCH",
                            hint="restore the job from a later checkpoint")
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "gacc"})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._built:
            raise GaccError("add_param_group: the tensors of a job do not change", reason="NOT_SUPPORTED",
                            hint="make a new Optimizer, which starts a new job")
        super().add_param_group(param_group)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        raise GaccError("torch's GradScaler looks for gradients in .grad and finds none", reason="NOT_SUPPORTED", hint="use gacc.torch.GradScaler(opt)")

    __deepcopy__ = _refusal("a copy of the Optimizer would be a second rank in the same place", "copy the model alone")
    __reduce_ex__ = _refusal("an Optimizer belongs to its process", "save state_dict()")


def _defaults(job: Any, lr: Optional[float]) -> dict[str, Any]:
    """What param_groups show, as those of torch's optimizers."""
    values = {"lr": job.lr if lr is None else float(lr), "weight_decay": job.weight_decay}
    if job.type == 2:
        return {**values, "momentum": job.momentum, "dampening": job.dampening, "nesterov": job.nesterov}
    return {**values, "betas": (job.beta1, job.beta2), "eps": job.eps}
