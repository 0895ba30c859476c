# SPDX-License-Identifier: Apache-2.0
"""gacc.connect(): submit, watch and control jobs, as gaccctl does.

    with gacc.connect() as client:
        job = client.submit({"name": "mlp", "ranks": 2, "micro_size": 8, "steps": 100, "optimizer": {"type": "adamw", "lr": 1e-3}})
        for step in client.steps(job):
            print(step.applied_step, step.mean_loss)
"""
from __future__ import annotations

import os
import time
from typing import Any, Iterator, Optional, Union

from .channel import Channel, repeated
from .errors import GaccError
from .results import Job, Step, names_of, record_of, step_of
from .spec import spec_of

TIMEOUT_S = 60.0  # of calls that need not wait for trainers
SLICE_S = 30.0  # of calls that do: they are repeated
PAGE = 500  # windows asked for at once
POLL_S = 0.2  # between looks for new events

JobLike = Union[int, str, Job]


def connect(endpoint: Optional[str] = None, *, outage: float = TIMEOUT_S) -> "Client":
    """A client of the gaccd at `endpoint` (a path, unix:PATH or HOST:PORT; None: GACC_ENDPOINT, or the socket of the node's gaccd). It connects with
    the first call. `outage`: how long calls wait for a gaccd that is away."""
    return Client(endpoint, outage)


def history(job: JobLike, last: Optional[int] = None, *, endpoint: Optional[str] = None) -> list[dict[str, Any]]:
    """The windows of a job, oldest first, as a list of dictionaries with the same keys: pandas.DataFrame(gacc.history(job)).

    last  the newest so many windows; None: the whole job, its first and its newest window and at most 512 in between, evenly spaced

    Keys: window, step, outcome ("APPLIED", ..), time (seconds since 1970), loss, grad_norm, lr, weight, micro_count, last_rank, late_s, and each
    name that was logged (NaN where it was not; one that is also a key here has "logged." before it).
    """
    with connect(endpoint) as client:
        return client.records(job, last)


