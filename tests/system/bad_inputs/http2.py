# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 by hand, as no gRPC library would speak it.

Each row opens a connection of its own to gaccd's socket, does something wrong, and says what became of it: GOAWAY or RST_STREAM with
the error's name, CLOSED without a word, ALIVE when a ping is still answered, or the gRPC status of the call that was made. The text is
what gRPC says in the GOAWAY frame.
"""
import re
import socket
import struct
import time

from bad_inputs import Answer, Row

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ERRORS = ["NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED", "FRAME_SIZE_ERROR",
          "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED"]
ANSWER_S = 5


def frame(kind, flags=0, stream=0, payload=b"", length=None):
    length = len(payload) if length is None else length
    return struct.pack(">I", length)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    """A header without the table (RFC 7541, 6.2.2); lengths below 127."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def headers(path=b"/gacc.v1.NodeService/GetNode", timeout=b"5S", **more):
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"localhost"),
              (b"content-type", b"application/grpc"), (b"te", b"trailers")] + ([(b"grpc-timeout", timeout)] if timeout else [])
    return b"".join(literal(n, v) for n, v in fields) + b"".join(literal(n.encode(), v) for n, v in more.items())


def message(data=b"", compressed=0, length=None):
    return struct.pack(">BI", compressed, len(data) if length is None else length) + data


def call(stream=1, data=None, **how):
    """HEADERS and DATA of one whole call."""
    return (frame(HEADERS, END_HEADERS, stream, headers(**how)) +
            frame(DATA, END_STREAM, stream, message() if data is None else data))


class Connection:
    def __init__(self, path, preface=PREFACE + frame(SETTINGS)):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(ANSWER_S)
        self.socket.connect(path)
        self.received, self.closed = b"", False
        self.send(preface)

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError:  # what came before the end is still to be read
            pass

    def frames(self):
        """All until the end, or until nothing comes."""
        while True:
            if len(self.received) >= 9:
                length = int.from_bytes(self.received[:3], "big")
                if len(self.received) >= 9 + length:
                    kind, flags, stream = struct.unpack(">BBI", self.received[3:9])
                    payload, self.received = self.received[9:9 + length], self.received[9 + length:]
                    yield kind, flags, stream, payload
                    continue
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                data = b""
            except socket.timeout:
                return
            if not data:
                self.closed = True
                return
            self.received += data

    def outcome(self):
        """What became of the connection, or of its first call. A ping goes out first: its answer means that all before was read."""
        self.send(frame(PING, payload=b"are you?"))
        alive = False
        for kind, flags, stream, payload in self.frames():
            if kind == GOAWAY:
                return Answer("GOAWAY " + ERRORS[int.from_bytes(payload[4:8], "big")], "", payload[8:].decode(errors="replace"))
            if kind == RST_STREAM:
                return Answer("RST_STREAM " + ERRORS[int.from_bytes(payload, "big")])
            if kind == HEADERS:
                status = re.search(rb"grpc-status.([0-9]+)", payload, re.S)
                if status:
                    text = re.search(rb"grpc-message(.)", payload, re.S)
                    at = text.end() if text else len(payload)
                    return Answer(f"status {status[1].decode()}", "", payload[at:].decode(errors="replace"))
            if kind == PING and flags & ACK and payload == b"are you?":
                alive = True
                self.socket.settimeout(0.3)
        return Answer("ALIVE" if alive and not self.closed else "CLOSED" if self.closed else "SILENT")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


def raw(*parts, preface=PREFACE + frame(SETTINGS)):
    """Sends these bytes after the preface; parts may be functions that make them."""
    def send(s):
        with Connection(str(s.daemon.socket), preface) as c:
            for part in parts:
                c.send(part() if callable(part) else part)
            return c.outcome()
    return send


def instead_of_the_preface(data):
    return raw(preface=data)


def bomb(n):
    """Headers with a value of 4000 bytes, which the table keeps, and then n times its number there."""
    value = b"\x40\x01x\x7f\xa1\x1e" + b"y" * 4000
    return frame(HEADERS, END_HEADERS, 1, headers() + value + b"\xbe" * n) + frame(DATA, END_STREAM, 1, message())


def bomb_within_the_settings(s):
    """gRPC's limit holds when its SETTINGS are acknowledged."""
    with Connection(str(s.daemon.socket)) as c:
        next(kind for kind, flags, _, _ in c.frames() if kind == SETTINGS and not flags & ACK)
        c.send(frame(SETTINGS, ACK) + bomb(4000))
        return c.outcome()


def many(n, part):
    return lambda: b"".join(part(i) for i in range(n))


