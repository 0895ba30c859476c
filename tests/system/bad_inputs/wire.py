# SPDX-License-Identifier: Apache-2.0
"""Bytes that are no message, and messages that are no call: for every method of our services, by what the descriptors say."""
import grpc

from bad_inputs import Row, rpc

SERVICES = ("GradientService", "JobService", "NodeService")
REFUSED, MALFORMED, EXHAUSTED = "INVALID_ARGUMENT", "MALFORMED", "RESOURCE_EXHAUSTED"
HINT = "proto/gacc/v1"


def methods(types):
    for service in SERVICES:
        for m in types.pool.FindServiceByName(f"gacc.v1.{service}").methods:
            yield f"{service}/{m.name}", m.input_type


def varint(n):
    out = b""
    while n >= 0x80:
        out, n = out + bytes([n & 0x7f | 0x80]), n >> 7
    return out + bytes([n])


def tagged(number, wire, data):
    return varint(number << 3 | wire) + (varint(len(data)) if wire == 2 else b"") + data


def strings(message, path=()):
    """Every string in a message type: the path of fields to it."""
    for f in message.fields:
        if f.type == f.TYPE_STRING:
            yield path + (f,)
        elif f.type == f.TYPE_MESSAGE:
            yield from strings(f.message_type, path + (f,))


def nested(path, data):
    for f in reversed(path):
        data = tagged(f.number, 2, data)
    return data


def text_rows(types):
    """What is not UTF-8, in every string of every request, nested ones too; each kind of it in turn."""
    kinds = [(b"a\xff", "byte 0xff is not UTF-8"), (b"\xc0\x80", "byte 0xc0 is not UTF-8"), (b"\xed\xa0\x80", "byte 0xed is not UTF-8"),
             (b"ab\xe2\x82", "byte 0xe2 is not UTF-8"), (b"nul\0", "byte 0x00 is not allowed in text"),
             (b"\xf5\x80\x80\x80", "byte 0xf5 is not UTF-8")]
    seen, rows = set(), []
    for method, request in methods(types):
        for path in strings(request):
            where = f"{path[-1].containing_type.full_name}.{path[-1].name}"
            if (method, where) in seen:
                continue
            seen.add((method, where))
            data, what = kinds[len(rows) % len(kinds)]
            name = ".".join(f.name for f in path)
            rows.append(Row(f"text-{method}-{name}", rpc(method, nested(path, data)), REFUSED, MALFORMED, f"{where} at byte .*{what}", HINT))
    return rows


def message_rows(types):
    """For every method: no tag, a field that ends too early, one of the wrong kind."""
    rows = []
    for method, request in methods(types):
        name = request.full_name
        rows += [Row(f"bytes-{method}-garbage", rpc(method, b"\xff" * 12), REFUSED, MALFORMED, f"{name} at byte 0", HINT),
                 Row(f"bytes-{method}-cut", rpc(method, b"\x9a\x3f\x64only this"), REFUSED, MALFORMED, "1011 at byte 2: 100 bytes are announced, 9",
                     HINT)]
        if request.fields:
            f = request.fields[0]
            wrong = tagged(f.number, 5, b"1234")
            rows.append(Row(f"bytes-{method}-wrong-kind", rpc(method, wrong), REFUSED, MALFORMED, f"{f.name} at byte 1: wire type 5", HINT))
    return rows


def compressed(s):
    return s.call("GradientService/Flush", [{"window": 1}], compression=grpc.Compression.Gzip)


def of_kind(method, kind, *messages):
    """A call as another kind of stub would make it."""
    return lambda s: s.caller.call(s.method(method)[0], kind, list(messages))


def no_deadline(method):
    return lambda s: s.call(method, [{}], timeout=None)


NEED_DEADLINES = ["GradientService/" + m for m in ("Attach", "RegisterTensors", "PutParameters", "PutParametersInline", "WaitReady", "Push",
                                                   "PushInline", "Flush", "WaitStep", "AckStep", "PutTrainerState", "GetTrainerState",
                                                   "Detach")]
NEED_DEADLINES += ["JobService/" + m for m in ("Submit", "Cancel", "Flush")]
NESTED = b"".join(tagged(2, 2, tagged(1, 2, b"n")) for _ in range(3))

