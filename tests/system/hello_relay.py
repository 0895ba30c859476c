# SPDX-License-Identifier: Apache-2.0
"""Plays a gaccd of another build: a TCP relay between a node and its coordinator that changes the node's Hello on the way (proto/gacc/internal/v1/
peer.proto). On loopback without TLS, as it reads HTTP/2. Values of the same length only, so that nothing else needs to change.

    with Cluster(2) as ..., HelloRelay(cluster, "b") as relay:     # before the cluster is entered
        relay.change = {"coll": b"gloo/1", "kernels_revision": 2}  # from the next link on
"""
import socket
import threading

FIELDS = {"protocol_min": 4, "protocol_max": 5, "version": 6, "coll": 7, "kernels_revision": 15}
PREFACE = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
DATA, GRPC_PREFIX, HELLO = 0, 5, 0x0a  # a frame's type; flag and length before a message; the field of PeerMessage


def read_varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7f) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def change_hello(message, change):
    """message: a bytearray with one PeerMessage, changed where it is. How many fields were."""
    wanted, n = {FIELDS[name]: value for name, value in change.items()}, 0
    if message[0] != HELLO:
        return 0
    end, at = read_varint(message, 1)
    end += at
    while at < end:
        key, at = read_varint(message, at)
        number, wire = key >> 3, key & 7
        length, value = 0, at
        if wire == 2:
            length, value = read_varint(message, at)
        else:
            length = {0: read_varint(message, at)[1] - at, 1: 8, 5: 4}[wire]
        if number in wanted:
            new = wanted[number] if wire == 2 else bytes([wanted[number]])
            assert len(new) == length and new[0] < 0x80, f"field {number} has {length} bytes"
            message[value:value + length] = new
            n += 1
        at = value + length
    return n


class HelloRelay:
    def __init__(self, cluster, name):
        """The node of that name dials this relay."""
        self.change, self.changed = {}, 0
        host, port = cluster.address.rsplit(":", 1)
        self.to = host, int(port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        cluster[name].conf["cluster.coordinator"] = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.sockets, self.threads = [], [threading.Thread(target=self._accept)]

    def _accept(self):
        while True:
            try:
                node = self.listener.accept()[0]
            except OSError:
                return
            try:
                coordinator = socket.create_connection(self.to, 5)
            except OSError:  # it is away
                node.close()
                continue
            coordinator.settimeout(None)
            self.sockets += [node, coordinator]
            for work, source, sink in ((self._rewrite, node, coordinator), (self._copy, coordinator, node)):
                thread = threading.Thread(target=self._run, args=(work, source, sink))
                self.threads.append(thread)
                thread.start()

    @staticmethod
    def _run(work, source, sink):
        try:
            work(source, sink)
        except OSError:
            pass
        for s in source, sink:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    @staticmethod
    def _copy(source, sink):
        while data := source.recv(65536):
            sink.sendall(data)

    def _rewrite(self, source, sink):
        def read(n):
            data = bytearray()
            while len(data) < n:
                more = source.recv(n - len(data))
                if not more:
                    raise ConnectionError
                data += more
            return data
        sink.sendall(read(PREFACE))
        while True:
            head = read(9)
            payload = read(int.from_bytes(head[:3], "big"))
            if head[3] == DATA and len(payload) > GRPC_PREFIX and self.change:
                message = payload[GRPC_PREFIX:]
                if len(message) == int.from_bytes(payload[1:GRPC_PREFIX], "big"):
                    self.changed += change_hello(message, self.change)
                    payload[GRPC_PREFIX:] = message
            sink.sendall(head + payload)

    def __enter__(self):
        self.threads[0].start()
        return self

    def __exit__(self, kind, value, traceback):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for s in self.sockets:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self.threads:
            thread.join()
        for s in self.sockets:
            s.close()
