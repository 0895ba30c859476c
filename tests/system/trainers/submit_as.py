#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Submits a job as another user: submit_as.py ENDPOINT USER SPEC-JSON [REQUEST-ID-HEX], as root, which it gives up. Prints the job's id, or
the error."""
import json
import os
import pathlib
import pwd
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import Client, GaccError  # noqa: E402


def main():
    endpoint, name, spec, *request_id = sys.argv[1:]
    request_id = bytes.fromhex(request_id[0]) if request_id else os.urandom(16)
    client, user = Client(endpoint), pwd.getpwnam(name)
    os.setgroups([])
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    try:
        print(client.jobs.Submit(spec=client.types.spec(**json.loads(spec)), request_id=request_id).job.id)
    except GaccError as e:
        print(e.code, e.reason, e.text)


if __name__ == "__main__":
    main()
