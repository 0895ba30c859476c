# SPDX-License-Identifier: Apache-2.0
"""The way between a model and the daemon's memory: hooks copy each gradient into the slot as backward produces it, and fetch() copies the new
parameters back. From a GPU to slots in the host's memory they are copied on a stream of the session's, and nobody waits for that (gpu_slots.py).

Gradients are no views of the slot, because zero_grad() would drop them. Parameters are views of the daemon's only on request (views.py).
"""
from __future__ import annotations

import logging
import sys
import warnings
import weakref
from typing import Any, Callable, Optional, Sequence

import numpy as np
import torch
from torch.autograd import Variable, graph

from ..device import DeviceArray
from ..errors import GaccError
from .views import ViewParameter, check_viewable, release, show

log = logging.getLogger("gacc")

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
TYPES = {name: t for t, name in DTYPES.items()}
_BACKWARD = getattr(getattr(graph, "_engine_run_backward", None), "__code__", None)  # of every call of the autograd engine
_FUNCTION = getattr(torch.autograd.function.BackwardCFunction.apply, "__code__", None)  # of every backward of an autograd.Function in Python


def without_dynamo(function: Any) -> Any:
    """torch.compile leaves this function as it is, as it does with torch's own optimizers."""
    disable = getattr(torch, "_disable_dynamo", None)
    return disable(function) if disable else function


