# SPDX-License-Identifier: Apache-2.0
"""What a client of jobs asks, and what it makes of the answers: once for gacc.Client, which waits, and gacc.aio.Client, which awaits.

Each function is a generator. It yields what it needs (Call, Listing, Watch, Next, Sleep), is sent the answer or thrown the GaccError, and returns the
result. Those that are iterators for the user yield what they have found as Item.
"""
from __future__ import annotations

import os
from typing import Any, Callable, Generator, Iterable, NamedTuple, Optional, TypeVar, Union

from .errors import GaccError
from .results import Job, Step, names_of, record_of, step_of
from .spec import spec_of

TIMEOUT_S = 60.0  # of calls that need not wait for trainers
SLICE_S = 30.0  # of calls that do: they are repeated
PAGE = 500  # windows asked for at once
POLL_S = 0.2  # between looks for new events

JobLike = Union[int, str, Job]
T = TypeVar("T")
Asking = Generator[Any, Any, T]


class Call(NamedTuple):
    """A unary call, repeated until it is answered or `timeout` seconds are over."""
    method: str
    fields: dict[str, Any]
    timeout: Optional[float] = TIMEOUT_S
    service: str = "JobService"


class Listing(NamedTuple):
    """All messages of a stream that ends by itself, repeated like a Call."""
    method: str
    fields: dict[str, Any]


class Watch(NamedTuple):
    """Begins a stream; the answer is for Next."""
    method: str
    fields: dict[str, Any]


class Next(NamedTuple):
    """The stream's next message; None: it has ended."""
    stream: Any


class Sleep(NamedTuple):
    seconds: float


class Item(NamedTuple):
    value: Any


# ---- jobs ----


def submit(spec: Any, keys: dict[str, Any]) -> Asking[Job]:
    made = spec_of({} if spec is None else spec, **keys)
    return Job((yield Call("Submit", {"spec": made, "request_id": os.urandom(16)})).job)  # a repeated request makes one job


def job(name: JobLike) -> Asking[Job]:
    return Job((yield Call("Get", {"job": named(name)})).job)


def jobs(all: bool) -> Asking[list[Job]]:
    return [Job(j) for j in (yield Call("List", {"all": all})).jobs]


def wait(name: JobLike, state: Optional[str], step: int, timeout: Optional[float]) -> Asking[Job]:
    number = 0 if state is None else _number("JobState", state)
    return Job((yield Call("Wait", {"job": named(name), "state": number, "applied_step": step}, timeout)).job)


def cancel(name: JobLike, reason: str, grace: float) -> Asking[Job]:
    return Job((yield Call("Cancel", {"job": named(name), "reason": reason, "grace_ms": round(grace * 1000)})).job)


def pause(name: JobLike, reason: str) -> Asking[Job]:
    return Job((yield Call("Pause", {"job": named(name), "reason": reason})).job)


def resume(name: JobLike) -> Asking[Job]:
    return Job((yield Call("Resume", {"job": named(name)})).job)


def flush(name: JobLike) -> Asking[int]:
    return int((yield Call("Flush", {"job": named(name)})).window)


def update(name: JobLike, micro_size: int, window: int, **optional: Optional[float]) -> Asking[int]:
    values = {"micro_size": micro_size, **{k: v for k, v in optional.items() if v is not None}}
    return int((yield Call("Update", {"job": named(name), "values": values, "window": window})).window)


# ---- checkpoints ----


def checkpoints(name: JobLike) -> Asking[list[Any]]:
    found: list[Any] = []
    before = 0
    while True:
        page = list((yield Call("ListCheckpoints", {"job": named(name), "before_id": before, "limit": PAGE})).checkpoints)
        found = page + found
        if len(page) < PAGE:
            return found
        before = page[0].id


def save_checkpoint(name: JobLike, inside_window: bool, timeout: Optional[float]) -> Asking[Any]:
    fields = {"job": named(name), "inside_window": inside_window, "wait": True, "request_id": os.urandom(16)}
    return (yield Call("SaveCheckpoint", fields, timeout)).checkpoint


