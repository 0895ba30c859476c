# SPDX-License-Identifier: Apache-2.0
"""gacc.connect(): submit, watch and control jobs, as gaccctl does.

    with gacc.connect() as client:
        job = client.submit({"name": "mlp", "ranks": 2, "micro_size": 8, "steps": 100, "optimizer": {"type": "adamw", "lr": 1e-3}})
        for step in client.steps(job):
            print(step.applied_step, step.mean_loss)
"""
from __future__ import annotations

import contextlib
import time
from typing import Any, Iterator, Optional

from . import job_calls as calls
from .channel import Channel, repeated
from .errors import GaccError
from .job_calls import SLICE_S, TIMEOUT_S, JobLike, T
from .results import Job, Step


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

    def _run(self, asking: calls.Asking[T]) -> T:
        """What a function of job_calls.py comes to."""
        answer: Any = None
        try:
            while True:
                answer = self._do(asking.send(answer))  # an error ends it
        except StopIteration as e:
            value: T = e.value
            return value

    def _iterate(self, asking: calls.Asking[None]) -> Iterator[Any]:
        with contextlib.ExitStack() as streams:
            proceed: Any = asking.send
            answer: Any = None
            while True:
                try:
                    wanted = proceed(answer)
                except StopIteration:
                    return
                proceed, answer = asking.send, None
                if isinstance(wanted, calls.Item):
                    yield wanted.value
                    continue
                try:
                    answer = self._do(wanted, streams)
                except GaccError as e:
                    proceed, answer = asking.throw, e

    def _do(self, wanted: Any, streams: Optional[contextlib.ExitStack] = None) -> Any:
        if isinstance(wanted, calls.Call):
            return repeated(wanted.method, lambda s: self.channel.call(wanted.service, wanted.method, s, **wanted.fields), wanted.timeout,
                            self.outage, SLICE_S)
        if isinstance(wanted, calls.Listing):
            return repeated(wanted.method, lambda s: list(self.channel.stream("JobService", wanted.method, s, **wanted.fields)), TIMEOUT_S,
                            self.outage, SLICE_S)
        if isinstance(wanted, calls.Watch):
            stream = self.channel.stream("JobService", wanted.method, None, **wanted.fields)
            assert streams is not None
            return streams.enter_context(contextlib.closing(stream))  # type: ignore[type-var]
        if isinstance(wanted, calls.Next):
            return next(wanted.stream, None)
        time.sleep(wanted.seconds)
        return None

    # ---- jobs ----

    def submit(self, spec: Any = None, **keys: Any) -> Job:
        """A new job. `spec`: a dictionary with the keys of a job file's `spec` section (and `name`), a job file's path, or a gacc.v1.JobSpec; `keys`
        win over it: submit("mlp.yaml", ranks=4). What is not said has the defaults of job files. Ranks attach to it by gacc.attach(job)."""
        return self._run(calls.submit(spec, keys))

    def job(self, job: JobLike) -> Job:
        """As it is now."""
        return self._run(calls.job(job))

    def jobs(self, all: bool = False) -> list[Job]:
        """Newest first; `all`: ended ones, too."""
        return self._run(calls.jobs(all))

    def wait(self, job: JobLike, state: Optional[str] = None, step: int = 0, timeout: Optional[float] = None) -> Job:
        """Until the job has this state ("RUNNING", ..) or so many applied steps; neither: until it has ended, whichever way. Raises if it cannot get
        there any more, and after `timeout` seconds."""
        return self._run(calls.wait(job, state, step, timeout))

    def cancel(self, job: JobLike, reason: str = "", grace: float = 0.0) -> Job:
        """Ends it. `grace`: seconds between SIGTERM and SIGKILL of ranks that gaccd has started; 0: the job's own."""
        return self._run(calls.cancel(job, reason, grace))

    def pause(self, job: JobLike, reason: str = "") -> Job:
        """Holds it at the end of the open window, until resume()."""
        return self._run(calls.pause(job, reason))

    def resume(self, job: JobLike) -> Job:
        return self._run(calls.resume(job))

    def flush(self, job: JobLike) -> int:
        """Closes the open window with what is counted in it; its number."""
        return self._run(calls.flush(job))

    def update(self, job: JobLike, *, micro_size: int = 0, lr: Optional[float] = None, clip_norm: Optional[float] = None,
               clip_value: Optional[float] = None, window: int = 0) -> int:
        """New values from a window on (0: the earliest possible), durable; the first window that they hold for."""
        return self._run(calls.update(job, micro_size, window, lr=lr, clip_norm=clip_norm, clip_value=clip_value))

    # ---- checkpoints ----

    def checkpoints(self, job: JobLike) -> list[Any]:
        """Oldest first: messages gacc.v1.Checkpoint (id, path, applied_step, ..); a job continues from one with restore_from=path."""
        return self._run(calls.checkpoints(job))

    def save_checkpoint(self, job: JobLike, inside_window: bool = False, timeout: Optional[float] = None) -> Any:
        """Saves one now and returns it when it is complete. `inside_window`: with the open window's sum and who is in it."""
        return self._run(calls.save_checkpoint(job, inside_window, timeout))

    # ---- what happens ----

    def events(self, job: Optional[JobLike] = None, follow: bool = False, after_id: int = 0) -> Iterator[Any]:
        """Messages gacc.v1.Event (unix_nanos, reason, object, message, ..), oldest first; of all jobs, or of one. `follow`: goes on until that job has
        ended."""
        return self._iterate(calls.events(job, follow, after_id))

    def steps(self, job: JobLike, first_window: Optional[int] = None, follow: bool = True) -> Iterator[Step]:
        """How each window ended, in their order, from `first_window` on (None: from the next one that ends). `follow`: until the job has ended, else
        those that are over. gaccd keeps the history of a limited number of windows: older ones are left out."""
        return self._iterate(calls.steps(job, first_window, follow))

    def changes(self, job: JobLike) -> Iterator[Job]:
        """The job now, and whenever it has changed, until it has ended. Quick changes come as one."""
        return self._iterate(calls.changes(job))

    def history(self, job: JobLike, limit: int = 20) -> list[Step]:
        """The last windows, newest first."""
        return self._run(calls.history(job, limit))

    def records(self, job: JobLike, last: Optional[int] = None) -> list[dict[str, Any]]:
        """See gacc.history()."""
        return self._run(calls.records(job, last))

    def windows(self, job: JobLike, limit: int = 20) -> list[Any]:
        """The last windows with their micro-batches, newest first: messages gacc.v1.HistoryResponse. A window of more than 4096 micro-batches has
        several of them, with the same `result`."""
        return self._run(calls.windows(job, limit))

    def norms(self, job: JobLike, timeout: Optional[float] = None) -> dict[str, tuple[float, float]]:
        """Of the next window that closes: name -> (norm of the gradient, norm of the parameter)."""
        return self._run(calls.norms(job, timeout))

    # ---- the node ----

    def node(self) -> Any:
        """gaccd's description of itself: a message gacc.v1.Node (version, name, ..)."""
        return self._run(calls.node())

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        self.close()