CALLS = [Row(f"no-deadline-{m}", no_deadline(m), REFUSED, "INVALID_ARGUMENT", f"{m}: .*no deadline", "grpc-timeout") for m in NEED_DEADLINES]
CALLS += [
    Row("tag-0", rpc("GradientService/Push", b"\0\0"), REFUSED, MALFORMED, "tag 0", HINT),
    Row("tag-beyond-32-bits", rpc("GradientService/Push", b"\xf8\xff\xff\xff\xff\x01\x01"), REFUSED, MALFORMED, r"tag \d+", HINT),
    Row("number-of-11-bytes", rpc("GradientService/Push", b"\x10" + b"\x80" * 10 + b"\1"), REFUSED, MALFORMED, "window at byte 1", HINT),
    Row("number-cut", rpc("GradientService/Push", b"\x10\x80"), REFUSED, MALFORMED, "window at byte 1: a number", HINT),
    Row("double-cut", rpc("GradientService/Push", b"\x29\0\0"), REFUSED, MALFORMED, "weight at byte 1: 8 bytes are announced, 2", HINT),
    Row("group", rpc("GradientService/Push", b"\x0b\x0c"), REFUSED, MALFORMED, "wire type 3", HINT),
    Row("unknown-group", rpc("GradientService/Push", b"\xf3\x3f\xf4\x3f"), REFUSED, MALFORMED, "1022 at byte 2: wire type 3", HINT),
    Row("session-cut", rpc("GradientService/Push", b"\x0a\x05\x12\x10abc"), REFUSED, MALFORMED, "Session.token at byte 3: 16 bytes", HINT),
    Row("length-beyond-63-bits", rpc("GradientService/Push", b"\x0a" + b"\xff" * 9 + b"\1"), REFUSED, MALFORMED, str(2**64 - 1), HINT),
    Row("shape-cut", rpc("GradientService/RegisterTensors", b"\x12\x03\x1a\x01\x80"), REFUSED, MALFORMED, "shape at byte 4", HINT),
    Row("packed-name", rpc("GradientService/Push", b"\x12\x01\x01"), REFUSED, MALFORMED, "window at byte 2: wire type 2", HINT),
    Row("inline-data-cut", rpc("GradientService/PushInline", b"\x7a\x80\x80\x40abc"), REFUSED, MALFORMED, "data at byte 1: 1048576 bytes", HINT),
    Row("inline-envelope-of-70000", rpc("GradientService/PushInline", tagged(1011, 2, bytes(70000))), EXHAUSTED, EXHAUSTED,
        "more than 65536 are not data", "."),
    Row("many-small-tensors", rpc("GradientService/RegisterTensors", tagged(2, 2, b"") * 2000000), EXHAUSTED, EXHAUSTED,
        "4000000 bytes of small elements", "."),
    Row("many-small-labels", rpc("JobService/Submit", tagged(1, 2, tagged(30, 2, b"") * 1000000)), EXHAUSTED, EXHAUSTED,
        "bytes of small elements", "."),
    Row("no-message", of_kind("GradientService/Flush", "stream_unary"), REFUSED, MALFORMED, "no request message", HINT),
    Row("no-message-of-a-stream", of_kind("GradientService/PushInline", "stream_unary"), REFUSED, "INVALID_ARGUMENT", "PushInline without a message",
        "needs a new iterator"),
    Row("no-such-method", lambda s: s.caller.call("/gacc.v1.GradientService/Nope", "unary_unary", [b""]), "UNIMPLEMENTED", "UNIMPLEMENTED",
        "gacc.v1.GradientService/Nope", "reflection"),
    Row("no-such-service", lambda s: s.caller.call("/gacc.v9.GradientService/Push", "unary_unary", [b""]), "UNIMPLEMENTED", "UNIMPLEMENTED",
        "gacc.v9.GradientService/Push", "reflection"),
    Row("no-method", lambda s: s.caller.call("/", "unary_unary", [b""]), "UNIMPLEMENTED", "UNIMPLEMENTED", "^/: ", "reflection"),
    Row("method-name-of-6000-bytes", lambda s: s.caller.call("/" + "x" * 6000, "unary_unary", [b""]), "UNIMPLEMENTED", "UNIMPLEMENTED", "^/xxx",
        "reflection"),
    # gRPC itself refuses these: ours sees no call
    Row("message-of-5-MiB", rpc("GradientService/Push", tagged(1011, 2, bytes(5 << 20))), EXHAUSTED, "", r"larger than max \(52428\d\d vs", ""),
    Row("chunk-of-5-MiB", rpc("GradientService/PushInline", tagged(15, 2, bytes(5 << 20))), EXHAUSTED, "", r"larger than max \(52428\d\d vs", ""),
    Row("compressed", compressed, "UNIMPLEMENTED", "", "gzip", ""),
]
