# SPDX-License-Identifier: Apache-2.0
"""gacc for Colossal-AI, 0.5, and for loops in the form of its guide to gradient accumulation.

    opt = gacc.torch.Optimizer(model, "sgd", lr=0.1, micro_size=4)     # micro_size: at least the number that the loop divides by
    booster = Booster(plugin=TorchDDPPlugin())
    model, opt, criterion, loader, scheduler = booster.boost(model, opt, criterion, loader, scheduler)
    gacc.colossalai.attach(booster, model, opt, 4)

The loop stays as it is: booster.no_sync(model), the loss divided by 4, booster.backward(loss, opt), opt.step() at the boundary; or Gemini's loop, which
has no no_sync. Without Colossal-AI, attach(None, model, opt, 4), and no_sync() and backward() of this module are for the same loop.
"""
from __future__ import annotations

import contextlib
import functools
import math
import weakref
from typing import Any, Callable, Iterator

import torch

from .errors import GaccError
from .torch.optimizer import Optimizer
from .torch.wrapped import ALREADY_REDUCED, group_size, stop_reducing

PLUGINS = ("NoneType", "TorchDDPPlugin")  # the others shard parameters, gradients or the optimizer's state
_loops: "weakref.WeakKeyDictionary[Optimizer, _Loop]" = weakref.WeakKeyDictionary()


def unwrapped(opt: Any) -> Optimizer:
    """The gacc.torch.Optimizer in an OptimizerWrapper."""
    inner = opt
    while not isinstance(inner, Optimizer) and hasattr(inner, "optim"):
        inner = inner.optim
    if not isinstance(inner, Optimizer):
        raise GaccError(f"not a gacc.torch.Optimizer but a {type(inner).__name__}", reason="INVALID_ARGUMENT")
    return inner


class _Loop:
    """Where a loop stands in its window.

    model         that boost() returned, weakly
    k             what it divides the loss by, and the most micro-batches of a window
    depth         of no_sync() blocks around the caller
    was_inside    a micro-batch of the window was inside no_sync()
    has_boundary  and one after it was outside
    seen          micro-batches of the window that came through backward()
    """

    def __init__(self, model: Any, k: int):
        self.model, self.k, self.depth = weakref.ref(model), k, 0
        self._begin()

    def _begin(self) -> None:
        self.was_inside = self.has_boundary = False
        self.seen = 0

    def _look(self, opt: Optimizer) -> None:
        """Another window may have begun, and one of its micro-batches may have come by loss.backward()."""
        if opt.pushed == 0:
            self._begin()
        elif opt.pushed != self.seen:
            raise GaccError(f"a backward() of this window was not booster.backward(loss, optimizer): the division of its loss by {self.k} was not undone",
                            reason="BOUNDARY", hint="booster.backward, or gacc.colossalai.backward, for every micro-batch")

    def backward(self, opt: Optimizer, loss: Any, run: Callable[[], None]) -> None:
        self._look(opt)
        if self.has_boundary:
            raise GaccError("a backward() after the boundary's, which was the one outside no_sync(), and no step()", reason="BOUNDARY",
                            hint="call step() after the backward() outside no_sync()")
        if opt.pushed >= self.k:
            raise GaccError(f"backward() number {self.k + 1} since the last step(), and the loss is divided by {self.k}", reason="BOUNDARY",
                            hint=f"call step() after {self.k} micro-batches, or say the right number to attach()")
        opt.divided_by(self.k, loss.detach() * self.k)
        try:
            run()
        except BaseException:
            opt.give_up()
            raise
        if opt.pushed == self.seen:
            opt.refuse_open("the end of booster.backward()")
            opt.give_up()
            raise GaccError("backward() reached no parameter of the Optimizer", reason="NO_GRADIENT", hint="is it the loss of the boosted model?")
        self.seen = opt.pushed
        self.has_boundary = self.was_inside and self.depth == 0
        self.was_inside |= self.depth > 0

    def before_step(self, opt: Optimizer, what: str = "step()") -> None:
        self._look(opt)
        if self.depth:
            raise GaccError(f"{what} inside no_sync()", reason="BOUNDARY",
                            hint="leave the with block: the boundary's backward() and step() are outside of it")
        if self.was_inside and not self.has_boundary:
            raise GaccError(f"{what} after micro-batches inside no_sync() alone: the boundary's backward() is missing", reason="BOUNDARY",
                            hint="the last backward() before step() is outside no_sync(); at the end of the data: flush()")

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1


