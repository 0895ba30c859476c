# SPDX-License-Identifier: Apache-2.0
"""engine.exchanges: so many jobs of several parts exchange on a node at the same time, and the others wait for their turn.

An engine that is stopped in the middle of an exchange holds the slots of its job, for as long as coll.stall.
"""
import contextlib
import os
import signal
import threading
import time

import pytest

from cli import Cli
from cluster import Cluster
from harness import wait_until
from test_nodes import ALLOW, drawn, over, push
from test_parts import spec

PATIENT = {"coll.stall": "30s", "engine.exchanges": 1}  # longer than all that is done while an engine is stopped


def cluster_of(conf):
    c = Cluster(2, conf=conf, allow=ALLOW)
    for node in c.nodes.values():
        node.engines_killed = True
    return c


@pytest.fixture
def patient():
    with cluster_of(PATIENT) as c:
        yield c


def jobs_of(cluster, n, nodes=None, parts=2):
    """Jobs that have made a step, each with as many ranks as parts."""
    found = [over(cluster, spec(ranks=parts, parts=parts), nodes) for _ in range(n)]
    for c in found:
        c.window()
    return found


@contextlib.contextmanager
def holding(c):
    """The job is in an exchange inside of the `with`: the engine of its part 1 is stopped. Yields what it pushed."""
    sent, pid = drawn(c), c.pids()[1]
    push(c, sent, 1)
    os.kill(pid, signal.SIGSTOP)
    try:
        push(c, sent, 0)
        time.sleep(0.3)
        yield sent
    finally:
        os.kill(pid, signal.SIGCONT)


def push_all(c):
    sent = drawn(c)
    push(c, sent, *range(c.ranks))
    return sent


def step(c, sent):
    """The step of what was pushed, which must have the bits of the definition."""
    c.check(sent, [r.wait_step() for r in c.team.ranks][0].result)


def window(cluster, c):
    return cluster["a"].get_job(c.team.job).window


def reason(cluster, c):
    return cluster["a"].get_job(c.team.job).reason


def awaits(cluster, c, text):
    wait_until(lambda: f"{text!r} as the reason, not {reason(cluster, c)!r}", lambda: reason(cluster, c) == text, 10)


def close(*jobs):
    for c in jobs:
        c.window()
        c.close()


def test_a_job_waits_until_the_one_before_has_voted(patient):
    a, b = jobs_of(patient, 2)
    here, = jobs_of(patient, 1, ["a"])
    alone, = jobs_of(patient, 1, ["a"], parts=1)
    with holding(a) as of_a:
        of_b = push_all(b)
        of_here = push_all(here)
        awaits(patient, b, f"window 1 waits for an exchange slot on node a: job {a.team.job} exchanges")
        awaits(patient, here, f"window 1 waits for an exchange slot on node a: job {a.team.job} exchanges")
        alone.window()  # one part exchanges nothing
        assert patient["a"].state(b.team.job) == "RUNNING"
        text = Cli(patient["a"].dir, patient["a"].endpoint).run("describe", b.team.job)
        assert f"waits for an exchange slot on node a: job {a.team.job} exchanges" in text
        assert [window(patient, c) for c in (a, b, here)] == [1, 1, 1]
    for c, sent in ((a, of_a), (b, of_b), (here, of_here)):
        step(c, sent)
    assert [reason(patient, c) for c in (a, b, here)] == [""] * 3
    assert not patient["a"].events("AttemptFailed")
    close(a, b, here, alone)


def test_two_go_at_once_by_default():
    with cluster_of({"coll.stall": "30s"}) as cluster:
        a, b, c = jobs_of(cluster, 3)
        with holding(a) as of_a:
            b.window()
            c.window()
            with holding(b) as of_b:
                of_c = push_all(c)
                awaits(cluster, c, f"window 2 waits for an exchange slot on node a: jobs {a.team.job} and {b.team.job} exchange")
            step(b, of_b)
            step(c, of_c)
        step(a, of_a)
        close(a, b, c)


def test_stalls_do_not_run_while_a_job_waits(patient):
    a, = jobs_of(patient, 1)
    b = over(patient, spec(ranks=2, parts=2, stall_warn_ms=1000, stall_abort_ms=2000))
    b.window()
    with holding(a) as of_a:
        of_b = push_all(b)
        time.sleep(4)
        assert patient["a"].state(b.team.job) == "RUNNING"
    step(a, of_a)
    step(b, of_b)
    close(a, b)


def test_a_failed_attempt_gives_its_slots_back():
    """The engine stays stopped: in the pause after each attempt of its job the other one goes."""
    with cluster_of({"coll.stall": "1s", "engine.exchanges": 1}) as cluster:
        a, b = jobs_of(cluster, 2)
        with holding(a) as of_a:
            b.window()
            b.window()
            assert window(cluster, a) == 1
        step(a, of_a)
        close(a, b)


@pytest.mark.parametrize("killed", ["engine of the holder", "engine of the waiting", "coordinator", "node"])
def test_nothing_stays_held_when_one_dies(patient, killed):
    a, b = jobs_of(patient, 2)
    with holding(a) as of_a:
        of_b = push_all(b)
        awaits(patient, b, f"window 1 waits for an exchange slot on node a: job {a.team.job} exchanges")
        if killed.startswith("engine"):
            c = a if killed.endswith("holder") else b
            patient["a"].kill_engine(c.team.job, c.pids()[0])
        else:
            patient.kill("a" if killed == "coordinator" else "b")
    step(a, of_a)
    step(b, of_b)
    for _ in range(3):
        close_both = [threading.Thread(target=c.window) for c in (a, b)]
        for t in close_both:
            t.start()
        for t in close_both:
            t.join()
    assert (a.n, b.n) == (5, 5)
    close(a, b)


def test_jobs_side_by_side_have_their_bits(patient):
    """Many steps of three jobs at once, two of them on both nodes."""
    jobs = [*jobs_of(patient, 2), *jobs_of(patient, 1, ["b"], parts=3)]
    failed = []

    def work(c):
        try:
            for _ in range(25):
                c.window()
        except BaseException as e:  # told by the test's own thread
            failed.append(e)
    threads = [threading.Thread(target=work, args=(c,)) for c in jobs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed
    assert [c.n for c in jobs] == [26] * 3 and not patient["a"].events("AttemptFailed")
    close(*jobs)
