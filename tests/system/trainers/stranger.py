#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Another user with a stolen session: what can it do? Prints a line per attempt: what, then OK or the error's reason.

    stranger.py ENDPOINT ATTACH-SOCKET JOB SESSION-ID TOKEN-HEX     as root, which it gives up for `nobody`
"""
import os
import pathlib
import pwd
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import Client, GaccError, Rank  # noqa: E402


def attempt(what, call):
    try:
        call()
        print(what, "OK", flush=True)
    except GaccError as e:
        print(what, e.code or "-", e.reason, flush=True)


def main():
    endpoint, attach_socket, job, session_id, token = sys.argv[1:]
    client = Client(endpoint)  # reads the descriptor set, connects later
    nobody = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setresgid(nobody.pw_gid, nobody.pw_gid, nobody.pw_gid)
    os.setresuid(nobody.pw_uid, nobody.pw_uid, nobody.pw_uid)
    rank = Rank(endpoint, int(job), 0, [("w", [3])], client=client, attach=False)
    rank.session = client.types.Session(id=int(session_id), token=bytes.fromhex(token))
    rank.attached = client.types.AttachResponse(attach_socket=attach_socket)
    attempt("push", lambda: rank.push(weight=1))
    attempt("ready", rank.ready)
    attempt("parameters", rank.get_bytes)
    attempt("map", rank.map)
    attempt("detach", rank.detach)
    attempt("attach", lambda: rank.attach(ranks=1))
    attempt("get", lambda: client.jobs.Get(job=job))
    attempt("flush", lambda: client.jobs.Flush(job=job))
    attempt("cancel", lambda: client.jobs.Cancel(job=job))


if __name__ == "__main__":
    main()
