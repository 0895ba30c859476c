# SPDX-License-Identifier: Apache-2.0
"""A hostile client of gaccd's gRPC socket, in a process (and as a user) of its own.

    python3 hostile.py SOCKET KIND CONNECTIONS SECONDS CLOSED

SOCKET is a path, or 127.0.0.1:PORT. Does the one thing that KIND names on each connection, as fast as gaccd takes it, and connects anew where gaccd has closed one: for so
long, and, up to MOST_S, until so many were closed. At the end it prints how many bytes were taken, how many connections were closed,
and the first GOAWAY that came.
"""
import itertools
import select
import socket
import struct
import sys
import time

import numpy as np

from bad_inputs.http2 import (ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, ERRORS, GOAWAY, HEADERS, PING, PREFACE, PRIORITY, RST_STREAM,
                              SETTINGS, WINDOW_UPDATE, frame, headers)

MOST_S = 30
MOST_CALLS = 1000  # gaccd allows 1024
BATCH = 2000  # frames that are made at a time
FIELDS = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/gacc.v1.NodeService/GetNode"), (b":authority", b"localhost"),
          (b"content-type", b"application/grpc"), (b"te", b"trailers")]
# The same, into the table, and from there.
INDEXED = b"".join(b"\x40" + bytes([len(n)]) + n + bytes([len(v)]) + v for n, v in FIELDS)
AGAIN = bytes(range(0xbe + len(FIELDS) - 1, 0xbd, -1))


def number(n):
    """Of a string's length (RFC 7541, 5.1)."""
    if n < 127:
        return bytes([n])
    out, n = b"\x7f", n - 127
    while n >= 128:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def value(n):
    """A header of n bytes."""
    return b"\0\x01x" + number(n) + b"y" * n


def numbered(frames, at, first, n):
    """`frames`, n times, each with a stream of its own: its number goes to these places."""
    out = np.tile(np.frombuffer(frames, np.uint8), (n, 1))
    streams = np.arange(first, first + 2 * n, 2, dtype=">u4").view(np.uint8).reshape(n, 4)
    for place in at:
        out[:, place:place + 4] = streams
    return out.tobytes()


def same(data, n=BATCH):
    """The same bytes for ever."""
    return itertools.repeat(data * n)


def calls(*more):
    """Calls without a message; `more` frames go with each."""
    yield frame(HEADERS, END_HEADERS, 1, INDEXED)
    parts = [frame(HEADERS, END_HEADERS, 0, AGAIN), *more]
    at = [sum(map(len, parts[:i])) + 5 for i in range(len(parts))]
    for first in itertools.count(3, 2 * BATCH):
        yield numbered(b"".join(parts), at, first, BATCH)


def some_calls(n, size):
    """So many calls without a message, with a header of this size, and then nothing."""
    block = headers() + value(size)
    yield numbered(frame(HEADERS, END_HEADERS, 0, block), [5], 1, n)


def large_calls():
    block = headers() + value(16384 - len(headers()) - 8)
    for first in itertools.count(1, 200):
        yield numbered(frame(HEADERS, END_HEADERS, 0, block), [5], first, 100)


def bombs():
    """Calls with a value of 4000 bytes, which the table keeps, and as many times its number there as the limit allows."""
    block = headers() + b"\x40\x01x" + number(4000) + b"y" * 4000 + b"\xbe" * 4000
    for first in itertools.count(1, 200):
        yield numbered(frame(HEADERS, END_HEADERS, 0, block), [5], first, 100)


def whole_calls():
    """As many at a time as may be."""
    parts = [frame(HEADERS, END_HEADERS, 0, AGAIN), frame(DATA, END_STREAM, 0, bytes(5))]
    yield frame(HEADERS, END_HEADERS, 1, INDEXED) + frame(DATA, END_STREAM, 1, bytes(5))
    for first in itertools.count(3, 200):
        yield numbered(b"".join(parts), [5, len(parts[0]) + 5], first, 100)


def continuations(first):
    """A header block without an end."""
    def send():
        yield frame(HEADERS, 0, 1, headers() + first)
        yield from same(frame(CONTINUATION, 0, 1, value(7000)), 50)
    return send


def endless_value():
    """One header with a value of 256 MiB."""
    yield frame(HEADERS, 0, 1, headers() + b"\0\x01x" + number(256 << 20))
    yield from same(frame(CONTINUATION, 0, 1, bytes(16384)), 50)


def bad_words():
    """Headers that gRPC complains about, with a line that looks like gaccd's."""
    said = b"\n2026-01-01T00:00:00.000Z gaccd ERROR: forged"
    block = headers().replace(b"\x08trailers", bytes([len(said)]) + said)
    for first in itertools.count(1, 40):
        yield numbered(frame(HEADERS, END_HEADERS | END_STREAM, 0, block), [5], first, 20)


def on_a_call(flood, first=b""):
    def send():
        yield frame(HEADERS, END_HEADERS, 1, headers()) + first
        yield from same(flood)
    return send


def drops(data):
    """A byte now and then."""
    for byte in itertools.cycle(data):
        yield bytes([byte])
        yield None