# ---- what happens ----


def events(name: Optional[JobLike], follow: bool, after_id: int) -> Asking[None]:
    of = "" if name is None else named(name)
    while True:
        ended = name is not None and follow and (yield from job(name)).has_ended  # asked first: its last events are there
        page = (yield Call("ListEvents", {"job": of, "after_id": after_id, "limit": PAGE})).events
        for event in page:
            yield Item(event)
        after_id = page[-1].id if page else after_id
        if len(page) < PAGE:
            if not follow or ended:
                return
            yield Sleep(POLL_S)


def changes(name: JobLike) -> Asking[None]:
    yield from _watch(name, lambda now: iter([Item(now)]))


def _watch(name: JobLike, each: Callable[[Job], Iterable[Any]]) -> Asking[None]:
    """each(the job) now and after every change, until it has ended; `each` yields as the generators here do."""
    own = str((yield from job(name)).id)
    while True:
        latest = None
        try:
            stream = yield Watch("Watch", {"job": own})
            while True:
                message = yield Next(stream)
                if message is None:
                    break
                latest = Job(message.job)
                yield from each(latest)
        except GaccError as e:
            if not e.is_retryable:
                raise
            latest = None
        if latest is not None and latest.has_ended:
            return
        now = yield from job(own)  # waits for a gaccd that is away
        if now.has_ended:
            yield from each(now)
            return


def steps(name: JobLike, first_window: Optional[int], follow: bool) -> Asking[None]:
    seen = first_window

    def new(now: Job) -> Asking[None]:
        nonlocal seen
        has = now.message.last.outcome != 0
        if seen is None:
            seen = now.message.last.window + 1 if has else 0
        if has and now.message.last.window >= seen:
            yield from _closed(now, seen)
            seen = now.message.last.window + 1

    if follow:
        yield from _watch(name, new)
    else:
        yield from new((yield from job(name)))


def _closed(now: Job, first: int) -> Asking[None]:
    """Windows from `first` to the job's last one."""
    end = now.message.last.window + 1
    for at in range(first, end, PAGE):
        until = min(at + PAGE, end)
        found = {}
        for message in (yield Listing("History", {"job": str(now.id), "before_window": until, "limit": until - at})):
            found[message.result.window] = message.result
        if until == end:
            found.setdefault(end - 1, now.message.last)
        for window in sorted(w for w in found if w >= at):
            yield Item(step_of(found[window]))


def history(name: JobLike, limit: int) -> Asking[list[Step]]:
    found: list[Step] = [step_of(m.result) for m in (yield Listing("History", {"job": named(name), "limit": limit}))]
    return found


def records(name: JobLike, last: Optional[int]) -> Asking[list[dict[str, Any]]]:
    found = yield Listing("History", {"job": named(name), **({"whole": True} if last is None else {"limit": last})})
    names = sorted({s.name for m in found for s in m.scalars})
    return [record_of(m, names) for m in reversed(found)]


def windows(name: JobLike, limit: int) -> Asking[list[Any]]:
    found: list[Any] = yield Listing("History", {"job": named(name), "limit": limit, "micros": True})
    return found


def norms(name: JobLike, timeout: Optional[float]) -> Asking[dict[str, tuple[float, float]]]:
    return {n.name: (n.grad_norm, n.param_norm) for n in (yield Call("TensorNorms", {"job": named(name)}, timeout)).norms}


def node() -> Asking[Any]:
    return (yield Call("GetNode", {}, service="NodeService"))


def named(job: JobLike) -> str:
    return str(job.id) if isinstance(job, Job) else str(job)


def _number(enum: str, name: str) -> int:
    known = {text: number for number, text in names_of(enum).items()}
    if name.upper() not in known:
        raise GaccError(f"no {enum} {name!r}: {', '.join(list(known)[1:])}", reason="INVALID_ARGUMENT")
    return known[name.upper()]
