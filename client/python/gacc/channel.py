# SPDX-License-Identifier: Apache-2.0
"""Calls of gaccd's services over one gRPC channel, and how long to be patient with a gaccd that is away. grpc is imported here, when the
first channel is made."""
from __future__ import annotations

import logging
import os
import random
import time
from typing import Any, Callable, Iterator, Optional

from .environment import answers, endpoint_or_default, target_of
from .errors import GaccError, of_rpc
from .messages import types

log = logging.getLogger("gacc")

SILENT_S = 2.0  # an outage that lasts longer is told; a restart of gaccd takes less
BACKOFF_S = (0.02, 1.0)
AWAY_S = 1.0  # how long one attempt waits for a connection that is not there
OPTIONS = [("grpc.max_receive_message_length", 8 << 20), ("grpc.initial_reconnect_backoff_ms", 100),
           ("grpc.max_reconnect_backoff_ms", 200), ("grpc.use_local_subchannel_pool", 1)]


def _read(variable: str) -> Optional[bytes]:
    path = os.environ.get(variable)
    if not path:
        return None
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError as e:
        raise GaccError(f"{variable}: {path}: {e.strerror}", reason="IO_ERROR") from None


def _credentials(grpc: Any, target: str) -> Any:
    """With TLS if GACC_TLS_CA and the like are set, as libgacc and gaccctl have it; never on a unix socket. None: without."""
    authority, certificate, key = (None,) * 3 if target.startswith("unix:") else map(_read, ("GACC_TLS_CA", "GACC_TLS_CERT", "GACC_TLS_KEY"))
    return grpc.ssl_channel_credentials(authority, key, certificate) if authority or certificate or key else None


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
        token = None if self.target.startswith("unix:") else _read("GACC_TOKEN_FILE")
        self._metadata = [("authorization", "Bearer " + token.decode().splitlines()[0])] if token else None
        self._credentials = _credentials(grpc, self.target)
        self._channel: Any = None
        self._stubs: dict[str, tuple[Any, Any]] = {}
        self._is_away = False  # the last call found no gaccd

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
        """Of one attempt: gRPC looks for a gaccd that was away only while a call waits for it."""
        return {"timeout": min(timeout, AWAY_S) if self._is_away else timeout, "metadata": self._metadata, "wait_for_ready": self._is_away}

    def _must_look(self, error: GaccError) -> bool:
        """Whether somebody listens at the endpoint has to be found out before _judge()."""
        return self._is_away and error.code == "DEADLINE_EXCEEDED" and not error.reason

    def _judge(self, method: str, error: GaccError, listens: bool) -> GaccError:
        """After an attempt that failed: notes whether gaccd is away, and says what to raise."""
        was_away = self._is_away
        if not error.reason:
            self._is_away = error.code == "UNAVAILABLE" or (was_away and error.code == "DEADLINE_EXCEEDED" and not listens)
            if self._is_away and was_away:
                return GaccError(f"{method}: nobody answers at {self.target}", code="UNAVAILABLE", hint="is gaccd running? Else set GACC_ENDPOINT")
        return error

    def _judge_stream(self, method: str, error: Any) -> GaccError:
        found = of_rpc(method, error)
        self._is_away = found.code == "UNAVAILABLE" and not found.reason
        return found


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
            self._is_away = False
            return answer
        except self._grpc.RpcError as e:
            error = of_rpc(method, e)
        raise self._judge(method, error, self._must_look(error) and answers(self.endpoint))

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
        call = stub(kind(**fields), timeout=timeout, metadata=self._metadata, wait_for_ready=self._is_away)
        try:
            yield from call
        except self._grpc.RpcError as e:
            raise self._judge_stream(method, e) from None
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
