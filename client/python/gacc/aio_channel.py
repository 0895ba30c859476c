# SPDX-License-Identifier: Apache-2.0
"""Calls of gaccd's services for gacc.aio, over one channel of grpc.aio, which is made by the first call, in its event loop."""
from __future__ import annotations

import asyncio
import os
from typing import Any, Awaitable, Callable, Optional

from .channel import Connection, Patience, open_channel
from .errors import GaccError, of_rpc


class Channel(Connection):
    """A connection to one gaccd, of one event loop. What is cancelled cancels its call."""

    def __init__(self, endpoint: Optional[str] = None):
        super().__init__(endpoint)
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._closed = False

    def _begin(self) -> None:
        self.check_process()
        loop = asyncio.get_running_loop()
        if self._closed:
            raise GaccError("this client is closed", reason="CLOSED", hint="connect again")
        if self._loop is None:
            import grpc.aio
            self._loop, self._channel = loop, open_channel(grpc.aio, self.target, self._credentials)
        if self._loop is not loop:
            raise GaccError("this client belongs to another event loop", reason="INVALID_ARGUMENT", hint="connect in the loop that uses it")

    async def call(self, service: str, method: str, timeout: float, **fields: Any) -> Any:
        """One attempt. GaccError."""
        self._begin()
        stub, kind = self._stub(service, method)
        try:
            answer = await stub(kind(**fields), **self._limits(timeout))
            self._answered()
            return answer
        except self._grpc.RpcError as e:
            error = of_rpc(method, e)
        listens = self._must_look(error) and await asyncio.get_running_loop().run_in_executor(None, self._look)
        raise self._judge(method, error, listens)

    def stream(self, service: str, method: str, timeout: Optional[float] = None, **fields: Any) -> "Stream":
        self._begin()
        stub, kind = self._stub(service, method)
        return Stream(self, method, stub(kind(**fields), **self._stream_limits(timeout)))

    async def listing(self, service: str, method: str, timeout: float, **fields: Any) -> list[Any]:
        """All messages of a server stream."""
        found: list[Any] = []
        stream = self.stream(service, method, timeout, **fields)
        try:
            while True:
                message = await stream.next()
                if message is None:
                    return found
                found.append(message)
        finally:
            stream.cancel()

    async def close(self) -> None:
        """Calls that are not over are cancelled."""
        self._closed = True
        if self._channel is not None and os.getpid() == self.pid:
            await self._channel.close()


class Stream:
    """A server stream."""

    def __init__(self, channel: Channel, method: str, call: Any):
        self._channel, self._method, self._call = channel, method, call

    async def next(self) -> Any:
        """The next message; None: the stream has ended. GaccError."""
        import grpc
        try:
            message = await self._call.read()
        except grpc.RpcError as e:
            error = of_rpc(self._method, e)
            if self._channel._must_look(error):
                await asyncio.get_running_loop().run_in_executor(None, self._channel._look)
            raise self._channel._judge_stream(error) from None
        return None if message is grpc.aio.EOF else message

    def cancel(self) -> None:
        self._call.cancel()


async def repeated(what: str, attempt: Callable[[float], Awaitable[Any]], timeout: Optional[float], outage: float, slice_s: float = 60.0) -> Any:
    """channel.repeated(), awaited."""
    patience = Patience(what, timeout, outage)
    while True:
        try:
            answer = await attempt(patience.left(slice_s))
            patience.answered()
            return answer
        except GaccError as e:
            patience.judge(e)
        await asyncio.sleep(patience.next_pause())
