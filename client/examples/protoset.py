# SPDX-License-Identifier: Apache-2.0
"""Messages and calls of gacc from its descriptor set, share/gacc/gacc.protoset: no generated code, no library of ours."""
import os
import socket
import sys
import threading
import time

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PATIENCE_S = 2  # then an outage is told; calls go on waiting until their deadline


def target_of(endpoint):
    """gRPC's name for what GACC_ENDPOINT may be: a path, unix:PATH, unix:///PATH, or HOST:PORT."""
    if endpoint.startswith("unix:"):
        path = endpoint[5:]
        return "unix:" + (path[2:] if path.startswith("///") else path)
    if endpoint.startswith(("dns:", "ipv4:", "ipv6:")):
        return endpoint
    return ("unix:" if "/" in endpoint else "dns:") + endpoint


def reachable(target):
    """Does anybody listen there?"""
    try:
        if target.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(target[5:])
        else:
            host, _, port = target.partition(":")[2].lstrip("/").rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), 2).close()
    except OSError:
        return False
    return True


class Outage(threading.Thread):
    """Says on stderr that gaccd cannot be reached, and when it can be again: a call that waits for it would be silent."""

    def __init__(self, target):
        super().__init__(daemon=True)
        self._target, self.since = target, None  # since when a call has been waiting for its answer
        self._told, self._lock = False, threading.Lock()
        self.start()

    def over(self):
        """gaccd can be reached."""
        with self._lock:
            if self._told:
                print(f"gaccd at {self._target} answers again", file=sys.stderr, flush=True)
            self._told = False

    def run(self):
        asked = None
        while True:
            time.sleep(PATIENCE_S / 4)
            since = self.since
            if self._told and reachable(self._target):
                self.over()
            if self._told or since is None or since == asked or time.monotonic() - since < PATIENCE_S:
                continue
            asked = since  # once for each call: many wait for other ranks, not for gaccd
            if not reachable(self._target):
                with self._lock:
                    self._told = True
                    print(f"cannot reach gaccd at {self._target}: waiting for it. Is it running? Else set GACC_ENDPOINT",
                          file=sys.stderr, flush=True)


class Service:
    """One service of the descriptor set over one channel: service.Attach(job="7", rank=0) returns the response."""

    def __init__(self, protoset, name, endpoint=None):
        files = descriptor_pb2.FileDescriptorSet.FromString(open(protoset, "rb").read())
        self._pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            self._pool.Add(file)
        target = target_of(endpoint or os.environ.get("GACC_ENDPOINT") or "unix:/run/gaccd/gaccd.sock")
        self._channel = grpc.insecure_channel(target, options=[("grpc.max_receive_message_length", 8 << 20)])
        self._outage = Outage(target)
        self._methods = {m.name: m for m in self._pool.FindServiceByName(name).methods}
        self._service = name

    def message(self, name):
        """Class of a message: service.message("PushInlineRequest")."""
        return self._class(self._pool.FindMessageTypeByName("gacc.v1." + name))

    def _class(self, descriptor):
        if hasattr(message_factory, "GetMessageClass"):  # protobuf 4.22 and later
            return message_factory.GetMessageClass(descriptor)
        return message_factory.MessageFactory(self._pool).GetPrototype(descriptor)

    def __getattr__(self, method):
        m = self._methods[method]
        kind = {(False, False): "unary_unary", (True, False): "stream_unary", (False, True): "unary_stream"}
        call = getattr(self._channel, kind[m.client_streaming, m.server_streaming])(
            f"/{self._service}/{method}", request_serializer=lambda r: r.SerializeToString(),
            response_deserializer=self._class(m.output_type).FromString)

        def invoke(stream=None, timeout=600, **fields):
            self._outage.since = time.monotonic()
            try:
                answer = call(stream if m.client_streaming else self._class(m.input_type)(**fields), timeout=timeout,
                              wait_for_ready=True)
                if not m.server_streaming:
                    self._outage.over()
                return answer
            finally:
                self._outage.since = None
        return invoke