class Client:
    """A connection for jobs. Jobs are named by id, by name, or by a Job. Any thread; not in a forked child. All errors are GaccError."""

    def __init__(self, endpoint: Optional[str] = None, outage: float = TIMEOUT_S):
        self.channel, self.outage = Channel(endpoint), outage

    def _call(self, method: str, timeout: Optional[float] = TIMEOUT_S, slice_s: float = SLICE_S, **fields: Any) -> Any:
        return repeated(method, lambda s: self.channel.call("JobService", method, s, **fields), timeout, self.outage, slice_s)

    # ---- jobs ----

    def submit(self, spec: Any = None, **keys: Any) -> Job:
        """A new job. `spec`: a dictionary with the keys of a job file's `spec` section (and `name`), a job file's path, or a gacc.v1.JobSpec; `keys`
        win over it: submit("mlp.yaml", ranks=4). What is not said has the defaults of job files. Ranks attach to it by gacc.attach(job)."""
        made = spec_of({} if spec is None else spec, **keys)
        return Job(self._call("Submit", spec=made, request_id=os.urandom(16)).job)  # a repeated request makes one job

    def job(self, job: JobLike) -> Job:
        """As it is now."""
        return Job(self._call("Get", job=_named(job)).job)

    def jobs(self, all: bool = False) -> list[Job]:
        """Newest first; `all`: ended ones, too."""
        return [Job(j) for j in self._call("List", all=all).jobs]

    def wait(self, job: JobLike, state: Optional[str] = None, step: int = 0, timeout: Optional[float] = None) -> Job:
        """Until the job has this state ("RUNNING", ..) or so many applied steps; neither: until it has ended, whichever way. Raises if it cannot get
        there any more, and after `timeout` seconds."""
        number = 0 if state is None else _number("JobState", state)
        return Job(self._call("Wait", timeout, job=_named(job), state=number, applied_step=step).job)

    def cancel(self, job: JobLike, reason: str = "", grace: float = 0.0) -> Job:
        """Ends it. `grace`: seconds between SIGTERM and SIGKILL of ranks that gaccd has started; 0: the job's own."""
        return Job(self._call("Cancel", job=_named(job), reason=reason, grace_ms=round(grace * 1000)).job)

    def pause(self, job: JobLike, reason: str = "") -> Job:
        """Holds it at the end of the open window, until resume()."""
        return Job(self._call("Pause", job=_named(job), reason=reason).job)

    def resume(self, job: JobLike) -> Job:
        return Job(self._call("Resume", job=_named(job)).job)

    def flush(self, job: JobLike) -> int:
        """Closes the open window with what is counted in it; its number."""
        return int(self._call("Flush", job=_named(job)).window)

    def update(self, job: JobLike, *, micro_size: int = 0, lr: Optional[float] = None, clip_norm: Optional[float] = None,
               clip_value: Optional[float] = None, window: int = 0) -> int:
        """New values from a window on (0: the earliest possible), durable; the first window that they hold for."""
        values: dict[str, Any] = {"micro_size": micro_size}
        values.update({k: v for k, v in (("lr", lr), ("clip_norm", clip_norm), ("clip_value", clip_value)) if v is not None})
        return int(self._call("Update", job=_named(job), values=values, window=window).window)

    # ---- checkpoints ----

    def checkpoints(self, job: JobLike) -> list[Any]:
        """Oldest first: messages gacc.v1.Checkpoint (id, path, applied_step, ..); a job continues from one with restore_from=path."""
        found: list[Any] = []
        before = 0
        while True:
            page = list(self._call("ListCheckpoints", job=_named(job), before_id=before, limit=PAGE).checkpoints)
            found = page + found
            if len(page) < PAGE:
                return found
            before = page[0].id

    def save_checkpoint(self, job: JobLike, inside_window: bool = False, timeout: Optional[float] = None) -> Any:
        """Saves one now and returns it when it is complete. `inside_window`: with the open window's sum and who is in it."""
        return self._call("SaveCheckpoint", timeout, job=_named(job), inside_window=inside_window, wait=True, request_id=os.urandom(16)).checkpoint

    # ---- what happens ----

    def events(self, job: Optional[JobLike] = None, follow: bool = False, after_id: int = 0) -> Iterator[Any]:
        """Messages gacc.v1.Event (unix_nanos, reason, object, message, ..), oldest first; of all jobs, or of one. `follow`: goes on until that job has
        ended."""
        name = "" if job is None else _named(job)
        while True:
            ended = job is not None and follow and self.job(job).has_ended  # asked first: its last events are there
            page = self._call("ListEvents", job=name, after_id=after_id, limit=PAGE).events
            yield from page
            after_id = page[-1].id if page else after_id
            if len(page) < PAGE:
                if not follow or ended:
                    return
                time.sleep(POLL_S)

    def steps(self, job: JobLike, first_window: Optional[int] = None, follow: bool = True) -> Iterator[Step]:
        """How each window ended, in their order, from `first_window` on (None: from the next one that ends). `follow`: until the job has ended, else
        those that are over. gaccd keeps the history of a limited number of windows: older ones are left out."""
        seen = first_window
        for now in self.changes(job) if follow else iter([self.job(job)]):
            has = now.message.last.outcome != 0
            if seen is None:
                seen = now.message.last.window + 1 if has else 0
            if has and now.message.last.window >= seen:
                yield from self._closed(now, seen)
                seen = now.message.last.window + 1

    def _closed(self, now: Job, first: int) -> Iterator[Step]:
        """Windows from `first` to the job's last one."""
        end = now.message.last.window + 1
        for at in range(first, end, PAGE):
            until = min(at + PAGE, end)
            found = {}
            for message in self._stream_list("History", job=str(now.id), before_window=until, limit=until - at):
                found[message.result.window] = message.result
            if until == end:
                found.setdefault(end - 1, now.message.last)
            for window in sorted(w for w in found if w >= at):
                yield step_of(found[window])

    def changes(self, job: JobLike) -> Iterator[Job]:
        """The job now, and whenever it has changed, until it has ended. Quick changes come as one."""
        name = str(self.job(job).id)
        while True:
            latest = None
            try:
                for message in self.channel.stream("JobService", "Watch", None, job=name):
                    latest = Job(message.job)
                    yield latest
            except GaccError as e:
                if not e.is_retryable:
                    raise
                latest = None
            if latest is not None and latest.has_ended:
                return
            now = self.job(name)  # waits for a gaccd that is away
            if now.has_ended:
                yield now
                return

    def history(self, job: JobLike, limit: int = 20) -> list[Step]:
        """The last windows, newest first."""
        return [step_of(m.result) for m in self._stream_list("History", job=_named(job), limit=limit)]

    def records(self, job: JobLike, last: Optional[int] = None) -> list[dict[str, Any]]:
        """See gacc.history()."""
        asked = {"whole": True} if last is None else {"limit": last}
        found = self._stream_list("History", job=_named(job), **asked)
        names = sorted({s.name for m in found for s in m.scalars})
        return [record_of(m, names) for m in reversed(found)]

    def windows(self, job: JobLike, limit: int = 20) -> list[Any]:
        """The last windows with their micro-batches, newest first: messages gacc.v1.HistoryResponse. A window of more than 4096 micro-batches has
        several of them, with the same `result`."""
        return self._stream_list("History", job=_named(job), limit=limit, micros=True)

    def norms(self, job: JobLike, timeout: Optional[float] = None) -> dict[str, tuple[float, float]]:
        """Of the next window that closes: name -> (norm of the gradient, norm of the parameter)."""
        return {n.name: (n.grad_norm, n.param_norm) for n in self._call("TensorNorms", timeout, job=_named(job)).norms}

    def _stream_list(self, method: str, **fields: Any) -> list[Any]:
        answer: list[Any] = repeated(method, lambda s: list(self.channel.stream("JobService", method, s, **fields)), TIMEOUT_S, self.outage, SLICE_S)
        return answer

    # ---- the node ----

    def node(self) -> Any:
        """gaccd's description of itself: a message gacc.v1.Node (version, name, ..)."""
        return repeated("GetNode", lambda s: self.channel.call("NodeService", "GetNode", s), TIMEOUT_S, self.outage, SLICE_S)

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        self.close()


def _named(job: JobLike) -> str:
    return str(job.id) if isinstance(job, Job) else str(job)


def _number(enum: str, name: str) -> int:
    known = {text: number for number, text in names_of(enum).items()}
    if name.upper() not in known:
        raise GaccError(f"no {enum} {name!r}: {', '.join(list(known)[1:])}", reason="INVALID_ARGUMENT")
    return known[name.upper()]
