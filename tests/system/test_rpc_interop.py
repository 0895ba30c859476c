# SPDX-License-Identifier: Apache-2.0
"""A Python gRPC client against the RPC layer, with messages made from the published descriptor set alone."""
import os
import pathlib
import subprocess
import time

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from harness import next_line

pytestmark = pytest.mark.smoke
BUILD = pathlib.Path(os.environ["GACC_BUILD_DIR"])
TOKEN = "s3cret"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Types:
    """Message classes and calls by name, from a FileDescriptorSet's files."""

    def __init__(self, files):
        self.pool = descriptor_pool.DescriptorPool()
        for f in files:
            self.pool.Add(f)
        self.factory = message_factory.MessageFactory(self.pool)

    def __getattr__(self, name):
        return self.type("gacc.v1." + name)

    def type(self, name):
        return self.factory.GetPrototype(self.pool.FindMessageTypeByName(name))

    def call(self, channel, service, method):
        m = self.pool.FindServiceByName(service).methods_by_name[method]
        proto = descriptor_pb2.MethodDescriptorProto()
        m.CopyToProto(proto)
        kind = ("stream" if proto.client_streaming else "unary") + ("_stream" if proto.server_streaming else "_unary")
        out = self.factory.GetPrototype(m.output_type)
        return getattr(channel, kind)(f"/{service}/{method}", request_serializer=lambda r: r.SerializeToString(),
                                      response_deserializer=out.FromString)


@pytest.fixture(scope="module")
def types():
    protoset = BUILD / "proto/gacc.protoset"
    return Types(descriptor_pb2.FileDescriptorSet.FromString(protoset.read_bytes()).file)


