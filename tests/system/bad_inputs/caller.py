# SPDX-License-Identifier: Apache-2.0
"""Calls with any bytes as messages, as this user or another.

As a program: caller.py ENDPOINT ATTACH-SOCKET UID reads a JSON request a line ({"path", "kind", "messages" in hex, "timeout"}, or
{"packet"}) and writes a JSON answer a line. It is started as root and gives that up.
"""
import array
import json
import os
import pathlib
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bad_inputs import OK, Answer  # noqa: E402
from gacc_client import Client  # noqa: E402

import grpc  # noqa: E402

LAST_S = 10  # until an answer of the attach socket


class Caller:
    def __init__(self, endpoint):
        self.client = Client(endpoint)

    def call(self, path, kind, messages, timeout=20, **how):
        """`kind`: of the stub, "stream_unary". The answer's code is OK, or what the call ended with."""
        stub = getattr(self.client.channel, kind)(path)
        try:
            answer = stub(iter(messages) if kind.startswith("stream") else messages[0], timeout=timeout, **how)
            if kind.endswith("stream"):
                next(answer, None)
                answer.cancel()
            return OK
        except grpc.RpcError as e:
            error = self.client.error_of(path, e)
            return Answer(error.code, error.reason, error.text, error.detail.hint)


def connect(path):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(LAST_S)
    s.connect(path)
    return s


def ask(types, s, packet, ancillary=()):
    """A packet of the attach socket, and its answer; code CLOSED when the connection is over without one."""
    try:
        s.sendmsg([packet], ancillary)
        answer, fds, _, _ = socket.recv_fds(s, 8192, 16)
    except OSError:
        return Answer("CLOSED")
    for fd in fds:
        os.close(fd)
    if not answer:
        return Answer("CLOSED")
    mapped = types.MapResponse.FromString(answer)
    assert not mapped.reason or not fds, f"descriptors came with {mapped.reason}"
    return Answer("REFUSED" if mapped.reason else "OK", mapped.reason, mapped.message, mapped.message)


def rights(*fds):
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]


def main():
    endpoint, attach_socket, uid = sys.argv[1:]
    caller = Caller(endpoint)  # reads the descriptor set, connects later
    os.setgroups([])
    os.setresgid(int(uid), int(uid), int(uid))
    os.setresuid(int(uid), int(uid), int(uid))
    for line in sys.stdin:
        q = json.loads(line)
        if "packet" in q:
            with connect(attach_socket) as s:
                answer = ask(caller.client.types, s, bytes.fromhex(q["packet"]))
        else:
            answer = caller.call(q["path"], q["kind"], [bytes.fromhex(m) for m in q["messages"]], q["timeout"])
        print(json.dumps([answer.code, answer.reason, answer.text, answer.hint]), flush=True)


if __name__ == "__main__":
    main()
