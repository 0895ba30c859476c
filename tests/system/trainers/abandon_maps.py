#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A user whose descriptors are never received: abandon_maps.py ENDPOINT USER CONNECTIONS, as root, which it gives up.

One process asks for the memory of one session over many connections, then forks and dies: the connections live on in the child, which receives
nothing. Prints how many requests were granted and what the last refusal says, and waits to be killed.
"""
import os
import pathlib
import pwd
import signal
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import Client  # noqa: E402

SPEC = {"name": "abandons", "ranks": 1, "micro_size": 1, "optimizer": {"type": "client"}, "tensors": [{"name": "w", "dtype": "f32", "shape": [16]}]}


def become(name):
    user = pwd.getpwnam(name)
    os.setgroups([])
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)


def ask(client, attached, connections):
    request = client.types.MapRequest(version=1, session=attached.session).SerializeToString()
    sockets = []
    for _ in range(connections):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.connect(attached.attach_socket)
        s.send(request)
        sockets.append(s)
    answers = [client.types.MapResponse.FromString(s.recv(8192, socket.MSG_PEEK)) for s in sockets]
    return sockets, [a for a in answers if a.reason], sum(not a.reason for a in answers)


def main():
    endpoint, name, connections = sys.argv[1:]
    client = Client(endpoint)
    become(name)
    job = client.jobs.Submit(spec=client.types.spec(**SPEC), request_id=os.urandom(16)).job
    attached = client.gradient.Attach(job=str(job.id), rank=0, world_size=1, nonce=os.urandom(16), protocol_min=1, protocol_max=1,
                                      wants_shared_memory=True)
    sockets, refused, granted = ask(client, attached, int(connections))
    if os.fork():
        os._exit(0)
    print(granted, refused[-1].reason if refused else "", refused[-1].message if refused else "", flush=True)
    assert sockets
    signal.pause()


if __name__ == "__main__":
    main()