def tensor_of(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """The same memory as a tensor; numpy has bf16 as its bits. Memory of a device is one of its current context's."""
    if isinstance(array, DeviceArray):
        signed = array.view(np.int16) if array.dtype == np.uint16 else array  # torch takes no uint16 from there
        t = torch.as_tensor(signed, device="cuda")
        return t.view(dtype) if t.dtype != dtype else t
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the parameters are not writable, and nobody here writes to them
        t = torch.from_numpy(array)
    return t.view(dtype) if t.dtype != dtype else t


def is_nested(own: int = 0) -> bool:
    """Inside a backward that another backward's function runs, as reentrant checkpointing does. The outer one is on this thread's stack, or, where it
    belongs to a thread of the engine (for devices), only that function is. `own`: functions in Python on the stack that are the caller's."""
    depth, functions, frame = 0, 0, sys._getframe(1)
    while frame:
        if frame.f_code is _BACKWARD:
            depth += 1
        elif frame.f_code is _FUNCTION:
            functions += 1
        frame = frame.f_back  # type: ignore[assignment]
    return functions > own or depth > 1


def _hook(of: "weakref.ref[Gradients]", i: int) -> Any:
    @without_dynamo
    def take(p: torch.Tensor) -> None:
        gradients = of()
        if gradients is not None:
            gradients.take(i, p)
    return take


class Gradients:
    """The parameters of one rank: what backward has left in the slot, and what the daemon has. Hooks refer to it weakly.

    touched    indices of the parameters that have a gradient in the slot
    backwards  since the last clear(); one inside another is not counted
    scale      multiplies every gradient as it is copied
    is_view    parameters are the daemon's memory, and not copies
    on_end     called at the end of each outermost backward that reached a parameter, if it is not None
    """

    def __init__(self, session: Any, names: Sequence[str], params: Sequence[torch.Tensor], is_view: bool = False):
        if is_view:
            check_viewable(session, names, params)
        self.is_view = is_view
        self.session, self.names, self.params = session, list(names), list(params)
        self.dtypes = [p.dtype for p in params]
        self.touched: set[int] = set()
        self.backwards, self.scale = 0, 1.0
        self.on_end: Optional[Callable[[], None]] = None
        self._tasks: set[int] = set()  # of the autograd engine, since the last clear()
        self._versions: list[int] = []
        self._slots: dict[int, list[torch.Tensor]] = {}
        self._slot = 0  # that of _views
        self._views: Optional[list[torch.Tensor]] = None  # of the slot that the next push uses
        parameters = session.parameters
        self.values = [tensor_of(parameters[n], p.dtype) for n, p in zip(names, params)]
        self._gpus = {p.device for p in params if p.is_cuda}
        self.is_pinned = self._pin()
        self._numbers = {id(p): i for i, p in enumerate(params)}
        me = weakref.ref(self)
        self.handles: list[Any] = [p.register_post_accumulate_grad_hook(_hook(me, i)) for i, p in enumerate(params)]
        for p in params:
            p.grad = None

    def _pin(self) -> bool:
        """Of a model on one GPU."""
        if len(self._gpus) != 1:
            return False
        try:
            with torch.cuda.device(*self._gpus):
                torch.cuda.current_stream().synchronize()  # whose context is this thread's now
                return bool(self.session.use_gpu())
        except GaccError as e:
            log.warning("rank %d: gradients are copied one by one, as the slots cannot be pinned: %s", self.session.rank, e)
            return False

    # ---- backward ----

    def take(self, i: int, p: torch.Tensor) -> None:
        """A parameter's gradient is complete: into the slot with it. A second one of the same micro-batch is added."""
        grad = p.grad
        if grad is None:
            return
        p.grad = None
        if grad.layout is not torch.strided:
            raise GaccError(f"the gradient of {self.names[i]} is sparse", reason="NOT_SUPPORTED", hint="make the layer with sparse=False")
        if grad.dtype != self.dtypes[i]:
            raise self._changed_type(i)
        if grad.requires_grad:
            grad = grad.detach()
        self._enter()
        view = self.views()[i]
        if grad.shape != view.shape:
            raise GaccError(f"the gradient of {self.names[i]} has the shape {tuple(grad.shape)}, and the parameter had {tuple(view.shape)}",
                            reason="PARAMETER_CHANGED", hint="change the model before the Optimizer is made")
        if self.is_pinned and grad.is_cuda and i not in self.touched:
            self._bring(i, grad, view.dtype)
        elif i in self.touched:
            self.finish_copies()
            view.add_(grad.to(view.device), alpha=self.scale)
        elif self.scale == 1.0:
            view.copy_(grad)
        elif grad.device == view.device:
            torch.mul(grad, self.scale, out=view)
        else:
            view.copy_(grad * self.scale)
        self.touched.add(i)

    def write(self, p: torch.Tensor, rows: torch.Tensor, inputs: torch.Tensor) -> bool:
        """A linear layer's gradient is computed where it belongs (fused.py). False: it is not, as it goes another way, or somebody wants to see it."""
        hooks = getattr(p, "_post_accumulate_grad_hooks", None)
        i = self._numbers.get(id(p))
        if i is None or p._backward_hooks or (hooks and len(hooks) > 1) or rows.dtype != inputs.dtype:
            return False
        self._enter(own=1)
        view = self.views()[i]
        if view.device != rows.device or view.dtype != rows.dtype or view.shape != (rows.shape[1], inputs.shape[1]):
            return False
        if i in self.touched:
            view.addmm_(rows.t(), inputs, alpha=self.scale)
        else:
            torch.addmm(view, rows.t(), inputs, beta=0, alpha=self.scale, out=view)  # beta 0: what is there is not read
        self.touched.add(i)
        return True

    def _bring(self, i: int, grad: torch.Tensor, dtype: torch.dtype) -> None:
        """Behind what made the gradient. From memory of our own, which torch keeps until the copy is made: the gradient's may be a graph's, which writes
        to it again when it is replayed."""
        source = (grad if self.scale == 1.0 else grad * self.scale).to(dtype).contiguous()
        if source.data_ptr() == grad.data_ptr():
            source = grad.clone(memory_format=torch.contiguous_format)
        self.session.copy(self.names[i], source.data_ptr(), torch.cuda.current_stream(source.device).cuda_stream, self._slot, source.nbytes)
        source.record_stream(torch.cuda.ExternalStream(self.session.gpu_stream, source.device))

    def finish_copies(self) -> None:
        if self.is_pinned:
            self.session.finish_copies()

    def stream(self) -> Optional[int]:
        """On which all gradients of this micro-batch are complete, after backward(); None: they are now, or the session's copies say when."""
        if self.is_pinned or len(self._gpus) != 1:
            return None
        return int(torch.cuda.current_stream(*self._gpus).cuda_stream)

    def _enter(self, own: int = 0) -> None:
        task = torch._C._current_graph_task_id()
        if task in self._tasks:
            return
        self._tasks.add(task)
        if is_nested(own):
            return  # its end is not the end of the micro-batch
        self.backwards += 1
        if self.on_end is not None:
            Variable._execution_engine.queue_callback(self._ended)

    def _ended(self) -> None:
        if self.on_end is not None:
            self.on_end()

    def views(self) -> list[torch.Tensor]:
        if self._views is None:
            arrays = self.session.slot()
            first = arrays[self.names[0]]
            at = first.address if isinstance(first, DeviceArray) else first.__array_interface__["data"][0]
            if at not in self._slots:
                types = self.session.gradient_types
                self._slots[at] = [tensor_of(arrays[n], TYPES[types[n]]) for n in self.names]
            self._views, self._slot = self._slots[at], self.session.next_slot
        return self._views

    def zero(self, indices: Sequence[int]) -> None:
        self.finish_copies()
        for i in indices:
            self.views()[i].zero_()

    def present(self) -> Optional[list[str]]:
        """Names of the touched tensors; None: all."""
        return None if len(self.touched) == len(self.names) else [self.names[i] for i in sorted(self.touched)]

    def clear(self) -> None:
        """The micro-batch is pushed, or given up."""
        self.touched.clear()
        self._tasks.clear()
        self.backwards, self.scale, self._views = 0, 1.0, None

    # ---- parameters ----

    def fetch(self) -> None:
        """The daemon's parameters into the model."""
        if self._versions:
            self.check_unchanged(False)
        if self.is_view:
            self._look_again()
        else:
            with torch.no_grad():
                for p, value in zip(self.params, self.values):
                    p.copy_(value)
        self._versions = [p._version for p in self.params]

    def _look_again(self) -> None:
        """The memory has new values. A graph from before would give wrong gradients: torch is told that its tensors were changed, and raises then."""
        for p, value in zip(self.params, self.values):
            if not isinstance(p, ViewParameter):
                show(p, value)
            graph.increment_version(p)

    def check_unchanged(self, values_may_be_read: bool) -> None:
        """Raises if somebody has changed a parameter: its gradients are those of the changed one, and the next fetch() would overwrite it. What is equal
        to the daemon's passes, where that can be told: before this rank's first push of a window."""
        for i, p in enumerate(self.params):
            if p.dtype != self.dtypes[i]:
                raise self._changed_type(i)
            if self.is_view and p.data_ptr() != self.values[i].data_ptr():
                raise GaccError(f'parameter {self.names[i]} has other memory than that of parameters="view"', reason="PARAMETER_CHANGED",
                                hint="change parameters before the Optimizer is made")
            if p._version == self._versions[i]:
                continue
            if values_may_be_read and torch.equal(p.detach().to(self.values[i].device), self.values[i]):
                self._versions[i] = p._version
                continue
            raise GaccError(f"parameter {self.names[i]} was changed in place; the daemon has another value", reason="PARAMETER_CHANGED",
                            hint="load or change parameters before the Optimizer is made")

    def _changed_type(self, i: int) -> GaccError:
        return GaccError(f"parameter {self.names[i]} was {self.dtypes[i]} when the Optimizer was made and is {self.params[i].dtype} now",
                         reason="PARAMETER_CHANGED", hint="convert the model first")

    def leave(self) -> None:
        """The model is its own again."""
        self._numbers.clear()
        for handle in self.handles:
            handle.remove()
        for p in self.params:
            if isinstance(p, ViewParameter):
                release(p)
