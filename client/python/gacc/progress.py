# SPDX-License-Identifier: Apache-2.0
"""A line on the terminal that shows how a job gets on: gacc.attach(progress=True). For session.py."""
from __future__ import annotations

import collections
import contextlib
import os
import sys
import time
from typing import Any, Optional, TextIO

from .results import Step

OFTEN_S = 0.1  # between two lines
LOOK_BACK = 50  # windows, for steps per second


def progress(name: str, ranks: int, steps: int, done: int) -> Optional["Progress"]:
    """Of a job with so many steps (0: without end), of which some are done, on standard error. None: that is no terminal."""
    out = sys.stderr
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or another kind of object
        if out.isatty():
            return Progress(name, ranks, steps, done, out)
    return None


def _duration(seconds: float) -> str:
    minutes, s = divmod(int(seconds + 0.5), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


class Progress:
    """Steps of how many, steps per second, time left, mean loss, the batch (sum of weights) and who came last. tqdm draws it, where it is installed. One
    thread. What the terminal refuses is no error."""

    def __init__(self, name: str, ranks: int, steps: int, done: int, out: TextIO):
        self._out, self._name, self._ranks, self._total = out, name, ranks, steps
        self._shown_at, self._wide = 0.0, 0
        self._ends = collections.deque([(time.monotonic(), done)], LOOK_BACK)
        self._bar: Any = None
        with contextlib.suppress(ImportError):
            from tqdm import tqdm
            self._bar = tqdm(total=self._total or None, initial=done, desc=name, unit="step", file=out, dynamic_ncols=True, mininterval=OFTEN_S)

    def _details(self, step: Step) -> str:
        last = f"last: rank {step.last_rank} (+{step.last_lag_ns / 1e6:.0f} ms)"
        return ", ".join([f"loss {step.mean_loss:.4g}", f"batch {step.total_weight:g}", *([last] if self._ranks > 1 else []),
                          *([] if step.applied else [step.outcome.lower()])])

    def _line(self, step: Step) -> str:
        (first, before), (now, n) = self._ends[0], self._ends[-1]
        rate = (n - before) / (now - first) if now > first else 0.0
        left = [f"{_duration((self._total - n) / rate)} left"] if self._total and rate > 0 else []
        return f"{self._name}: " + ", ".join([f"{n}/{self._total}" if self._total else str(n), f"{rate:.3g} steps/s", *left, self._details(step)])

    def show(self, step: Step) -> None:
        now = time.monotonic()
        self._ends.append((now, step.applied_step))
        with contextlib.suppress(OSError, ValueError):
            if self._bar is not None:
                self._bar.set_postfix_str(self._details(step), refresh=False)
                self._bar.update(step.applied_step - self._bar.n)
            elif now - self._shown_at >= OFTEN_S or step.job_done:
                self._shown_at = now
                line = self._line(step)[:max(20, os.get_terminal_size(self._out.fileno()).columns - 1)]
                self._out.write("\r" + line + " " * (self._wide - len(line)))
                self._out.flush()
                self._wide = len(line)

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._bar is not None:
                self._bar.close()
            elif self._wide:
                self._out.write("\n")
                self._out.flush()
        self._wide = 0
