# SPDX-License-Identifier: Apache-2.0
"""What calls answer: plain values, so that nobody needs protobuf to read them."""
from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Iterable, NamedTuple

from .messages import types


@functools.lru_cache(maxsize=None)
def names_of(enum: str) -> dict[int, str]:
    return types().enum_names(enum)


class Pushed(NamedTuple):
    """What became of one micro-batch.

    result       "counted"; "duplicate": it was counted before; "committed": it is in a step that is over. All three mean: it counts.
                 "void": it was not finite and does not count, nor is it owed (nonfinite: reject_micro).
                 "closed": the window closed without it (another process flushed it): it does not count. Go on with wait().
                 "sent": asynchronous, its answer is not known yet.
    window, micro    which one
    micro_count  of this rank in this window, as far as gaccd said
    parked_ns    how long it waited for its turn behind other ranks
    """
    result: str
    window: int
    micro: int
    micro_count: int = 0
    micro_size: int = 0
    parked_ns: int = 0

    @property
    def counted(self) -> bool:
        return self.result in ("counted", "duplicate", "committed")


PUSH_RESULTS = {1: "counted", 2: "duplicate", 3: "committed", 4: "void"}  # gacc.v1.PushResult


@dataclass(frozen=True)
class Step:
    """How a window ended.

    window           windows that were closed before this one
    applied_step     steps applied, this one included
    outcome          "APPLIED", "SKIPPED" (see skip_reason), "EMPTY" (nothing was counted) or "DROPPED" (uneven: drop)
    skip_reason      "NONFINITE", "OUTLIER_NORM" or ""
    total_weight     of all micro-batches in the sum; micro_count: how many, over all ranks
    divisor          what the sum was divided by
    grad_norm        global 2-norm of the averaged, unscaled gradient, before clipping
    lr               learning rate that was used
    mean_loss        weighted mean of the pushed losses; 0 if none was pushed
    last_rank        the rank that came last, last_lag_ns after the second to last
    params_digest    of the new parameters: equal digests, equal bits
    next_loss_scale, next_micro_size    of the next window
    job_done         no further window opens
    """
    window: int
    applied_step: int
    outcome: str
    skip_reason: str
    total_weight: float
    micro_count: int
    divisor: float
    grad_norm: float
    lr: float
    mean_loss: float
    last_rank: int
    last_lag_ns: int
    params_digest: int
    next_loss_scale: float
    next_micro_size: int = 0
    job_done: bool = False

    @property
    def applied(self) -> bool:
        """False: the parameters are as they were."""
        return self.outcome == "APPLIED"


def step_of(result: Any, next_micro_size: int = 0, job_done: bool = False) -> Step:
    """From a StepResult, or from the step block of a mailbox, whose fields have the same names."""
    return Step(window=result.window, applied_step=result.applied_step, outcome=names_of("StepOutcome").get(result.outcome, ""),
                skip_reason="" if not result.skip_reason else names_of("SkipReason").get(result.skip_reason, ""),
                total_weight=result.total_weight, micro_count=result.micro_count, divisor=result.divisor, grad_norm=result.grad_norm,
                lr=result.lr, mean_loss=result.mean_loss, last_rank=result.last_rank, last_lag_ns=result.last_lag_ns,
                params_digest=result.params_digest, next_loss_scale=result.next_loss_scale or 1.0, next_micro_size=next_micro_size,
                job_done=bool(job_done))


def record_of(message: Any, names: Iterable[str]) -> dict[str, Any]:
    """From a HistoryResponse, with a key for each of the names."""
    r, logged = message.result, {s.name: s.value for s in message.scalars}
    record = {"window": r.window, "step": r.applied_step, "outcome": names_of("StepOutcome").get(r.outcome, ""), "time": r.closed_unix_nanos / 1e9,
              "loss": r.mean_loss, "grad_norm": r.grad_norm, "lr": r.lr, "weight": r.total_weight, "micro_count": r.micro_count,
              "last_rank": r.last_rank, "late_s": r.last_lag_ns / 1e9}
    record.update({"logged." + n if n in record else n: logged.get(n, math.nan) for n in names})
    return record


class Job:
    """A job as gaccd described it when it was asked. `id`, `name` and `state` ("RUNNING") are here, and all fields of gacc.v1.Job: applied_step,
    window, reason, missing_ranks, counters, ... `message` is that message."""

    def __init__(self, message: Any):
        self.message = message

    @property
    def name(self) -> str:
        return str(self.message.spec.name)

    @property
    def state(self) -> str:
        return names_of("JobState").get(self.message.state, "")

    @property
    def has_ended(self) -> bool:
        return self.state in ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL")

    @property
    def last(self) -> Step:
        return step_of(self.message.last)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "message":
            raise AttributeError(name)
        return getattr(self.message, name)

    def __int__(self) -> int:
        return int(self.message.id)

    def __repr__(self) -> str:
        return f"<job {self.message.id} {self.name!r} {self.state}, {self.message.applied_step} steps>"
