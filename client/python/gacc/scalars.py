# SPDX-License-Identifier: Apache-2.0
"""Values that a rank logs, on their way to gaccd: the newest of each name and window, sent beside the training loop.

For session.py, and a timer that sends what came too soon after the last call. A call that is under way is never waited for but at the end, so a step
pays for a dictionary and, at most once in SEND_S, for the start of a call.
"""
from __future__ import annotations

import logging
import threading
import time
from typing import Any, Mapping

from .errors import GaccError
from .link import Link

log = logging.getLogger("gacc")

NAMES = 64  # of a job; so many bytes has a name:
NAME_BYTES = 63
WINDOWS = 9  # older ones gaccd does not take any more
SEND_S = 0.1
CALL_S = 10.0


class Scalars:
    def __init__(self, link: Link):
        self._link, self._lock = link, threading.Lock()
        self._timer: Any = None  # until the next call may begin; None: nothing waits for that
        self._closed = False
        self._waiting: dict[int, dict[str, float]] = {}  # by window
        self._names: set[str] = set()
        self._call: Any = None  # under way, with what it has
        self._sent: tuple[int, dict[str, float]] = (0, {})
        self._next = 0.0  # when the next call may begin
        self._refused: set[str] = set()  # reasons that were told

    def add(self, window: int, values: Mapping[str, Any]) -> None:
        checked = {self._checked(name): float(value) for name, value in values.items()}
        if len(self._names | checked.keys()) > NAMES:
            raise GaccError(f"more than {NAMES} names are logged", reason="INVALID_ARGUMENT", hint="log fewer; a name with a number in it makes many")
        self._names |= checked.keys()
        with self._lock:
            self._waiting.setdefault(window, {}).update(checked)
            while len(self._waiting) > WINDOWS:
                del self._waiting[min(self._waiting)]
        self.send()

    @staticmethod
    def _checked(name: str) -> str:
        if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name.encode()) <= NAME_BYTES:
            raise GaccError(f"{name!r} is no name of a value: 1 to {NAME_BYTES} bytes of printable text", reason="INVALID_ARGUMENT")
        return name

    def send(self) -> None:
        """Begins a call, if there is something to say and none is under way; else a timer does."""
        with self._lock:
            if self._call is not None and self._call.done():
                self._answered()
            if self._call is None and self._waiting and time.monotonic() >= self._next and not self._closed:
                self._begin()
            if self._timer is None and (self._waiting or self._call is not None) and not self._closed:
                self._timer = threading.Timer(SEND_S, self._on_timer)
                self._timer.daemon = True
                self._timer.start()

    def _on_timer(self) -> None:
        self._timer = None
        self.send()

    def close(self) -> None:
        """Nothing is sent any more."""
        with self._lock:
            self._closed = True

    def _begin(self) -> None:
        window = max(self._waiting)  # in a job with many windows a second older ones are too late by now
        self._sent = window, self._waiting.pop(window)
        self._next = time.monotonic() + SEND_S
        self._call = self._link.channel.begin("JobService", "LogScalars", CALL_S, job=str(self._link.attached.job_id), rank=self._link.rank,
                                              window=window, scalars=[{"name": k, "value": v} for k, v in self._sent[1].items()])

    def _answered(self) -> None:
        error, self._call = self._link.channel.error_of("LogScalars", self._call), None
        if error is None:
            return
        window, values = self._sent
        if error.is_retryable:
            self._waiting[window] = {**values, **self._waiting.get(window, {})}
        elif error.reason not in self._refused | {"WINDOW_FORGOTTEN"}:
            self._refused.add(error.reason)
            log.warning("rank %d: values of window %d are not kept: %s", self._link.rank, window, error)

    def finish(self, timeout: float) -> None:
        """Sends what is left, for so many seconds at most."""
        end = time.monotonic() + timeout
        while (self._waiting or self._call is not None) and time.monotonic() < end:
            self._next = 0.0
            self.send()
            time.sleep(0.002)
