# SPDX-License-Identifier: Apache-2.0
"""A rank of a job: what a training loop needs, without torch.

    with gacc.attach() as session:                       # job and rank from the environment: gaccctl run, torchrun, srun, mpirun
        session.register({"weight": ("f32", (8,)), "bias": ("f32", (1,))})
        if session.params_needed:
            session.upload({"weight": w0, "bias": b0})
        while not session.done:
            for micro in session.missing:                # the micro-batches that this rank owes to the open window
                gradients = session.slot()               # numpy arrays in shared memory
                gradients["weight"][:], gradients["bias"][:], loss = backward(session.parameters, batch_of(session.window, micro))
                session.push(weight=len(batch), loss=loss)
            step = session.wait()                        # all ranks' gradients are in, the parameters are new
"""
from __future__ import annotations

import contextlib
import logging
import sys
import time
import weakref
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

from . import inline
from .dtypes import Array, as_wire, short_name
from .errors import LATE, GaccError
from .gpu_slots import PinnedSlots
from .layout import Layout, TensorSet, tensors_of
from .link import Link
from .memory import PARAMETERS, REDUCED, SLOT
from .own import Own
from .progress import Progress, progress
from .pushing import PATIENCE_S, Pushing, Sent
from .results import Step, step_of
from .scalars import Scalars
from .tensor_calls import declare, put

log = logging.getLogger("gacc")

SETUP_S = 60.0
DETACH_S = 5.0
GRACE_S = 5.0  # for an answer that gaccd was to give in no time