@pytest.fixture(scope="module")
def targets():
    server = subprocess.Popen([BUILD / "bin/rpc_test_server", TOKEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True)
    try:
        yield [next_line(server).strip() for _ in range(2)]
        server.stdin.close()
        assert server.wait(30) == 0
    finally:
        server.kill()


@pytest.fixture(scope="module")
def channel(targets):
    with grpc.insecure_channel(targets[0], options=UNLIMITED) as c:
        yield c


def code_of(call):
    with pytest.raises(grpc.RpcError) as e:
        call()
    return e.value.code()


def gradient(types, channel, method):
    return types.call(channel, "gacc.v1.GradientService", method)


def test_unary(types, channel):
    flush = gradient(types, channel, "Flush")
    assert [flush(types.FlushRequest(window=i), timeout=10).micro_count for i in range(50)] == list(range(50))
    assert flush(types.FlushRequest(window=1003), timeout=10).micro_count == os.getuid()
    assert flush(types.FlushRequest(window=1004), timeout=10).micro_count == os.getpid()


def test_client_stream(types, channel):
    chunks = [bytes([i]) * (4 << 20) for i in range(6)]
    requests = (types.PushInlineRequest(offset=i, data=c) for i, c in enumerate(chunks))
    reply = gradient(types, channel, "PushInline")(requests, timeout=60)
    assert (reply.parked_ns, reply.micro_count) == (6 * (4 << 20), 6)
    assert reply.window == sum(i * (4 << 20) for i in range(6))


def test_client_stream_of_hand_made_bytes(channel, types):
    """The fast way from Python: no protobuf object around the data."""
    payload = bytes(range(256)) * 4096
    head = b"\x7a\x80\x80\x40"  # field 15, 1 MiB
    call = channel.stream_unary("/gacc.v1.GradientService/PushInline",
                                response_deserializer=types.PushResponse.FromString)
    reply = call((head + payload for _ in range(3)), timeout=60)
    assert (reply.parked_ns, reply.micro_count, reply.window) == (3 << 20, 3, 3 * sum(payload))


def test_server_stream(types, channel):
    request = types.GetParametersRequest(bytes=9 << 20, offset=1 << 20)
    got = b""
    for reply in gradient(types, channel, "GetParameters")(request, timeout=60):
        assert reply.offset == len(got)
        got += reply.data
    assert got == (bytes(range(251)) * (len(got) // 251 + 1))[:9 << 20]


def test_error_detail(types, channel):
    with pytest.raises(grpc.RpcError) as e:
        gradient(types, channel, "Flush")(types.FlushRequest(window=1002), timeout=10)
    assert e.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert e.value.details() == "window 7 closed"
    trailer = dict(e.value.trailing_metadata())["grpc-status-details-bin"]
    # google.rpc.Status, read with a proto of its own: code 1, message 2, details 3 {type_url 1, value 2}
    file = descriptor_pb2.FileDescriptorProto(name="s.proto", package="s", syntax="proto3")
    a = file.message_type.add(name="Any")
    a.field.add(name="type_url", number=1, type=9, label=1)
    a.field.add(name="value", number=2, type=12, label=1)
    s = file.message_type.add(name="Status")
    s.field.add(name="code", number=1, type=5, label=1)
    s.field.add(name="message", number=2, type=9, label=1)
    s.field.add(name="details", number=3, type=11, label=3, type_name=".s.Any")
    status = Types([file]).type("s.Status").FromString(trailer)
    assert (status.code, status.message, len(status.details)) == (9, "window 7 closed", 1)
    assert status.details[0].type_url == "type.googleapis.com/gacc.v1.ErrorDetail"
    detail = types.ErrorDetail.FromString(status.details[0].value)
    assert (detail.reason, detail.hint, detail.field) == ("WINDOW_CLOSED", "go on", "window")
    assert (detail.retry_after_ms, list(detail.missing_ranks)) == (5, [3, 5])


def test_what_is_refused(types, channel):
    raw = channel.unary_unary
    assert code_of(lambda: raw("/gacc.v1.GradientService/Nope")(b"", timeout=10)) == grpc.StatusCode.UNIMPLEMENTED
    assert code_of(lambda: raw("/nope/Nope")(b"", timeout=10)) == grpc.StatusCode.UNIMPLEMENTED
    flush = raw("/gacc.v1.GradientService/Flush")
    assert code_of(lambda: flush(b"\x10", timeout=10)) == grpc.StatusCode.INVALID_ARGUMENT
    assert code_of(lambda: flush(b"\x0a\x05abc", timeout=10)) == grpc.StatusCode.INVALID_ARGUMENT
    assert code_of(lambda: flush(b"\0" * (5 << 20), timeout=10)) == grpc.StatusCode.RESOURCE_EXHAUSTED
    push = gradient(types, channel, "Push")
    assert code_of(lambda: push(types.PushRequest())) == grpc.StatusCode.INVALID_ARGUMENT
    assert push(types.PushRequest(micro=4), timeout=10).micro_count == 4


def test_compressed_messages_are_refused(types, channel):
    """64 MB of zeros would pass the size limit as some KB."""
    call = gradient(types, channel, "PushInline")
    request = types.PushInlineRequest(data=bytes(1 << 20))
    code = code_of(lambda: call(iter([request]), timeout=10, compression=grpc.Compression.Gzip))
    assert code == grpc.StatusCode.UNIMPLEMENTED


def test_deadline_and_cancel(types, channel):
    flush = gradient(types, channel, "Flush")
    begin = time.monotonic()
    code = code_of(lambda: flush(types.FlushRequest(window=1001), timeout=0.2))
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED and time.monotonic() - begin < 5
    waiting = flush.future(types.FlushRequest(window=1001), timeout=60)
    waiting.cancel()
    assert waiting.cancelled()
    assert flush(types.FlushRequest(window=5), timeout=10).micro_count == 5


def test_token_on_loopback(types, targets):
    with grpc.insecure_channel(targets[1]) as tcp:
        flush = gradient(types, tcp, "Flush")
        request = types.FlushRequest(window=3)
        assert code_of(lambda: flush(request, timeout=10)) == grpc.StatusCode.UNAUTHENTICATED
        for wrong in ("Bearer ", "Bearer s3cre", "Bearer s3cretx", "bearer s3cret", "s3cret"):
            header = [("authorization", wrong)]
            assert code_of(lambda: flush(request, timeout=10, metadata=header)) == grpc.StatusCode.UNAUTHENTICATED
        assert flush(request, timeout=10, metadata=[("authorization", "Bearer " + TOKEN)]).micro_count == 3


def test_health(types, channel):
    request = types.type("grpc.health.v1.HealthCheckRequest")
    check = types.call(channel, "grpc.health.v1.Health", "Check")
    assert check(request(service=""), timeout=10).status == 1
    assert code_of(lambda: check(request(service="nope"), timeout=10)) == grpc.StatusCode.NOT_FOUND
    watch = types.call(channel, "grpc.health.v1.Health", "Watch")(request(service=""))
    assert next(watch).status == 1
    watch.cancel()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_is_enough_to_make_a_call(types, channel, version):
    request = types.type("grpc.reflection.v1.ServerReflectionRequest")
    call = types.call(channel, f"grpc.reflection.{version}.ServerReflection", "ServerReflectionInfo")
    asked = [request(list_services=""), request(file_containing_symbol="gacc.v1.GradientService.Push"),
             request(file_by_filename="nope.proto"), request(file_containing_symbol="gacc.v1.Nope")]
    listed, found, no_file, no_symbol = call(iter(asked), timeout=10)
    names = [s.name for s in listed.list_services_response.service]
    assert {"gacc.v1.GradientService", "gacc.v1.JobService", "gacc.v1.NodeService", "grpc.health.v1.Health"} <= set(names)
    assert sorted(names) == sorted(set(names))
    assert no_file.error_response.error_code == no_symbol.error_response.error_code == 5
    files = [descriptor_pb2.FileDescriptorProto.FromString(b)
             for b in found.file_descriptor_response.file_descriptor_proto]
    seen = Types(reversed(files))
    assert gradient(seen, channel, "Push")(seen.PushRequest(micro=9), timeout=10).micro_count == 9
