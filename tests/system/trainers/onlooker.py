#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Another user who looks around: a JSON object of what gaccd tells.

    onlooker.py ENDPOINT JOB     as root, which it gives up for `nobody`
"""
import json
import os
import pathlib
import pwd
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import Client, GaccError  # noqa: E402


def reason(call):
    try:
        call()
        return "OK"
    except GaccError as e:
        return e.reason


def main():
    endpoint, job = sys.argv[1:]
    client = Client(endpoint)  # reads the descriptor set, connects later
    nobody = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setresgid(nobody.pw_gid, nobody.pw_gid, nobody.pw_gid)
    os.setresuid(nobody.pw_uid, nobody.pw_uid, nobody.pw_uid)
    buffers = client.node.ListBuffers()
    print(json.dumps({
        "history": reason(lambda: client.jobs.History(job=job)),
        "events of the job": reason(lambda: client.jobs.ListEvents(job=job)),
        "buffers of the job": reason(lambda: client.node.ListBuffers(job=job)),
        "jobs of events": sorted({e.job for e in client.jobs.ListEvents().events}),
        "buffers": len(buffers.buffers),
        "used": [buffers.user_bytes_used, buffers.host_bytes_used],
        "config": reason(client.node.GetConfig),
    }))


if __name__ == "__main__":
    main()
