# SPDX-License-Identifier: Apache-2.0
"""What holds a rank to its gaccd: the session, the memory and the mailbox, and all of them anew after a restart of gaccd.

For session.py, whose thread alone uses it. Calls are repeated while gaccd or the engine is away; that is always right, because every request may
be repeated (docs/protocol.md).
"""
from __future__ import annotations

import logging
import os
from typing import Any, Callable, Optional

from .channel import Channel, Patience
from .device import Driver
from .errors import GaccError
from .gpu_slots import PinnedSlots, Words
from .mailbox import Mailbox
from .memory import Memory
from .version import __version__

log = logging.getLogger("gacc")

SLICE_S = 60.0  # one attempt lasts at most this long, so that a hung daemon or a dead session is noticed
RECOVERIES = 5  # new sessions in a row without one answer on them
SERVICE = "GradientService"
CLIENT = 1  # OptimizerType
SLOTS_ON_DEVICE = 2  # SlotsOn


class Link:
    """One session of a rank, and its successors. `resume()` is a function that is called with WaitReady's
    answer when a session had to be replaced while the job ran."""

    def __init__(self, channel: Channel, job: str, rank: int, world_size: int, spec: Any, outage: float, shared_memory: bool, mailbox: bool):
        self.channel, self.job, self.rank, self.world_size, self.spec = channel, job, rank, world_size, spec
        self.outage, self.wants_memory, self.wants_mailbox = outage, shared_memory, mailbox
        self.attached: Any = None  # AttachResponse
        self.layout: Any = None
        self.memory = Memory()
        self.mailbox: Optional[Mailbox] = None
        self.inlined = False
        self.running = False  # WaitReady was answered
        self.resume: Callable[[], Optional[Callable[[Any], None]]] = lambda: None
        self._nonce, self._lost, self._recovering = os.urandom(16), False, False
        self._lifeline: Any = None  # of a session without shared memory: a stream

    @property
    def session(self) -> Any:
        return self.attached.session

    @property
    def is_client_optimizer(self) -> bool:
        return bool(self.attached.spec.optimizer.type == CLIENT)

    # ---- calls ----

    def call(self, method: str, timeout: Optional[float] = None, what: str = "", **fields: Any) -> Any:
        """A call of this session, repeated until it is answered, over new sessions if need be."""
        return self.run(what or method, lambda s: self.once(method, s, **fields), timeout)

    def once(self, method: str, timeout: float, **fields: Any) -> Any:
        return self.channel.call(SERVICE, method, timeout, session=self.session, **fields)

    def run(self, what: str, attempt: Callable[[float], Any], timeout: Optional[float] = None) -> Any:
        """attempt(seconds) until it answers or `timeout` seconds are over (None: never)."""
        self.channel.check_process()
        patience, recoveries = Patience(f"rank {self.rank}, {what}", timeout, self.outage), 0
        while True:
            try:
                left = patience.left(SLICE_S)
                if self.attached is not None and (self._lost or self.hung_up()):
                    recoveries += 1
                    self._recover_or_ended(left)
                answer = attempt(left)
                patience.answered()
                return answer
            except GaccError as e:
                error = e
            if error.reason == "SESSION_UNKNOWN" and recoveries < RECOVERIES and not patience.is_over():
                self._lost = True
                continue
            # NOT_READY from a job that has run: a new daemon is about to take it up
            outage = error.is_outage or (error.reason == "NOT_READY" and self.running)
            if not (error.is_retryable or outage) or not patience.bears(error, outage):
                raise patience.explain(error)
            if error.reason == "STALLED":
                log.warning("rank %d, %s: %s", self.rank, what, error)
            else:
                patience.pause()

    # ---- the session ----

    def attach(self, timeout: float) -> None:
        self.run("attach", self._attach, timeout)

    def _attach(self, timeout: float) -> None:
        fields = {} if self.spec is None else {"create_if_missing": self.spec}
        answer = self.channel.call(
            SERVICE, "Attach", timeout, job=self.job, rank=self.rank, world_size=self.world_size, pid=os.getpid(),
            client_version=f"python {__version__}", protocol_min=1, protocol_max=1, nonce=self._nonce, wants_shared_memory=self.wants_memory,
            resume_generation=self.attached.generation if self.attached is not None else 0, **fields)
        self.attached = answer
        self.job = str(answer.job_id)

    def hung_up(self) -> bool:
        """gaccd's end of the attach socket has closed: that gaccd is gone."""
        return bool(self.memory.lifeline and self.memory.ends.poll(0))

    def _recover_or_ended(self, timeout: float) -> None:
        try:
            self._recover(timeout)
        except GaccError as e:
            # an ended job takes no new session, but still tells the old one how its last window went
            if e.reason != "JOB_ENDED":
                raise

    def _recover(self, timeout: float) -> None:
        """Another session with all that the old one had. An Attach without an answer may have been taken, and its session would fence another
        one with the old generation: it is repeated with its nonce until it is answered."""
        if not self._recovering:
            self._nonce = os.urandom(16)
        self._lost = self._recovering = True
        self._drop_mailbox()
        self._attach(timeout)
        self._recovering = False
        log.info("rank %d: session %d of job %s after a restart of gaccd", self.rank, self.attached.generation, self.job)
        if self.layout is not None:
            self._same_layout(timeout)
            if not self.inlined:
                self._map_once()
            else:
                self._watch()
            if self.running:
                answer, resume = self.once("WaitReady", timeout), self.resume()
                if resume:
                    resume(answer)
        self._lost = False

    def _same_layout(self, timeout: float) -> None:
        now, then = self.once("RegisterTensors", timeout, layout_limit=1), self.layout  # the fingerprint speaks for the rest
        if (now.fingerprint, now.slot_bytes, now.param_bytes, now.slots) != (then.fingerprint, then.slot_bytes, then.param_bytes, then.slots):
            raise GaccError("the job's memory has another layout than before", reason="LAYOUT_MISMATCH")

    # ---- memory ----

    def map(self, timeout: float) -> None:
        """The session's memory: shared where gaccd is on this machine and offers it, else this process's own."""
        if self.attached.spec.slots_on == SLOTS_ON_DEVICE and not (self.wants_memory and self.attached.attach_socket):
            raise GaccError("the job's slots are in the memory of a GPU, which needs the attach socket of its node", reason="NOT_SUPPORTED",
                            hint="run the trainer on that node, or submit the job with slots_on: host")
        if self.attached.spec.slots_on == SLOTS_ON_DEVICE and not self.memory.driver:
            self.memory.driver = Driver()
        if self.wants_memory and self.attached.attach_socket:
            self.run("map", lambda _: self._map_once(), timeout)
            return
        self.inlined = True
        self.memory.private(self.layout, self.is_client_optimizer)
        self._watch()

    def _map_once(self) -> None:
        self._drop_mailbox()
        bells = self.memory.map(self.attached.attach_socket, self.session, self.wants_mailbox)
        if not bells:
            return
        try:
            assert self.memory.lifeline
            self.mailbox = Mailbox(bells, self.attached.job_id, self.rank, self.attached.generation, self.memory.lifeline)
        except (GaccError, OSError) as e:
            log.warning("rank %d: pushes go by RPC, the mailbox is not in order: %s", self.rank, e)
            return
        driver = self.memory.pinned.driver if self.memory.pinned else self.memory.driver
        if driver and driver.writes_words:
            try:
                self.mailbox.words = Words(driver, self.mailbox.address)
            except GaccError as e:
                log.warning("rank %d: pushes wait for the GPU, as it cannot write their ready words: %s", self.rank, e)

    def use_gpu(self, timeout: float) -> bool:
        """Slots in the host's memory are pinned from now on, and gaccd knows that a device writes there. False: there are none there."""
        if self.inlined or self.memory.driver:
            return False
        if not self.memory.pinned:
            self.memory.pinned = PinnedSlots(Driver())
            try:
                self.run("map", lambda _: self._map_once(), timeout)
            except BaseException as e:
                self.memory.leave()
                self.memory.pinned = None
                if isinstance(e, GaccError):  # all is as before, with a mailbox
                    self.run("map", lambda _: self._map_once(), timeout)
                raise
        return True

    def _watch(self) -> None:
        """The lifeline of a session without an attach socket: a stream that is open for as long as this process lives."""
        self._lifeline = self.channel.hold(SERVICE, "WatchSession", session=self.session)

    def usable_mailbox(self) -> Optional[Mailbox]:
        return self.mailbox if self.mailbox and not self._lost and not self.mailbox.gone else None

    def _drop_mailbox(self) -> None:
        if self.mailbox:
            self.mailbox.close()
            self.mailbox = None

    # ---- the end ----

    def detach(self, done: bool, timeout: float) -> None:
        if self.attached is not None:
            self.outage = timeout
            self.call("Detach", timeout, done=done, device_is_quiet=self.memory.is_quiet())

    def close(self) -> None:
        """Says nothing to gaccd but that this process is gone. Not in a forked child, to which none of it belongs."""
        if os.getpid() != self.channel.pid:
            return
        self._drop_mailbox()
        self.memory.leave()
        self.memory.close()
        if self._lifeline:
            self._lifeline.cancel()
            self._lifeline = None