class Session(Pushing, Own):
    """One rank's place in a job. Made by gacc.attach(). One thread at a time. In a forked child every call is refused (reason FORKED).

    After a restart of gaccd it attaches anew by itself and goes on; arrays from slot() and parameters stay valid. Every call that waits can be
    interrupted by Ctrl-C, and may be repeated then. All errors are GaccError.
    """

    def __init__(self, link: Link, owned: Iterable[Any] = (), shows_progress: bool = False):
        self._link, self._owned = link, list(owned)
        self._shows_progress = shows_progress and link.rank == 0
        self._progress: Optional[Progress] = None
        self._params_needed = False
        self._window, self._applied_step, self._micro_size, self._loss_scale = 0, 0, 0, 1.0
        self._missing: list[int] = []
        self._done, self._closed = False, False
        self._slot = 0  # that the next push will use
        self._unknown: Optional[int] = None  # slot of a push that may have been counted, or may still be read
        self._sent: Optional[Sent] = None  # its micro-batch is still among _missing
        self._kept: set[int] = set()  # slots that are not ours before the window is over (accumulate: none)
        self._pending: Optional[int] = None  # optimizer client: the window whose result is not acknowledged
        self._half = 0
        self._views: dict[Any, dict[str, Array]] = {}
        self._scalars, self._last_pushed = Scalars(link), -1  # window of the last push; -1: none yet
        # does not hold this session, which ends when its user has dropped it
        link.resume = weakref.WeakMethod(self._resume)

    # ---- who and where ----

    @property
    def job_id(self) -> int:
        return int(self._link.attached.job_id)

    @property
    def rank(self) -> int:
        return self._link.rank

    @property
    def world_size(self) -> int:
        return self._link.world_size

    @property
    def spec(self) -> Any:
        """The job's specification, as gaccd has it: a message gacc.v1.JobSpec."""
        return self._link.attached.spec

    @property
    def endpoint(self) -> str:
        return self._link.channel.endpoint

    @property
    def has_mailbox(self) -> bool:
        """Pushes and waits go through shared memory."""
        return self._link.usable_mailbox() is not None

    @property
    def is_inline(self) -> bool:
        """Gradients and parameters travel in messages, because gaccd is on another machine."""
        return self._link.inlined

    # ---- setting up ----

    def register(self, tensors: TensorSet, timeout: Optional[float] = SETUP_S) -> None:
        """Declares the tensor set, in this order, equal on all ranks: {name: (dtype, shape)}, {name: array}, or a list of gacc.Tensor, which can
        name tied parameters (alias_of). dtype is the parameter's: f32, bf16 or f16 (a name, numpy's, torch's). Then the memory is mapped.
        """
        self._check_open()
        declared = tensors_of(tensors)
        known = [{"name": t.name, "dtype": t.dtype, "shape": t.shape, "alias_of": t.alias_of} for t in declared]
        answer = declare(self._link, known, timeout)
        parts = list(answer.layout)
        while len(parts) < len(known):
            parts += self._link.call("RegisterTensors", timeout, layout_first=len(parts), layout_limit=50000).layout
        self._link.layout = Layout(declared, parts, answer)
        self._params_needed = answer.params_needed
        self._link.map(timeout or SETUP_S)

    @property
    def _layout(self) -> Layout:
        if self._link.layout is None:
            raise GaccError("no tensors are registered", reason="NOT_READY", hint="call register()")
        layout: Layout = self._link.layout
        return layout

    @property
    def names(self) -> list[str]:
        """Of the registered tensors, in their order."""
        return list(self._layout.names)

    @property
    def slots(self) -> int:
        """Gradient buffers of this rank: 1 or 2."""
        return int(self._layout.slots)

    @property
    def params_needed(self) -> bool:
        """After register(): nobody has given the initial parameters yet, and no init rule does."""
        return self._params_needed

    def upload(self, values: Union[Mapping[str, Any], Sequence[Any]]) -> bool:
        """Initial parameters: arrays by name, or in the order of the tensors; f32 arrays for any type, bf16 also as bits (uint16). The first rank
        that gives them wins: the others' are not used. False: they were there already."""
        self._check_open()
        if not self._params_needed:
            return False
        values = self._layout.wire_values(values)
        if self._link.inlined:
            self._link.run("upload", lambda s: inline.put(self._link, values, s))
        else:
            try:
                put(self._link, self._layout, values)
            except GaccError as e:
                if e.reason != "INVALID_ARGUMENT":  # else a gaccd that was started meanwhile has not seen the first pieces
                    raise
                put(self._link, self._layout, values)
        self._params_needed = False
        return True

    def ready(self, timeout: Optional[float] = None) -> None:
        """Waits until the job runs. Everything that needs a running job calls it; by itself it is for those who want a timeout."""
        self._check_open()
        _ = self._layout
        if self._link.running:
            return
        answer = self._link.call("WaitReady", timeout, "wait for the job to start")
        self._link.running = True
        self._take_position(answer)
        if answer.pending_apply and self._link.is_client_optimizer:
            has = answer.WhichOneof("pending") is not None
            self._pending = answer.pending_window if has else answer.window - 1
        if self._link.inlined and not self._link.is_client_optimizer:
            self._fetch(False)

    # ---- where this rank stands ----

    @property
    def window(self) -> int:
        """Number of the open window; data must be a function of (window, micro, rank)."""
        self.ready()
        return self._window

    @property
    def missing(self) -> list[int]:
        """Micro-batches of the open window that this rank still owes, ascending. After a restart: exactly those that were not counted. Empty:
        call wait(). One whose push was asynchronous is not among them."""
        self.ready()
        sent = self._sent.fields["micro"] if self._sent else None
        return [] if self._done or self._pending is not None else [m for m in self._missing if m != sent]

    @property
    def micro_size(self) -> int:
        """Micro-batches that each rank gives to the open window."""
        self.ready()
        return self._micro_size

    @property
    def applied_step(self) -> int:
        """Steps applied so far."""
        self.ready()
        return self._applied_step

    @property
    def loss_scale(self) -> float:
        """Multiply the loss of the open window by it; push() says it to gaccd. 1: no scaling."""
        self.ready()
        return self._loss_scale

    @property
    def done(self) -> bool:
        """No further window opens: the job has all its steps."""
        self.ready()
        return self._done

    def _take_position(self, answer: Any) -> None:
        self._window, self._applied_step, self._micro_size = answer.window, answer.applied_step, answer.micro_size
        self._loss_scale, self._missing = answer.loss_scale or 1.0, list(answer.missing)

    def _resume(self, answer: Any) -> None:
        """Where a new session of this process stands."""
        if answer.window < self._window:
            raise GaccError(f"window {answer.window} is open, after window {self._window}", reason="STALE_EPOCH", hint="attach again")
        if answer.window > self._window:
            self._missing = []  # it closed while we were away: what is left is its outcome, which wait() asks for
        else:
            self._take_position(answer)

    # ---- memory ----

    def slot(self, i: Optional[int] = None) -> dict[str, Array]:
        """A gradient buffer: name -> writable array in the tensor's shape; bf16 as its bits (uint16), tied tensors once. None: the one that the
        next push will use. It has old bytes: fill all of it, or say `present` to push(). Yours until it is pushed, and again when push() has
        returned. After a push that was interrupted, whose slot may still be read, None is the other one. The arrays stay valid.
        Of a job with slots_on: device they are DeviceArray (gacc/device.py)."""
        self._check_open()
        if i is None and self._unknown == self._slot:
            self._slot, self._unknown = (self._slot + 1) % self._layout.slots, None
        number = self._slot if i is None else i
        if self._sent and self._sent.fields["slot"] == number:
            self._answer_sent()
        if number in self._kept:
            raise GaccError(f"slot {number} is read until its window is over", reason="SLOT_BUSY", hint="call wait()")
        return self._cached(("slot", number), lambda: self._layout.gradients(self._link.memory.data(SLOT, number)))

    @property
    def next_slot(self) -> int:
        """The number of the one that the next push will use."""
        self.slot()
        return self._slot

    @property
    def gradient_types(self) -> dict[str, str]:
        """name -> f32, bf16 or f16, as gradients are in slots: the tensor's own, or the job's gradient_dtype."""
        return {name: short_name(self._layout.parts[i].grad_dtype) for name, i in self._layout.index.items()}

    @property
    def parameters(self) -> dict[str, Array]:
        """name -> read-only array in the tensor's shape; bf16 as its bits (uint16). The same memory for all ranks: stable from wait() until this
        rank's last push of the window, then it changes in place. The arrays stay valid."""
        self.ready()
        return self._cached("parameters", lambda: self._layout.values(self._link.memory.read_only(PARAMETERS, 0)))

    @property
    def reduced(self) -> dict[str, Array]:
        """Optimizer `client`: the averaged, clipped gradients of the last applied window, name -> read-only array, until acknowledge()."""
        self.ready()
        half = 0 if self._link.inlined else self._half
        return self._cached(("reduced", half), lambda: self._layout.sums(self._link.memory.read_only(REDUCED, half)))

    def _cached(self, key: Any, make: Any) -> dict[str, Array]:
        if key not in self._views:
            self._views[key] = make()
        return dict(self._views[key])

    def fill(self, gradients: Union[Mapping[str, Any], Sequence[Any]], i: Optional[int] = None) -> list[str]:
        """Copies arrays into a slot, by name or in the order of the tensors; None: not touched. Returns the names of those that were, for `present`."""
        views, layout = self.slot(i), self._layout
        touched = [name for name, g in layout.named(gradients, "fill").items() if g is not None and name in views]
        given = layout.named(gradients, "fill")
        for name in touched:
            a = as_wire(given[name], layout.parts[layout.index[name]].grad_dtype)
            if a.size != views[name].size:
                raise GaccError(f"fill: the gradient of {name!r} has {a.size} elements, not {views[name].size}", reason="INVALID_ARGUMENT")
            views[name][...] = a.reshape(views[name].shape)
        return touched

    # ---- gradients on a GPU, slots in the host's memory ----

    def use_gpu(self, timeout: Optional[float] = SETUP_S) -> bool:
        """After register(): gradients are on the GPU of the current context (torch.cuda.init(), cupy; else the first device's primary one), and copy()
        will bring them. The slots are pinned. False: nothing was done, as the slots are on a device (slots_on: device), or gaccd is on another machine."""
        self._check_open()
        _ = self._layout
        return self._link.use_gpu(timeout or SETUP_S)

    @property
    def gpu_stream(self) -> int:
        """The stream of the copies that copy() makes."""
        return self._pinned.driver.stream

    def copy(self, name: str, source: int, stream: int = 0, i: Optional[int] = None, nbytes: Optional[int] = None) -> None:
        """A gradient from the GPU to its place in a slot (None: that of the next push), behind what is on `stream` now. Returns at once; push() waits
        neither, the daemon does. `source`: its address on the device, contiguous, of the slot's type. It must stay as it is until gpu_stream has come so
        far, and nothing else may write to that tensor of the slot before finish_copies(). `nbytes`: how much there is; it must be as much as has place."""
        slots, place = self._pinned, self.slot(i)[name]
        if nbytes not in (None, place.nbytes):
            raise GaccError(f"copy: the gradient of {name!r} has {nbytes} bytes, and {place.nbytes} in the slot", reason="INVALID_ARGUMENT")
        number = self._slot if i is None else i
        slots.copy(number, place.ctypes.data, source, place.nbytes, stream)

    def finish_copies(self) -> None:
        """All that copy() was told is in the slots."""
        self._check_open()
        self._link.memory.finish()

    @property
    def _pinned(self) -> PinnedSlots:
        self._check_open()
        if not self._link.memory.pinned:
            raise GaccError("the slots are not pinned", reason="NOT_READY", hint="call use_gpu()")
        return self._link.memory.pinned

    # ---- a window ----

    def flush(self, timeout: Optional[float] = None) -> None:
        """This rank has no more data for the open window: the step is made of what came, with its true divisor. Then wait(). It waits for pushes of
        this rank that still wait for their turn."""
        self._may_push()
        self._answer_sent(timeout)
        try:
            self._link.call("Flush", timeout, "flush", window=self._window)
        except GaccError as e:
            if e.reason not in LATE:
                raise
        self._missing = []

    def wait(self, timeout: Optional[float] = None) -> Step:
        """Until the window is over; then the next one is open and the parameters are new. Raises STALLED or DEADLINE when `timeout` seconds are over,
        naming whom it waited for (missing_ranks, where gaccd knows): call it again then."""
        self.ready()
        if self._done:
            raise GaccError("the job has all its steps", reason="JOB_ENDED")
        end = None if timeout is None else time.monotonic() + timeout
        self._answer_sent(timeout)
        if self._missing and self._pending is None:
            raise GaccError(f"wait() would wait for this rank itself: it owes {len(self._missing)} micro-batches of window {self._window}, the first is "
                            f"{self._missing[0]}", reason="NOT_READY", hint="push them, or call flush()")
        if self._shows_progress:
            self._shows_progress = False
            self._progress = progress(self.spec.name or f"job {self.job_id}", self.spec.ranks, self.spec.steps, self._applied_step)
        step = None if self._pending is not None else self._wait_by_mailbox(None if end is None else end - time.monotonic())
        step = step or self._wait_by_rpc(None if end is None else end - time.monotonic())
        if self._progress:
            self._progress.show(step)
        return step

    def _wait_by_mailbox(self, timeout: Optional[float]) -> Optional[Step]:
        box = self._link.usable_mailbox()
        if not box or self._link.hung_up():
            return None
        block = box.wait(PATIENCE_S if timeout is None else min(timeout, PATIENCE_S), self._window)
        if not block:
            return None
        return self._open_next(step_of(block, block.next_micro_size, bool(block.final)), block.half)

    def _wait_by_rpc(self, timeout: Optional[float]) -> Step:
        window = self._window if self._pending is None else self._pending
        answer = self._link.run(f"wait for window {window}", lambda s: self._ask_step(window, s, timeout is not None), timeout)
        return self._open_next(step_of(answer.result, answer.micro_size, answer.job_done), answer.accum_half)

    def _ask_step(self, window: int, seconds: float, brief: bool) -> Any:
        """One WaitStep. `brief`: gaccd itself keeps the time, so that it can say who is late."""
        if not brief:
            return self._link.once("WaitStep", seconds, window=window)
        return self._link.once("WaitStep", seconds + GRACE_S, window=window, timeout_ms=max(1, round(seconds * 1000)))

    def _open_next(self, step: Step, half: int) -> Step:
        self._half = half
        if self._link.inlined and step.applied:
            self._fetch(self._link.is_client_optimizer)
        self._kept.clear()
        if self._pending is not None:
            self._pending = None  # ready() has opened the window after it
            return step
        self._window, self._applied_step, self._micro_size = self._window + 1, step.applied_step, step.next_micro_size
        self._loss_scale, self._missing, self._done = step.next_loss_scale, list(range(step.next_micro_size)), step.job_done
        return step

    def _fetch(self, reduced: bool) -> None:
        """Without shared memory: what the step has changed."""
        self._link.run("fetch", lambda s: inline.fetch(self._link, reduced, s))

    def acknowledge(self, step: Step) -> None:
        """Optimizer `client`: this trainer has applied the step, and reads `reduced` no more."""
        self._check_open()
        if self._link.is_client_optimizer:
            self._link.call("AckStep", None, "acknowledge a step", window=step.window)

    # ---- the end ----

    def _check_open(self) -> None:
        self._link.channel.check_process()
        if self._closed:
            raise GaccError("this session is detached", reason="SESSION_UNKNOWN", hint="attach again")

    def detach(self, done: bool = True) -> None:
        """Leaves the job. `done`: this rank contributes no more, later windows do not wait for it. Else it may come back. Repeated: nothing."""
        if self._closed:
            return
        self._link.channel.check_process()
        try:
            self._answer_sent(DETACH_S)
        except GaccError as e:
            log.warning("rank %d: detach: %s", self.rank, e)
        self._scalars.finish(DETACH_S)
        try:
            self._link.detach(done, DETACH_S)
        except GaccError as e:
            if e.reason not in ("JOB_ENDED", "SESSION_FENCED", "SESSION_UNKNOWN"):
                raise
        finally:
            self.close()

    def close(self) -> None:
        """What the end of the process does: gaccd is not told whether this rank is done, so the job waits for its successor."""
        if self._closed:
            return
        self._closed, self._sent = True, None
        self._views.clear()
        self._scalars.close()
        if self._progress:
            self._progress.close()
        self._link.close()
        for thing in self._owned:
            thing.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not sys.is_finalizing():
            with contextlib.suppress(Exception):  # of a session that nobody can ask any more
                self.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        """A clean end of the block: done. With an exception: not, so that a restarted rank goes on where this one was."""
        try:
            self.detach(done=kind is None)
        except GaccError as e:
            if kind is None:
                raise
            log.warning("rank %d: detach: %s", self.rank, e)
