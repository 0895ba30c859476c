# SPDX-License-Identifier: Apache-2.0
"""Pushes of the Python package that are not waited for: session.push(asynchronous=True). What dies meanwhile is in test_python_kills.py."""
import signal
import threading
import time

import numpy as np
import pytest

from harness import wait_until
from python_package import gacc
from test_python import SGD, attached, one  # noqa: F401


def test_an_asynchronous_push_is_counted_by_the_next_call(one):
    """While it is on its way its micro-batch is not owed, and the other slot is filled."""
    own = one.slot()["w"].ctypes.data
    one.fill([np.full(4, 1)])
    pushed = one.push(weight=1, asynchronous=True)
    assert (pushed.result, pushed.window, pushed.micro, pushed.counted) == ("sent", 0, 0, False)
    assert one.missing == [1] and one.slot()["w"].ctypes.data != own
    one.fill([np.full(4, 4)])
    assert one.push(weight=2, asynchronous=True).micro == 1 and one.missing == [] and one.slot()["w"].ctypes.data == own
    step = one.wait()
    assert (step.micro_count, step.total_weight) == (2, 3) and (one.parameters["w"] == -3).all() and one.missing == [0, 1]
    one.push(asynchronous=True)
    one.flush()
    assert one.missing == [] and one.wait().micro_count == 1


@pytest.mark.parametrize("spec, how", [({"slots_per_rank": 1}, {}), ({}, {"mailbox": False}), ({}, {"shared_memory": False}),
                                       ({"accumulate": "none"}, {})])
def test_where_no_push_can_be_asynchronous(daemon, spec, how):
    """One slot, no mailbox, and a slot that is the sum."""
    with attached(daemon, {"micro_size": 1, "steps": 2, **spec}, {"w": ("f32", (4,))}, [np.zeros(4)], **how) as session:
        while not session.done:
            session.fill([np.ones(4)])
            assert session.push(asynchronous=True).result == "counted" and session.missing == []
            session.wait()
        assert (session.parameters["w"] == -2).all()


@pytest.mark.parametrize("call", [lambda s: s.push(lr=0.5), lambda s: s.wait(), lambda s: s.flush(), lambda s: s.slot(1), lambda s: s.save_state(b"x")],
                         ids=["push", "wait", "flush", "slot", "save_state"])
def test_a_refused_asynchronous_push_is_raised_by_the_next_call(daemon, call):
    """Once; then its micro-batch is owed as before."""
    with attached(daemon, {"micro_size": 3, "steps": 1}, {"w": ("f32", (4,))}, [np.zeros(4)]) as session:
        session.push(lr=0.5)
        session.push(lr=0.25, asynchronous=True)
        assert session.missing == [2]
        with pytest.raises(gacc.GaccError) as e:
            call(session)
        assert e.value.reason == "LR_MISMATCH" and session.missing == [1, 2]
        assert [session.push(lr=0.5).micro, session.push(lr=0.5).micro] == [1, 2]
        assert session.wait().micro_count == 3


def test_a_window_that_closes_while_a_push_is_on_its_way(one, daemon):
    """The next one does not count either, and that is no error."""
    daemon.client.jobs.Flush(job=str(one.job_id))
    wait_until("the window is closed", lambda: daemon.get_job(one.job_id).window == 1)
    assert one.push(asynchronous=True).result == "sent" and one.missing == [1]
    pushed = one.push(asynchronous=True)
    assert (pushed.result, pushed.window, pushed.micro, one.missing) == ("closed", 0, 1, [])
    assert one.wait().window == 0 and one.missing == [0, 1]


def test_an_asynchronous_push_that_waits_for_another_rank(daemon):
    """Rank 1's lies in its cell until rank 0 has pushed. What waits for it may be given a time, and called again; Ctrl-C ends that wait, too."""
    job = daemon.submit({"ranks": 2, "micro_size": 2, "optimizer": SGD, "steps": 1})
    first, second = (gacc.attach(job, r, 2, endpoint=daemon.endpoint) for r in range(2))
    for r in (first, second):
        r.register({"w": ("f32", (1,))})
        r.upload([[0]])
    second.fill([[1]])
    assert second.push(asynchronous=True).result == "sent"
    second.fill([[2]])
    with pytest.raises(gacc.GaccError) as e:
        second.push(timeout=0.3)
    assert e.value.is_retryable and second.missing == [1]
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        second.push()
    signal.signal(signal.SIGALRM, before)
    assert second.missing == [1]
    first.fill([[3]])
    first.push()
    first.fill([[3]])
    first.push(asynchronous=True)
    assert second.push().micro == 1 and second.missing == []
    assert [r.wait().micro_count for r in (first, second)] == [4, 4] and first.parameters["w"] == -2.25
    for r in (first, second):
        r.detach()


def test_leaving_waits_for_a_push_that_is_on_its_way(daemon):
    """Rank 1's waits for rank 0, which pushes while rank 1 leaves. What is on its way then counts."""
    job = daemon.submit({"ranks": 2, "micro_size": 1, "optimizer": SGD, "steps": 1})
    first, second = (gacc.attach(job, r, 2, endpoint=daemon.endpoint) for r in range(2))
    for r in (first, second):
        r.register({"w": ("f32", (1,))})
        r.upload([[0]])
        r.fill([[1]])
    second.push(asynchronous=True)
    leaving = threading.Thread(target=second.detach)
    leaving.start()
    time.sleep(0.3)
    first.push()
    leaving.join(30)
    assert first.wait().micro_count == 2
    first.detach()


def test_leaving_tells_of_a_push_that_was_refused(daemon, caplog):
    session = attached(daemon, {"micro_size": 2}, {"w": ("f32", (4,))}, [np.zeros(4)])
    session.push(lr=0.5)
    session.push(lr=0.25, asynchronous=True)
    session.detach()
    assert "LR_MISMATCH" in caplog.text


def test_the_answer_of_a_push_after_another_call_has_attached_anew(supervised):
    """gaccd dies while the push is on its way; its mailbox is that of a session before this one, then."""
    with attached(supervised, {"micro_size": 2, "steps": 1}, {"w": ("f32", (4,))}, [np.zeros(4)]) as session:
        session.fill([np.ones(4)])
        session.push(asynchronous=True)
        supervised.kill_gaccd()
        assert session.saved_state() is None
        session.fill([np.full(4, 3)])
        assert session.push().micro == 1
        assert session.wait().micro_count == 2 and (session.parameters["w"] == -2).all()
