# SPDX-License-Identifier: Apache-2.0
"""Calls of gaccd's services over one gRPC channel, and how long to be patient with a gaccd that is away. grpc is imported here, when the
first channel is made."""
from __future__ import annotations

import logging
import os
import random
import time
from typing import Any, Callable, Iterator, Optional

from .environment import answers, endpoint_or_default, place_of, target_of
from .errors import GaccError, of_rpc
from .messages import types

log = logging.getLogger("gacc")

SILENT_S = 2.0  # an outage that lasts longer is told; a restart of gaccd takes less
BACKOFF_S = (0.02, 1.0)
FIRST_S = 5.0  # the first attempt over a network
AWAY_S = 1.0  # how long one attempt waits for a connection that is not there
OPTIONS = [("grpc.max_receive_message_length", 8 << 20), ("grpc.initial_reconnect_backoff_ms", 100),
           ("grpc.max_reconnect_backoff_ms", 200), ("grpc.use_local_subchannel_pool", 1)]


def open_channel(api: Any, target: str, credentials: Any) -> Any:
    """`api`: grpc or grpc.aio."""
    return api.secure_channel(target, credentials, OPTIONS) if credentials else api.insecure_channel(target, OPTIONS)


class Connection:
    """What Channel and gacc.aio's channel share: where gaccd is, credentials, methods, and what their errors mean."""

    def __init__(self, endpoint: Optional[str] = None):
        import grpc  # takes 0.1 s
        self._grpc = grpc
        self.endpoint = endpoint_or_default(endpoint)
        self.target, self.pid = target_of(self.endpoint), os.getpid()
        self._is_far, token, self._tls = not self.target.startswith("unix:"), None, None  # on a unix socket the kernel says who calls
        if self._is_far:
            from . import tls  # takes 0.02 s
            token, self._tls = tls.token(), tls.files()
        self._metadata = [("authorization", "Bearer " + token)] if token else None
        self._credentials = grpc.ssl_channel_credentials(self._tls.authority, self._tls.key, self._tls.certificate) if self._tls else None
        self._channel: Any = None
        self._stubs: dict[str, tuple[Any, Any]] = {}
        self._is_away = False  # the last call found no gaccd
        self._is_known = not self._is_far  # gaccd has answered once, or a look found nothing wrong with TLS

    def check_process(self) -> None:
        if os.getpid() != self.pid:
            raise GaccError(f"this connection belongs to process {self.pid}, of which this one is a fork", reason="FORKED",
                            hint="workers that load data must not use it; a rank connects after it was forked")

    def _stub(self, service: str, method: str) -> tuple[Any, Any]:
        """(gRPC's callable, class of the request)"""
        known = types()
        path = f"/gacc.v1.{service}/{method}"
        if path not in self._stubs:
            m = known.pool.FindServiceByName("gacc.v1." + service).methods_by_name[method]
            proto = known_method(m)
            kind = ("stream" if proto.client_streaming else "unary") + ("_stream" if proto.server_streaming else "_unary")
            call = getattr(self._channel, kind)(path, request_serializer=lambda r: r.SerializeToString(),
                                                response_deserializer=known.of(m.output_type).FromString)
            self._stubs[path] = call, known.of(m.input_type)
        return self._stubs[path]

    def _limits(self, timeout: float) -> dict[str, Any]:
        """Of one attempt: gRPC looks for a gaccd that was away only while a call waits for it. The first one over a network is short, as gRPC waits in
        silence where one side has TLS and the other has not."""
        most = AWAY_S if self._is_away else timeout if self._is_known else FIRST_S
        return {"timeout": min(timeout, most), "metadata": self._metadata, "wait_for_ready": self._is_away}

    def _answered(self) -> None:
        self._is_away, self._is_known = False, True

    def _must_look(self, error: GaccError) -> bool:
        """Whether _look() has to come before _judge()."""
        if error.reason:
            return False
        late = error.code == "DEADLINE_EXCEEDED"
        return (self._is_away and late) or (self._is_far and not self._is_away and (error.code == "UNAVAILABLE" or (late and not self._is_known)))

    def _look(self) -> bool:
        """Somebody listens at the endpoint. Raises what is wrong with TLS. Waits for some seconds at most."""
        place = place_of(self.target)
        if not self._is_far or place is None:
            return answers(self.endpoint)
        from . import tls
        listens, wrong = tls.look(*place, self._tls)
        if wrong is not None:
            raise wrong
        self._is_known = self._is_known or listens
        return listens

    def _judge(self, method: str, error: GaccError, listens: bool) -> GaccError:
        """After an attempt that failed: notes whether gaccd is away, and says what to raise."""
        was_away = self._is_away
        if error.reason:
            self._is_known = True
            return error
        self._is_away = error.code == "UNAVAILABLE" or (was_away and error.code == "DEADLINE_EXCEEDED" and not listens)
        if self._is_away and was_away:
            return GaccError(f"{method}: nobody answers at {self.target}", code="UNAVAILABLE", hint="is gaccd running? Else set GACC_ENDPOINT")
        return error

    def _stream_limits(self, timeout: Optional[float]) -> dict[str, Any]:
        limits = self._limits(timeout or FIRST_S)
        return {**limits, "timeout": None if timeout is None else timeout if self._is_away else limits["timeout"]}

    def _judge_stream(self, error: GaccError) -> GaccError:
        self._is_away = error.code == "UNAVAILABLE" and not error.reason
        return error