def slowly(s):
    """The first bytes of a call, one at a time, and then nothing: others do not wait."""
    with Connection(str(s.daemon.socket)) as c:
        for byte in call()[:40]:
            c.send(bytes([byte]))
            time.sleep(0.002)
        began = time.monotonic()
        assert s.call("NodeService/GetNode", [{}]).code == "OK"
        return Answer("OTHERS SERVED" if time.monotonic() - began < ANSWER_S else "OTHERS WAIT")


def half_open(s):
    """Connections that have said nothing, and half a preface, and half a frame."""
    opened = [Connection(str(s.daemon.socket), preface) for preface in (b"", PREFACE[:10], PREFACE + frame(SETTINGS)[:5]) for _ in range(8)]
    answer = s.call("NodeService/GetNode", [{}])
    for c in opened:
        c.__exit__()
    return Answer("OTHERS SERVED") if answer.code == "OK" else answer


def half_closed(s):
    with Connection(str(s.daemon.socket)) as c:
        c.send(frame(HEADERS, END_HEADERS, 1, headers()))
        c.socket.shutdown(socket.SHUT_WR)
        return c.outcome()


def never_reading(s):
    """Calls whose answers are not read: gaccd must not wait for us, nor keep them."""
    with Connection(str(s.daemon.socket)) as c:
        c.socket.setblocking(False)
        for stream in range(1, 2001, 2):
            c.send(call(stream))
        assert s.call("NodeService/GetNode", [{}]).code == "OK"
    return Answer("OTHERS SERVED")


def row(what, send, code, text=""):
    return Row(f"http2-{what}", send, code, "", text, "")


# What gRPC makes of it. It ends a broken connection with or without a GOAWAY, as the bytes happen to come, and a call on it with
# UNAVAILABLE. It overlooks some faults; then the connection lives on, or the call is served.
BROKEN, REFUSED, SERVED = r"CLOSED|GOAWAY \w+_ERROR", "status 14", "status 0"
CALM = "GOAWAY ENHANCE_YOUR_CALM"  # gaccd's own limits (rpc/guard.h)


