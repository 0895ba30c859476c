# SPDX-License-Identifier: Apache-2.0
"""gacc.aio: gacc.connect() for asyncio. The same methods with the same arguments, results and errors, awaited, and asynchronous iterators.

    async with gacc.aio.connect() as client:
        job = await client.submit("mlp.yaml", ranks=2)
        async for step in client.steps(job):
            print(step.applied_step, step.mean_loss)

What is cancelled ends its call at once. gRPC is imported by the first client.
"""
from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Optional

from . import client as sync
from . import job_calls as calls
from .aio_channel import Channel, Stream, repeated
from .errors import GaccError
from .job_calls import SLICE_S, TIMEOUT_S, JobLike, T
from .results import Job, Step


def connect(endpoint: Optional[str] = None, *, outage: float = TIMEOUT_S) -> "Client":
    return Client(endpoint, outage)


async def history(job: JobLike, last: Optional[int] = None, *, endpoint: Optional[str] = None) -> list[dict[str, Any]]:
    async with connect(endpoint) as client:
        return await client.records(job, last)


class Client:
    """gacc.Client for one event loop: that of its first call. Not in a forked child. All errors are GaccError."""

    def __init__(self, endpoint: Optional[str] = None, outage: float = TIMEOUT_S):
        self.channel, self.outage = Channel(endpoint), outage

    async def _run(self, asking: calls.Asking[T]) -> T:
        answer: Any = None
        try:
            while True:
                answer = await self._do(asking.send(answer))  # an error ends it
        except StopIteration as e:
            value: T = e.value
            return value

    async def _iterate(self, asking: calls.Asking[None]) -> AsyncIterator[Any]:
        stream: Any = None
        try:
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
                    answer = await self._do(wanted)
                except GaccError as e:
                    proceed, answer = asking.throw, e
                if isinstance(wanted, calls.Watch):
                    stream = answer  # the one before it has ended
        finally:
            if isinstance(stream, Stream):
                stream.cancel()

    async def _do(self, wanted: Any) -> Any:
        if isinstance(wanted, calls.Call):
            return await repeated(wanted.method, lambda s: self.channel.call(wanted.service, wanted.method, s, **wanted.fields), wanted.timeout,
                                  self.outage, SLICE_S)
        if isinstance(wanted, calls.Listing):
            return await repeated(wanted.method, lambda s: self.channel.listing("JobService", wanted.method, s, **wanted.fields), TIMEOUT_S,
                                  self.outage, SLICE_S)
        if isinstance(wanted, calls.Watch):
            return self.channel.stream("JobService", wanted.method, None, **wanted.fields)
        if isinstance(wanted, calls.Next):
            return await wanted.stream.next()
        await asyncio.sleep(wanted.seconds)
        return None

    # ---- jobs ----

    async def submit(self, spec: Any = None, **keys: Any) -> Job:
        return await self._run(calls.submit(spec, keys))

    async def job(self, job: JobLike) -> Job:
        return await self._run(calls.job(job))

    async def jobs(self, all: bool = False) -> list[Job]:
        return await self._run(calls.jobs(all))

    async def wait(self, job: JobLike, state: Optional[str] = None, step: int = 0, timeout: Optional[float] = None) -> Job:
        return await self._run(calls.wait(job, state, step, timeout))

    async def cancel(self, job: JobLike, reason: str = "", grace: float = 0.0) -> Job:
        return await self._run(calls.cancel(job, reason, grace))

    async def pause(self, job: JobLike, reason: str = "") -> Job:
        return await self._run(calls.pause(job, reason))

    async def resume(self, job: JobLike) -> Job:
        return await self._run(calls.resume(job))

    async def flush(self, job: JobLike) -> int:
        return await self._run(calls.flush(job))

    async def update(self, job: JobLike, *, micro_size: int = 0, lr: Optional[float] = None, clip_norm: Optional[float] = None,
               clip_value: Optional[float] = None, window: int = 0) -> int:
        return await self._run(calls.update(job, micro_size, window, lr=lr, clip_norm=clip_norm, clip_value=clip_value))

    # ---- checkpoints ----

    async def checkpoints(self, job: JobLike) -> list[Any]:
        return await self._run(calls.checkpoints(job))

    async def save_checkpoint(self, job: JobLike, inside_window: bool = False, timeout: Optional[float] = None) -> Any:
        return await self._run(calls.save_checkpoint(job, inside_window, timeout))

    # ---- what happens ----

    def events(self, job: Optional[JobLike] = None, follow: bool = False, after_id: int = 0) -> AsyncIterator[Any]:
        return self._iterate(calls.events(job, follow, after_id))

    def steps(self, job: JobLike, first_window: Optional[int] = None, follow: bool = True) -> AsyncIterator[Step]:
        return self._iterate(calls.steps(job, first_window, follow))

    def changes(self, job: JobLike) -> AsyncIterator[Job]:
        return self._iterate(calls.changes(job))

    async def history(self, job: JobLike, limit: int = 20) -> list[Step]:
        return await self._run(calls.history(job, limit))

    async def records(self, job: JobLike, last: Optional[int] = None) -> list[dict[str, Any]]:
        return await self._run(calls.records(job, last))

    async def windows(self, job: JobLike, limit: int = 20) -> list[Any]:
        return await self._run(calls.windows(job, limit))

    async def norms(self, job: JobLike, timeout: Optional[float] = None) -> dict[str, tuple[float, float]]:
        return await self._run(calls.norms(job, timeout))

    # ---- the node ----

    async def node(self) -> Any:
        return await self._run(calls.node())

    async def close(self) -> None:
        await self.channel.close()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, kind: Any, value: Any, traceback: Any) -> None:
        await self.close()


for _name, _method in vars(Client).items():  # what each does is said once
    if not _name.startswith("_") and callable(_method):
        _method.__doc__ = getattr(sync.Client, _name).__doc__
connect.__doc__, history.__doc__ = sync.connect.__doc__, sync.history.__doc__