KINDS = {  # what comes after the preface; whether gaccd's SETTINGS are acknowledged
    "continuations": (continuations(b""), True),
    "endless-value": (endless_value, True),
    "calls": (calls, True),
    "calls-unacknowledged": (calls, False),
    "1000-calls": (lambda: some_calls(1000, 64), True),
    "1000-large-calls": (lambda: some_calls(1000, 7000), True),
    "large-calls-unacknowledged": (large_calls, False),
    "bombs-unacknowledged": (bombs, False),
    "whole-calls": (whole_calls, True),
    "rapid-reset": (lambda: calls(frame(RST_STREAM, 0, 0, struct.pack(">I", 8))), True),
    "rapid-reset-unacknowledged": (lambda: calls(frame(RST_STREAM, 0, 0, struct.pack(">I", 8))), False),
    "pings": (lambda: same(frame(PING, 0, 0, bytes(8))), True),
    "ping-acks": (lambda: same(frame(PING, ACK, 0, bytes(8))), True),
    "settings": (lambda: same(frame(SETTINGS)), True),
    "many-settings": (lambda: same(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535) * 2000), 1), True),
    "window-updates": (on_a_call(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1))), True),
    "connection-window-updates": (lambda: same(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1))), True),
    "empty-data": (on_a_call(frame(DATA, 0, 1)), True),
    "small-data": (on_a_call(frame(DATA, 0, 1, b"y"), frame(DATA, 0, 1, struct.pack(">BI", 0, 2**32 - 1))), True),
    "priorities": (on_a_call(frame(PRIORITY, 0, 1, bytes(5))), True),
    "unknown-frames": (on_a_call(frame(0xbe, 0, 1)), True),
    "resets-of-nothing": (lambda: same(frame(RST_STREAM, 0, 1, bytes(4))), True),
    "bad-words": (bad_words, True),
    "connects": (None, None),
    "silent": (lambda: iter(()), None),
    "half-a-preface": (lambda: iter([PREFACE[:10]]), None),
    "half-a-frame": (lambda: iter([frame(HEADERS, END_HEADERS, 1, headers())[:20]]), True),
    "drops": (lambda: drops(frame(SETTINGS)), False),
}


class Attack:
    def __init__(self, path, kind):
        make, self.acknowledge = KINDS[kind]
        self.source = make() if make else None
        self.out = memoryview(b"" if self.acknowledge is None else PREFACE + frame(SETTINGS) + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30)))
        host, _, port = path.rpartition(":")
        self.socket = socket.socket(socket.AF_INET if host else socket.AF_UNIX)
        self.socket.settimeout(1)
        self.socket.connect((host, int(port)) if host else path)
        self.socket.setblocking(False)
        self.received = b""
        self.goaway = None
        self.waits = self.acknowledge is True  # for gaccd's SETTINGS
        self.pause_until = 0.0
        self.most = MOST_CALLS if kind == "whole-calls" else None
        self.flying = 0

    def read(self):
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError
        self.received = (self.received + data)[-(1 << 17):]
        if self.waits and len(self.received) > 9:
            self.waits = False
            self.out = memoryview(bytes(self.out) + frame(SETTINGS, ACK))
        self.look()

    def look(self):
        while len(self.received) >= 9:
            n = 9 + int.from_bytes(self.received[:3], "big")
            if len(self.received) < n:
                return
            if self.received[3] == GOAWAY and not self.goaway:
                self.goaway = ERRORS[int.from_bytes(self.received[13:17], "big")] + " " + self.received[17:n].decode(errors="replace")
            if self.received[3] == HEADERS and self.received[4] & END_STREAM:
                self.flying -= 1
            self.received = self.received[n:]

    def turn(self):
        """Bytes that were taken."""
        if self.source is None:
            raise ConnectionResetError
        self.read()
        if not self.out and not self.waits and time.monotonic() >= self.pause_until and not (self.most and self.flying > self.most - 100):
            part = next(self.source, b"")
            self.flying += 100
            if part is None:
                self.pause_until, part = time.monotonic() + 0.5, b""
            self.out = memoryview(part)
        if not self.out:
            return 0
        try:
            n = self.socket.send(self.out)
        except BlockingIOError:
            return 0
        self.out = self.out[n:]
        return n


    def last_words(self):
        """What came before the end."""
        self.socket.settimeout(0.1)
        try:
            while True:
                self.read()
        except OSError:
            self.socket.close()
        return self.goaway


def main():
    path, kind, connections, seconds, enough = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
    attacks, taken, closed, goaway = [None] * connections, 0, 0, None
    began = time.monotonic()
    while time.monotonic() < began + seconds or closed < enough and time.monotonic() < began + MOST_S:
        n = 0
        for i, attack in enumerate(attacks):
            try:
                if attack is None:
                    attacks[i] = attack = Attack(path, kind)
                n += attack.turn()
            except OSError:  # closed; or gaccd takes none now
                if attack:
                    closed += 1
                    words = attack.last_words()
                    goaway = goaway or words
                    attacks[i] = None
        taken += n
        if not n:
            ready = [a.socket for a in attacks if a]
            select.select(ready, [a.socket for a in attacks if a and a.out], [], 0.02)
    print(taken, closed, goaway or next((a.goaway for a in attacks if a and a.goaway), None))


if __name__ == "__main__":
    main()
