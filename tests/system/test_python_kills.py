# SPDX-License-Identifier: Apache-2.0
"""The Python package under SIGKILL: of its own process inside a window, of gaccd, of the engine. Whatever dies, the job ends with the bits of a run
in which nothing died (workload.py), through the mailbox and by gRPC alone."""
import os
import time

import numpy as np
import pytest

from harness import wait_until
from python_package import gacc
from test_kills import RANK_LOST, Trainer
from workload import Workload

WORK = Workload(ranks=2, micro_size=3, steps=5, elements=20_000)
both_ways = pytest.mark.parametrize("mailbox", [1, 0], ids=["mailbox", "grpc"])
all_ways = pytest.mark.parametrize("mailbox, more", [(1, []), (1, ["--asynchronous"]), (0, [])], ids=["mailbox", "asynchronous", "grpc"])


@pytest.fixture
def way(mailbox, monkeypatch):
    monkeypatch.setenv("GACC_MAILBOX", str(mailbox))


def rank(daemon, job, number, *more):
    return Trainer(daemon, job, number, WORK, *more, script="train_package.py")


def finish(*trainers):
    for t in trainers:
        WORK.check(t.params())


@both_ways
@pytest.mark.parametrize("what, missing", [("fill", [1, 2]), ("kill", [2])])
def test_a_killed_rank_resumes_with_what_was_not_counted(daemon, way, what, missing):
    daemon.allow.append(RANK_LOST)
    job = daemon.submit(WORK.spec)
    other, first = rank(daemon, job, 0), rank(daemon, job, 1, "--at", f"{what}:2:1")
    first.wait_killed()
    successor = rank(daemon, job, 1)
    assert successor.resumed() == (2, missing)
    finish(other, successor)


@both_ways
def test_a_rank_killed_while_its_push_is_parked(daemon, way):
    """Rank 0's second push waits for rank 1, which is not there. The successor owes it again."""
    daemon.allow.append(RANK_LOST)
    job = daemon.submit(WORK.spec)
    first = rank(daemon, job, 0)
    assert first.lines(3)[2] == "push 0 1"
    wait_until("the first is counted", lambda: daemon.get_job(job).ranks[0].micro_count == 1)
    time.sleep(0.2)
    first.kill()
    successor = rank(daemon, job, 0)
    assert successor.resumed() == (0, [1, 2])
    finish(rank(daemon, job, 1), successor)


@all_ways
def test_gaccd_is_killed_inside_windows(supervised, way, more):
    """Three times, while both ranks push; their processes, and the arrays that they took at the start, go on."""
    job = supervised.submit(WORK.spec)
    ranks = [rank(supervised, job, r, "--pause", "0.06", *more) for r in range(2)]
    for at in (4, 8, 12):
        for r in ranks:
            r.lines(at)
        supervised.kill_gaccd()
        supervised.wait_ready()
    finish(*ranks)
    assert supervised.get_job(job).counters.applied == WORK.steps


@pytest.mark.parametrize("shared_memory", [True, False], ids=["mailbox", "inline"])
def test_a_session_has_all_it_had_after_a_restart_of_gaccd(supervised, shared_memory):
    """A new session, with a mailbox that is used, or with a stream that tells gaccd when this process is gone."""
    job = supervised.submit({"ranks": 1, "micro_size": 2, "optimizer": {"type": "sgd", "lr": 1.0}})
    with gacc.attach(job, 0, 1, endpoint=supervised.endpoint, shared_memory=shared_memory) as session:
        session.register({"w": ("f32", (3,))})
        session.upload([np.zeros(3)])
        parameters = session.parameters
        for round in range(1, 3):
            session.fill([np.ones(3)])
            session.push()
            supervised.kill_gaccd()
            assert session.missing == [1]
            session.fill([np.ones(3)])
            assert session.push().counted and session.has_mailbox == shared_memory
            assert session.wait().micro_count == 2 and (parameters["w"] == -round).all()
    wait_until("the job's end", lambda: supervised.state(job) == "COMPLETED")


@all_ways
def test_the_engine_is_killed_inside_windows(supervised, way, more):
    job = supervised.submit(WORK.spec)
    ranks = [rank(supervised, job, r, "--pause", "0.06", *more) for r in range(2)]
    for at in (5, 10):
        ranks[0].lines(at)
        supervised.kill_engine(job)
    finish(*ranks)


@both_ways
def test_a_rank_and_gaccd_die_together(supervised, way):
    supervised.allow.append(RANK_LOST)
    job = supervised.submit(WORK.spec)
    other, first = rank(supervised, job, 0), rank(supervised, job, 1, "--at", "kill:1:1")
    first.wait_killed()
    supervised.kill_gaccd()
    successor = rank(supervised, job, 1)
    assert successor.resumed() == (1, [2])
    finish(other, successor)


def test_a_fenced_rank_is_told_to_end(daemon):
    job = daemon.submit(WORK.spec)
    older = gacc.attach(job, 0, 2, endpoint=daemon.endpoint)
    older.register({name: ("f32", shape) for name, shape in WORK.tensors})
    older.upload(WORK.initial())
    older.ready()
    newer = gacc.attach(job, 0, 2, endpoint=daemon.endpoint)
    with pytest.raises(gacc.GaccError) as e:
        older.push(micro=0)
    assert e.value.reason == "SESSION_FENCED"
    older.detach()  # it has nothing to say any more
    newer.detach()
    daemon.client.jobs.Cancel(job=str(job))
    daemon.allow += [" Ended job=", RANK_LOST]


def memfd(data):
    fd = os.memfd_create("segment")
    os.write(fd, data)
    return fd


def test_other_memory_comes_to_the_place_of_the_old_one():
    """What the caller holds shows the new memory, and a slot's gradients have moved there."""
    from gacc.memory import Mapping
    old, new = memfd(bytes(8192)), memfd(b"\1" * 8192)
    slot, page = Mapping(old, 8192, 4096, True), Mapping(old, 8192, 4096, False)
    held, seen = slot.data[:16], page.data[:16]
    held[:] = 7
    slot.follow(new, 8192, 4096, True)
    assert os.pread(new, 17, 4096) == b"\7" * 16 + b"\0"
    held[:] = 9
    assert os.pread(new, 1, 4096) == b"\t" and os.pread(old, 1, 4096) == b"\7"
    page.follow(new, 8192, 4096, False)
    assert (seen == 9).all() and not seen.flags.writeable
    with pytest.raises(gacc.GaccError):
        page.follow(new, 8192, 0, False)
    np.testing.assert_array_equal(held, 9)
    for fd in (old, new):
        os.close(fd)