class Channel(Connection):
    """A connection to one gaccd. Any thread, but only the process that made it: a forked child is refused."""

    def __init__(self, endpoint: Optional[str] = None):
        super().__init__(endpoint)
        self._channel = open_channel(self._grpc, self.target, self._credentials)

    def call(self, service: str, method: str, timeout: float, request: Any = None, **fields: Any) -> Any:
        """One attempt. `request`: for client streams an iterable of messages; else made of `fields`. GaccError."""
        self.check_process()
        stub, kind = self._stub(service, method)
        try:
            answer = stub(kind(**fields) if request is None else request, **self._limits(timeout))
            self._answered()
            return answer
        except self._grpc.RpcError as e:
            error = of_rpc(method, e)
        raise self._judge(method, error, self._must_look(error) and self._look())

    def begin(self, service: str, method: str, timeout: float, **fields: Any) -> Any:
        """Begins a unary call, and waits for nothing: gRPC's call, for error_of() when it is done()."""
        self.check_process()
        stub, kind = self._stub(service, method)
        return stub.future(kind(**fields), timeout=timeout, metadata=self._metadata, wait_for_ready=True)

    def error_of(self, method: str, call: Any) -> Optional[GaccError]:
        """Of a call that is done; None: it went well."""
        error = call.exception()
        return None if error is None else of_rpc(method, error)

    def stream(self, service: str, method: str, timeout: Optional[float] = None, **fields: Any) -> Iterator[Any]:
        """The messages of a server stream, until it ends. GaccError. Closing the generator cancels the call."""
        self.check_process()
        stub, kind = self._stub(service, method)
        call = stub(kind(**fields), **self._stream_limits(timeout))
        try:
            yield from call
        except self._grpc.RpcError as e:
            error = of_rpc(method, e)
            if self._must_look(error):
                self._look()
            raise self._judge_stream(error) from None
        finally:
            call.cancel()

    def hold(self, service: str, method: str, **fields: Any) -> Any:
        """A server stream that nobody reads, and that is open until it is cancelled: gRPC's call."""
        stub, kind = self._stub(service, method)
        return stub(kind(**fields), metadata=self._metadata)

    def close(self) -> None:
        if os.getpid() == self.pid:
            self._channel.close()


def known_method(method: Any) -> Any:
    """The method's DescriptorProto, which says what streams: older descriptors do not. Out of its file, as protobuf in pure Python, which importing
    mindspore asks for, cannot copy a method of a pool."""
    from google.protobuf import descriptor_pb2
    service = method.containing_service
    file = descriptor_pb2.FileDescriptorProto.FromString(service.file.serialized_pb)
    return next(m for s in file.service if s.name == service.name for m in s.method if m.name == method.name)


class Patience:
    """Of one call that is repeated: until when, how long gaccd may be away, and the pause before the next attempt."""

    def __init__(self, what: str, timeout: Optional[float], outage: float):
        self.what, self.outage = what, outage
        self._end = None if timeout is None else time.monotonic() + timeout
        self._since: Optional[float] = None
        self._pause, self._told = BACKOFF_S[0], False
        self._said: Optional[GaccError] = None  # whom gaccd waits for, which it says shortly before a deadline

    def left(self, at_most: float) -> float:
        """Seconds for the next attempt."""
        left = at_most if self._end is None else min(at_most, self._end - time.monotonic())
        return max(left, 0.001)

    def is_over(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    def answered(self) -> None:
        if self._told and self._since is not None:
            log.warning("%s: gaccd answers again, after %.0f s", self.what, time.monotonic() - self._since)
        self._since, self._told = None, False

    def bears(self, error: GaccError, outage: bool) -> bool:
        """Should this attempt be followed by another one? Says that gaccd is away, once."""
        now = time.monotonic()
        if error.code == "DEADLINE_EXCEEDED" and error.reason:
            self._said = error
        if not outage:
            self.answered()
        else:
            self._since = self._since or now
            if now - self._since >= self.outage:
                return False
            if now - self._since >= SILENT_S and not self._told:
                self._told = True
                log.warning("%s: waits for gaccd, for %.0f s at most: %s", self.what, self.outage, error)
        return not self.is_over()

    def explain(self, error: GaccError) -> GaccError:
        """What to raise for it: in what is left of a deadline gaccd has no time to say more."""
        return self._said if self._said and error.code == "DEADLINE_EXCEEDED" and not error.reason else error

    def judge(self, error: GaccError) -> None:
        """Raises, unless another attempt should follow."""
        if not error.is_retryable or not self.bears(error, error.is_outage):
            raise self.explain(error) from None

    def next_pause(self) -> float:
        """Seconds; longer each time."""
        pause = self._pause * (0.5 + random.random() / 2)
        self._pause = min(2 * self._pause, BACKOFF_S[1])
        return pause if self._end is None else max(0.0, min(pause, self._end - time.monotonic()))

    def pause(self) -> None:
        time.sleep(self.next_pause())


def repeated(what: str, attempt: Callable[[float], Any], timeout: Optional[float], outage: float, slice_s: float = 60.0) -> Any:
    """attempt(seconds) until it answers: again after an outage and after errors that may be repeated, at most for `timeout` seconds."""
    patience = Patience(what, timeout, outage)
    while True:
        try:
            answer = attempt(patience.left(slice_s))
            patience.answered()
            return answer
        except GaccError as e:
            patience.judge(e)
        patience.pause()