ROWS = [
    row("http1-instead", instead_of_the_preface(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "CLOSED"),
    row("tls-instead", instead_of_the_preface(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(500)), "CLOSED"),
    row("garbage-instead", instead_of_the_preface(bytes(range(256))), "CLOSED"),
    row("zeros-instead", instead_of_the_preface(bytes(10000)), "CLOSED"),
    row("preface-twice", raw(PREFACE), BROKEN),
    row("no-settings", raw(call(), preface=PREFACE), "CLOSED"),
    row("frame-of-16-MiB", raw(frame(DATA, 0, 1, b"", (1 << 24) - 1)), BROKEN),
    row("settings-of-5-bytes", raw(frame(SETTINGS, payload=bytes(5))), BROKEN),
    row("settings-on-a-stream", raw(frame(SETTINGS, 0, 1)), BROKEN),
    row("settings-window-too-large", raw(frame(SETTINGS, payload=struct.pack(">HI", 4, 1 << 31))), BROKEN),
    row("settings-frame-size-0", raw(frame(SETTINGS, payload=struct.pack(">HI", 5, 0))), BROKEN),
    row("settings-ack-with-data", raw(frame(SETTINGS, ACK, payload=bytes(6))), BROKEN),
    row("ping-of-7-bytes", raw(frame(PING, payload=bytes(7))), BROKEN),
    row("window-update-of-0", raw(frame(WINDOW_UPDATE, payload=struct.pack(">I", 0))), BROKEN),
    row("window-update-of-3-bytes", raw(frame(WINDOW_UPDATE, payload=bytes(3))), BROKEN),
    row("window-beyond-31-bits", raw(many(3, lambda i: frame(WINDOW_UPDATE, payload=struct.pack(">I", (1 << 31) - 1)))), "ALIVE"),
    row("data-without-a-stream", raw(frame(DATA, 0, 0, b"data")), "ALIVE"),
    row("data-on-an-idle-stream", raw(frame(DATA, 0, 7, b"data")), "ALIVE"),
    row("reset-of-3-bytes", raw(frame(RST_STREAM, 0, 1, bytes(3))), BROKEN),
    row("push-promise", raw(frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4) + headers())), "ALIVE"),
    row("unknown-frame", raw(frame(0xbe, 0xff, 77, bytes(100))), "ALIVE"),
    row("continuation-of-nothing", raw(frame(CONTINUATION, END_HEADERS, 1, headers())), BROKEN),
    row("headers-interrupted", raw(frame(HEADERS, 0, 1, headers()), frame(PING, payload=bytes(8))), REFUSED),
    row("headers-on-an-even-stream", raw(call(2)), "ALIVE"),
    row("headers-on-an-older-stream", raw(call(5), call(3)), SERVED),
    row("headers-padded-beyond", raw(frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + headers())), REFUSED),
    row("hpack-garbage", raw(frame(HEADERS, END_HEADERS, 1, b"\xff" * 64)), REFUSED),
    row("hpack-index-0", raw(frame(HEADERS, END_HEADERS, 1, b"\x80")), REFUSED),
    row("hpack-index-not-there", raw(frame(HEADERS, END_HEADERS, 1, b"\xfe")), REFUSED),
    row("hpack-length-beyond", raw(frame(HEADERS, END_HEADERS, 1, b"\0\x7f\xff\xff\xff\xff\x7f")), REFUSED),
    row("hpack-table-too-large", raw(frame(HEADERS, END_HEADERS, 1, b"\x3f\xff\xff\xff\x7f" + headers())), REFUSED),
    row("hpack-huffman-garbage", raw(frame(HEADERS, END_HEADERS, 1, b"\0\x81\xff\x81\xff")), "status 2", ":method"),
    row("header-cut", raw(frame(HEADERS, END_HEADERS, 1, headers()[:-3])), REFUSED),
    row("header-bomb", bomb_within_the_settings, "status 8", "metadata"),
    row("header-bomb-of-64-MiB-before-the-settings", raw(bomb(16000)), CALM, "16 KiB of headers"),
    row("continuation-flood", raw(frame(HEADERS, 0, 1, headers()), many(400, lambda i: frame(CONTINUATION, 0, 1, literal(b"x", b"y" * 120) * 100))), CALM, "16 KiB of headers"),
    row("no-method", raw(frame(HEADERS, END_HEADERS | END_STREAM, 1, literal(b"te", b"trailers"))), "status 2", ":method"),
    row("get", raw(frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x82\x86\x84" + literal(b"content-type", b"application/grpc"))), "status 2", "[Mm]ethod"),
    row("content-type-html", raw(frame(HEADERS, END_HEADERS, 1, headers().replace(b"application/grpc", b"text/html;abcdef")), frame(DATA, END_STREAM, 1, message())), SERVED),
    row("timeout-garbage", raw(call(timeout=b"-5 moons")), SERVED),
    row("upper-case-header", raw(call(UPPER=b"x")), SERVED),
    row("unary-without-a-message", raw(call(data=b"", path=b"/gacc.v1.JobService/Get")), "status 3", "no request message"),
    row("message-cut", raw(call(data=message(b"abc", length=100))), "status 3", "no request message"),
    row("message-of-4-GiB", raw(call(data=message(b"abc", length=(1 << 32) - 1))), "status 3", "no request message"),
    row("message-header-cut", raw(call(data=b"\0\0")), "status 3", "no request message"),
    row("compressed-without-an-encoding", raw(call(data=message(b"abc", compressed=1))), "status 3", "GetNodeRequest.12 at byte 1"),
    row("compressed-flag-2", raw(call(data=message(b"abc", compressed=2))), SERVED),
    row("unknown-encoding", raw(call(**{"grpc-encoding": b"brotli"})), SERVED),
    row("two-messages-of-a-unary-call", raw(call(data=message(b"\x0a\x01x") * 2, path=b"/gacc.v1.JobService/Get")), "status 5", 'no job "x"'),
    row("data-after-the-end", raw(call(), frame(DATA, END_STREAM, 1, message())), SERVED),
    row("ping-flood", raw(many(20000, lambda i: frame(PING, payload=bytes(8)))), CALM, "too_many_pings|too many frames"),
    row("settings-flood", raw(many(30000, lambda i: frame(SETTINGS))), CALM, "too many frames"),
    row("priority-flood", raw(many(30000, lambda i: frame(PRIORITY, 0, 2 * i + 1, bytes(5)))), CALM, "too many frames"),
    row("empty-data-flood", raw(frame(HEADERS, END_HEADERS, 1, headers()), many(30000, lambda i: frame(DATA, 0, 1))), CALM, "too many frames"),
    row("rapid-reset", raw(many(3000, lambda i: frame(HEADERS, END_HEADERS, 2 * i + 1, headers()) + frame(RST_STREAM, 0, 2 * i + 1, struct.pack(">I", 8)))), CALM, "too many frames"),
    row("streams-beyond-the-limit", raw(many(1500, lambda i: frame(HEADERS, END_HEADERS, 2 * i + 1, headers()))), CALM, "more than 100 calls"),
    row("slowloris", slowly, "OTHERS SERVED"),
    row("half-open", half_open, "OTHERS SERVED"),
    row("half-closed", half_closed, "status 14"),
    row("never-reading", never_reading, "OTHERS SERVED"),
]
