# SPDX-License-Identifier: Apache-2.0
"""How a rank's gradients get to the daemon. For session.py."""
from __future__ import annotations

import functools
import logging
import time
from typing import Any, Callable, Iterable, NamedTuple, Optional

from . import inline
from .errors import LATE, GaccError
from .layout import Layout
from .link import Link
from .mailbox import Answer, Mailbox
from .results import PUSH_RESULTS, Pushed

log = logging.getLogger("gacc")

PATIENCE_S = 60.0  # for an answer in the mailbox; then RPC, which can say what is late
LOOK_S = 1.0  # between looks at a GPU that is awaited


class Sent(NamedTuple):
    """A push that lies in the mailbox, and whose answer nobody has asked for yet."""
    box: Mailbox
    cell: int
    fields: dict[str, Any]
    is_awaited: bool  # a GPU has still to write its ready word, or had


class Pushing:
    """The part of a Session that has these calls."""
    _link: Link
    _window: int
    _loss_scale: float
    _missing: list[int]  # the micro-batch that is `_sent` is among them
    _slot: int  # that the next push will use
    _unknown: Optional[int]  # slot of a push that may have been counted, or may still be read
    _sent: Optional[Sent]
    _kept: set[int]
    _last_pushed: int
    _done: bool
    _pending: Optional[int]

    def ready(self, timeout: Optional[float] = None) -> None:
        raise NotImplementedError

    @property
    def missing(self) -> list[int]:
        raise NotImplementedError

    @property
    def _layout(self) -> Layout:
        raise NotImplementedError

    def push(self, weight: float = 1.0, loss: float = 0.0, lr: float = 0.0, micro: Optional[int] = None, *, slot: Optional[int] = None,
             present: Optional[Iterable[str]] = None, data_key: int = 0, zero_after: bool = False, asynchronous: bool = False,
             stream: Optional[int] = None, timeout: Optional[float] = None) -> Pushed:
        """One micro-batch, whose gradients are in the slot. Returns when it is counted, which may take until slower ranks have pushed theirs.

        weight      samples or tokens that the loss was averaged over; > 0
        loss        for Step.mean_loss; lr: of this window, the same in all its pushes on all ranks; 0: the schedule's
        micro       None: the first of `missing`. slot: None: the one that slot() gave
        present     names of the tensors that were touched; None: all
        data_key    hash of the samples; the same micro-batch with another key is refused
        zero_after  the daemon zeroes the slot when it has added it
        asynchronous    returns at once, with the result "sent", where there is a mailbox and another slot to fill meanwhile. The next push(), wait(),
                        flush() or detach() waits for its answer, and raises what it was refused for
        stream      of CUDA, its handle: what a GPU writes to the slot is ordered on it before this call. Then nothing waits for the GPU, but for the
                    daemon. Copies by copy() need no stream. None: with slots on a device, all that the context has to do is waited for
        """
        self._may_push()
        end = None if timeout is None else time.monotonic() + timeout
        owed = self.missing
        if micro is None and not owed:
            raise GaccError(f"this rank has given all its micro-batches of window {self._window}", reason="WINDOW_FULL", hint="call wait()")
        self._answer_sent(timeout)
        if micro is None and not self._missing:  # the answer was that the window is over
            return Pushed("closed", self._window, owed[0])
        micro = self._missing[0] if micro is None else micro
        window, number = self._window, self._slot if slot is None else slot
        if not 0 <= number < self._layout.slots:
            raise GaccError(f"slot {number} of {self._layout.slots}", reason="BAD_SLOT")
        self._last_pushed = window
        fields: dict[str, Any] = {"window": window, "micro": micro, "slot": number, "weight": float(weight), "loss": float(loss), "lr": float(lr),
                                  "data_key": data_key & (1 << 64) - 1, "loss_scale": self._loss_scale, "zero_after": zero_after,
                                  "present": b"" if present is None else self._layout.present(present)}
        box = None if self._link.hung_up() else self._link.usable_mailbox()
        ready = self._link.memory.full(number, stream, box.words if box and box.usable() else None, timeout)
        before, self._unknown = self._unknown, number
        cell = box.send(**fields, ready=ready) if box else None
        if box is None or cell is None:
            return self._finish(fields, before, lambda s: None, timeout)
        if asynchronous and self._layout.slots > 1 and not self._layout.keeps_slot:
            self._sent, self._unknown = Sent(box, cell, fields, bool(ready)), before
            self._leave_slot(number)
            return Pushed("sent", window, micro)
        return self._finish(fields, before, functools.partial(self._answer_of, box, cell, bool(ready)), None if end is None else end - time.monotonic())

    def _answer_sent(self, timeout: Optional[float] = None) -> None:
        """Waits for the answer to an asynchronous push. Of an interrupted wait, and of one that may be repeated, the next call waits again."""
        sent = self._sent
        if sent is None:
            return
        try:
            self._finish(sent.fields, self._unknown, lambda s: self._answer_in(sent, s), timeout)
        except GaccError as e:
            if not e.is_retryable:
                self._sent = None
            raise
        self._sent = None

    def _answer_in(self, sent: Sent, seconds: float) -> Optional[Answer]:
        """The mailbox may be that of a session before this one."""
        return self._answer_of(sent.box, sent.cell, sent.is_awaited, seconds) if self._link.usable_mailbox() is sent.box else None

    def _answer_of(self, box: Mailbox, cell: int, is_awaited: bool, seconds: float) -> Optional[Answer]:
        """None: it is not there, by then or any more. The word that a GPU has still to write never comes if its context has failed: that is looked at."""
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            answer = box.answer_to(cell, min(left, LOOK_S) if is_awaited else left)
            if answer or not is_awaited or left <= LOOK_S or box.gone or box.closed():
                return answer
            self._link.memory.check()

    def _finish(self, fields: dict[str, Any], before: Optional[int], by_mailbox: Callable[[float], Optional[Answer]], timeout: Optional[float]) -> Pushed:
        """The end of a push: by_mailbox(seconds) is its answer there, if it has one; else it is repeated by RPC.
        `before`: what _unknown was before it."""
        end = None if timeout is None else time.monotonic() + timeout
        window, micro, number = fields["window"], fields["micro"], fields["slot"]
        self._unknown = number
        try:
            answer = by_mailbox(PATIENCE_S if timeout is None else min(timeout, PATIENCE_S))
            if answer and answer.status == 0:
                pushed = Pushed(PUSH_RESULTS.get(answer.result, ""), answer.window, micro, answer.counted, answer.micro_size, answer.parked_ns)
            else:
                pushed = self._by_rpc(fields, None if end is None else end - time.monotonic())
        except GaccError as e:
            if e.reason not in LATE:
                if not e.is_retryable:  # refused: nothing has changed
                    self._unknown = before
                raise
            log.warning("rank %d: %s", self._link.rank, e)
            pushed = Pushed("closed", window, micro)
            if window == self._window:
                self._missing = []
        self._unknown = None
        self._conclude(pushed, number)
        return pushed

    def _may_push(self) -> None:
        self.ready()
        if self._done:
            raise GaccError("the job has all its steps", reason="JOB_ENDED")
        if self._pending is not None:
            raise GaccError(f"window {self._pending} is not acknowledged", reason="WINDOW_FULL", hint="call wait(), apply it, call acknowledge()")

    def _by_rpc(self, fields: dict[str, Any], timeout: Optional[float]) -> Pushed:
        what = f"push of micro-batch {fields['micro']} of window {fields['window']}"
        begun = time.monotonic()
        self._link.memory.finish(timeout)  # RPC knows no ready words
        timeout = None if timeout is None else timeout - (time.monotonic() - begun)
        if self._link.inlined:
            answer = self._link.run(what, lambda s: inline.push(self._link, fields, s), timeout)
        else:
            answer = self._link.call("Push", timeout, what, **fields)
        return Pushed(PUSH_RESULTS.get(answer.result, ""), answer.window, fields["micro"], answer.micro_count, answer.micro_size, answer.parked_ns)

    def _conclude(self, pushed: Pushed, slot: int) -> None:
        if pushed.window == self._window:
            if self._missing and self._missing[0] == pushed.micro:
                del self._missing[0]
            else:
                self._missing = [m for m in self._missing if m > pushed.micro]
        if self._layout.keeps_slot and pushed.counted:
            self._kept.add(slot)
        self._leave_slot(slot)

    def _leave_slot(self, slot: int) -> None:
        if slot == self._slot:
            self._slot = (slot + 1) % self._layout.slots