def attach(booster: Any, model: Any, opt: Any, accumulation: int) -> Optimizer:
    """Makes a loop of Colossal-AI's form train with this optimizer; after boost(), and before the first backward().

    booster        a Booster without a plugin, or with TorchDDPPlugin; None: the loop has no_sync() and backward() of this module
    model, opt     as boost() returned them
    accumulation   what the loop divides the loss by, GRADIENT_ACCUMULATION in the guide; at most the Optimizer's micro_size

    * Each booster.backward(loss, opt) is a micro-batch, inside booster.no_sync(model, opt) as well as outside; opt.step() closes the window, also a short
      one. Micro-batches inside need the one outside before step(); a loop without no_sync() just calls step(). Anything else is an error (BOUNDARY).
    * The division by `accumulation` is undone as gradients are copied, and the daemon divides by the true weight: that of micro(), said to the Optimizer
      before backward(), or 1. So a window of 3 is divided by 3, where the loop has divided by 4.
    * opt.clip_grad_by_norm() answers with the daemon's norm; its max_norm must be the Optimizer's clip_norm, or inf.
    * zero_grad() does nothing.

    Ranks are processes with GACC_RANK and GACC_WORLD_SIZE, each with a process group of its own: colossalai.launch(rank=0, world_size=1, ..). With
    Optimizer(.., ddp=True), made after launch(), they are Colossal-AI's process group, and the division stays. Returns the
    Optimizer, with `stepped`, `last`, `flush()` for the end of the data, and `finish()` where other ranks may have more.
    """
    inner = unwrapped(opt)
    if not isinstance(accumulation, int) or accumulation < 1:
        raise GaccError(f"accumulation is {accumulation!r}: the number that the loss is divided by, 1 or more", reason="INVALID_ARGUMENT")
    if accumulation > inner.micro_size:
        raise GaccError(f"accumulation is {accumulation}, and a window has at most micro_size = {inner.micro_size} micro-batches", reason="WINDOW_FULL",
                        hint=f"Optimizer(micro_size={accumulation})")
    if group_size() > 1 and not inner.ddp:
        raise GaccError(f"there is a process group of {group_size()} processes: {ALREADY_REDUCED}", reason="NOT_SUPPORTED",
                        hint="colossalai.launch(rank=0, world_size=1, ..) in each process, and ranks by GACC_RANK and GACC_WORLD_SIZE; or keep it with "
                             "Optimizer(model, .., ddp=True)")
    if booster is not None:
        _refuse_booster(booster, opt)
    inner.close_by_step()
    if inner not in _loops:
        inner.register_step_pre_hook(lambda optimizer, args, kwargs: _loops[optimizer].before_step(optimizer))
    _loops[inner] = _Loop(model, accumulation)
    if booster is not None:
        stop_reducing(model)  # also of one process, where DDP would fill .grad with zeros
        _wrap_booster(booster)
        _wrap_clipping(opt, inner)
    return inner


def _refuse_booster(booster: Any, opt: Any) -> None:
    plugin, wrapper = type(booster.plugin).__name__, type(opt).__name__
    if plugin not in PLUGINS:
        raise GaccError(f"{plugin} divides parameters, gradients or the optimizer's state among processes, and gaccd has them already",
                        reason="NOT_SUPPORTED", hint="Booster(plugin=TorchDDPPlugin()); the loop stays as it is, also one without no_sync()")
    if isinstance(opt, Optimizer):
        raise GaccError("the Optimizer was not boosted", reason="INVALID_ARGUMENT", hint="model, opt, *_ = booster.boost(model, opt), then attach()")
    if wrapper != "OptimizerWrapper":
        raise GaccError(f"the Booster's mixed precision has made a {wrapper}, which scales the loss itself", reason="NOT_SUPPORTED",
                        hint="a Booster without mixed_precision, and a model in bfloat16")


def _loop_of(opt: Any) -> tuple[Optimizer, _Loop]:
    inner = unwrapped(opt)
    if inner not in _loops:
        raise GaccError("the Optimizer is not attached", reason="INVALID_ARGUMENT", hint="gacc.colossalai.attach(booster, model, opt, accumulation)")
    return inner, _loops[inner]


@contextlib.contextmanager
def no_sync(model: Any, opt: Any) -> Iterator[None]:
    """Micro-batches inside are counted, and the window stays open: the boundary is the backward() outside, and the step() after it. The model is not
    used; gradients of micro-batches go nowhere but to this node's gaccd anyway."""
    with _loop_of(opt)[1].inside():
        yield


def backward(loss: Any, opt: Any) -> None:
    """In the place of booster.backward(): a micro-batch, whose loss was divided by attach()'s accumulation."""
    inner, loop = _loop_of(opt)
    loop.backward(inner, loss, loss.backward)


def _wrap_booster(booster: Any) -> None:
    """Once for each Booster, which may have several models. Optimizers that are not attached are left alone."""
    if hasattr(booster.backward, "_gacc"):
        return
    its_backward, its_no_sync = booster.backward, booster.no_sync

    @functools.wraps(its_backward)
    def new_backward(loss: Any, optimizer: Any) -> None:
        if getattr(optimizer, "optim", None) not in _loops:
            return its_backward(loss, optimizer)  # type: ignore[no-any-return]
        inner, loop = _loop_of(optimizer)
        return loop.backward(inner, loss, lambda: its_backward(loss, optimizer))

    @contextlib.contextmanager
    def new_no_sync(model: Any = None, optimizer: Any = None) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(its_no_sync(model, optimizer))
            for loop in [loop for loop in _loops.values() if loop.model() is model]:  # the guide gives the model alone
                stack.enter_context(loop.inside())
            yield
    new_backward._gacc = True  # type: ignore[attr-defined]
    booster.backward, booster.no_sync = new_backward, new_no_sync


def _wrap_clipping(wrapper: Any, opt: Optimizer) -> None:
    def clip_grad_by_norm(max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, *args: Any, **kwargs: Any) -> torch.Tensor:
        if float(norm_type) != 2:
            raise GaccError(f"clipping by the {norm_type}-norm; a job clips by the 2-norm", reason="CLIP_MISMATCH")
        _loops[opt].before_step(opt, "clip_grad_by_norm()")
        norm = opt.clip_grad_norm_(max_norm)
        if error_if_nonfinite and not math.isfinite(norm):
            raise GaccError(f"the norm of the gradient is {float(norm)}", reason="NONFINITE", hint="step() passes over this window")
        return norm

    def clip_grad_by_value(clip_value: float, *args: Any, **kwargs: Any) -> None:
        if float(clip_value) != opt.session.spec.clip_value:
            raise GaccError(f"clipping values at {clip_value:g}, and the job has clip_value {opt.session.spec.clip_value:g}", reason="CLIP_MISMATCH",
                            hint=f'Optimizer(spec={{"clip_value": {clip_value:g}}})')
    wrapper.clip_grad_by_norm, wrapper.clip_grad_by_value = clip_grad_by_norm, clip_grad_by_value
