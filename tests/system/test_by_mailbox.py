# SPDX-License-Identifier: Apache-2.0
"""Trainers whose pushes and waits go through mailboxes (proto/mailbox.h): libgacc's and client/examples/push_mailbox.py. They have the bits
of those that do the same by RPC, and they see what goes on around them: engines and gaccds that die with a push in a cell.

What single requests come to: tests/unit/client. Deaths at each failpoint: test_failpoints.py.
"""
import contextlib
import os
import pathlib
import re
import struct
import subprocess

import pytest

from harness import Daemon, wait_until
from test_examples import LINEAR, PROGRAMS, environment, linear_in_numpy, parameters

MICRO = LINEAR["micro_size"]
SUMMARY = r"rank (\d): (\d+) pushes through the mailbox, (\d+) by RPC"


def mailboxes(pid):
    """Of the sessions of this gaccd: {(job, rank): [(number of the request, of the answer), ..]}, one for each cell."""
    found = {}
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            name = re.match(r"/memfd:gacc-(\d+)-mailbox-(\d+) ", os.readlink(fd))
            if name:
                data = fd.read_bytes()
                numbers = [struct.unpack_from("=Q", data, at) for at in [*range(128, 1152, 128), *range(1152, 1664, 64)]]
                found[tuple(map(int, name.groups()))] = [(r[0], a[0]) for r, a in zip(numbers[:8], numbers[8:])]
    return found


def start(daemon, program, job, rank, **env):
    return subprocess.Popen([str(c) for c in PROGRAMS[program]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment(daemon, RANK=rank, WORLD_SIZE=2, GACC_JOB_ID=job, **env))


def ends(ranks):
    """What they say on stderr."""
    outputs = [p.communicate(timeout=120) for p in ranks]
    assert [p.returncode for p in ranks] == [0] * len(ranks), outputs
    assert [parameters(out) for out, _ in outputs] == [[linear_in_numpy()]] * len(ranks)
    return [err for _, err in outputs]


def waits_for_its_turn(daemon, job, rank=0):
    """The rank's micro-batch 0 is counted. The next one lies in the same cell, and waits for another rank's."""
    wait_until("a push in a cell", lambda: (2, 1) in mailboxes(daemon.pid).get((job, rank), []))


def test_the_same_bits_by_mailbox_and_by_rpc(daemon):
    """C and Python, each both ways: the parameters and the digest, and how many pushes went which way."""
    digests = set()
    for program in ("c", "mailbox"):
        for on in (1, 0):
            job = daemon.submit(LINEAR)
            said = ends([start(daemon, program, job, r, GACC_MAILBOX=on) for r in range(2)])
            n = LINEAR["steps"] * MICRO
            if program == "mailbox":
                counts = [tuple(map(int, re.search(SUMMARY, text).groups())) for text in said]
                assert counts == [(r, n, 0) if on else (r, 0, n) for r in range(2)]
            else:
                assert said == ["", ""]
            wait_until("the job's end", lambda: daemon.state(job) == "COMPLETED")
            digests.add(daemon.get_job(job).last.params_digest)
    assert len(digests) == 1


@pytest.mark.parametrize("program", ["c", "mailbox"])
def test_a_push_lies_in_a_cell(daemon, program):
    """Its rank has no other way to push: what it has sent is there, and nobody answers before it is its turn."""
    job = daemon.submit(LINEAR)
    first = start(daemon, program, job, 0)
    waits_for_its_turn(daemon, job)
    daemon.wait_counted(job, 0, 1)
    ends([first, start(daemon, program, job, 1)])


def test_without_mailboxes_there_are_none(daemon):
    job = daemon.submit(LINEAR)
    first = start(daemon, "c", job, 0, GACC_MAILBOX=0)
    daemon.wait_counted(job, 0, 1)
    assert mailboxes(daemon.pid) == {}
    ends([first, start(daemon, "c", job, 1)])  # the two may be mixed


@pytest.mark.parametrize("program", ["c", "mailbox"])
def test_the_engine_dies_with_a_push_in_a_cell(daemon, program):
    daemon.allow += [" EngineLost ", " EngineExited ", r"was killed by signal 9; starting it again"]
    job = daemon.submit(LINEAR)
    first = start(daemon, program, job, 0)
    waits_for_its_turn(daemon, job)
    for _ in range(3):
        daemon.kill_engine(job)
        waits_for_its_turn(daemon, job)
    said = ends([first, start(daemon, program, job, 1)])
    if program == "mailbox":
        assert re.search(SUMMARY, said[0]).group(3) == "0"


def test_gaccd_dies_with_a_push_in_a_cell():
    """libgacc hears it on its attach socket, attaches anew, and has another mailbox."""
    with Daemon(supervise=True) as daemon:
        job = daemon.submit(LINEAR)
        first = start(daemon, "c", job, 0)
        waits_for_its_turn(daemon, job)
        daemon.kill_gaccd()
        wait_until("another mailbox", lambda: daemon.pid and (job, 0) in mailboxes(daemon.pid))
        ends([first, start(daemon, "c", job, 1)])
