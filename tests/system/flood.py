# SPDX-License-Identifier: Apache-2.0
"""Requests that are never whole, as fast as a socket takes them: floods a gaccd in a process of its own.

    python3 flood.py SOCKET BYTES CONNECTIONS STREAMS

Each stream announces a message of 4 GiB and sends of it what the windows allow; one that gaccd ends is replaced. It is over when
gaccd has taken so many bytes and ended 100 streams, or after MOST_S; both numbers are printed.
"""
import itertools
import socket
import struct
import sys
import time

from bad_inputs.http2 import (ACK, DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, SETTINGS, WINDOW_UPDATE, Connection, frame,
                              headers)

MESSAGE = 2**32 - 1
INITIAL_WINDOW, FIRST_WINDOW = 4, 65535  # the setting; of the connection
PIECE = 16384
MOST_S = 20
PATHS = itertools.cycle([b"/gacc.v1.NodeService/GetNode", b"/gacc.v1.GradientService/PushInline"])


class Flood(Connection):
    def __init__(self, path, streams):
        super().__init__(path)
        settings = next(payload for kind, flags, _, payload in self.frames() if kind == SETTINGS and not flags & ACK)
        values = dict(struct.iter_unpack(">HI", settings))
        self.send(frame(SETTINGS, ACK))
        self.socket.setblocking(False)
        self.first = values[INITIAL_WINDOW]
        self.windows = {}  # of streams
        self.window = FIRST_WINDOW
        self.numbers = itertools.count(1, 2)
        self.out = bytearray()
        self.ended = 0
        for _ in range(streams):
            self.open_stream()

    def open_stream(self):
        stream = next(self.numbers)
        start = struct.pack(">BI", 0, MESSAGE)
        self.out += frame(HEADERS, END_HEADERS, stream, headers(next(PATHS), b"60S")) + frame(DATA, 0, stream, start)
        self.windows[stream] = self.first - len(start)
        self.window -= len(start)

    def on_frame(self, kind, flags, stream, payload):
        if kind == WINDOW_UPDATE and stream == 0:
            self.window += int.from_bytes(payload, "big")
        elif kind == WINDOW_UPDATE and stream in self.windows:
            self.windows[stream] += int.from_bytes(payload, "big")
        elif stream in self.windows and (kind == RST_STREAM or kind == HEADERS and flags & END_STREAM):
            del self.windows[stream]
            self.ended += 1
            self.open_stream()

    def fill(self):
        for stream, window in self.windows.items():
            n = min(window, self.window, 16 * PIECE) // PIECE
            self.out += frame(DATA, 0, stream, bytes(PIECE)) * n
            self.windows[stream] -= n * PIECE
            self.window -= n * PIECE
            if len(self.out) > 1 << 20:
                return

    def turn(self):
        """Bytes that were taken, streams that were ended."""
        self.ended = 0
        self.socket.settimeout(0)
        try:
            for received in self.frames():
                self.on_frame(*received)
        except BlockingIOError:
            pass
        if not self.out:
            self.fill()
        try:
            n = self.socket.send(self.out)
        except BlockingIOError:
            n = 0
        del self.out[:n]
        return n, self.ended


def main():
    path, enough, connections, streams = sys.argv[1], *(int(a) for a in sys.argv[2:])
    floods = [Flood(path, streams) for _ in range(connections)]
    taken = ended = 0
    end = time.monotonic() + MOST_S
    while time.monotonic() < end and (taken < enough or ended < 100):
        for i, flood in enumerate(floods):
            try:
                n, ends = flood.turn()
                taken, ended = taken + n, ended + ends
            except (BrokenPipeError, ConnectionResetError):  # without a call a connection may be closed, too
                floods[i] = Flood(path, streams)
    print(taken, ended)


if __name__ == "__main__":
    main()
