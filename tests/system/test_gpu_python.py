# SPDX-License-Identifier: Apache-2.0
"""Ranks in Python whose gradients are on a GPU, which is the rig's: copied to slots in the host's memory, or written to slots on the device, behind
streams that are late. No push waits for the GPU."""
import os
import signal
import time

import pytest

from batches import OPTIMIZERS
from harness import next_line
from test_device_slots import machine, nobody, rank_in_python, restart, trained_in_python

SGD = {"type": "sgd", "lr": 1.0}

LATE_US = 3000  # before each copy of a stream
NO_WORDS = "122=0"  # the device's streams cannot write words
HOW = [("host", "copies", {}), ("host", "copies", {"attributes": NO_WORDS}), ("device", "streams", {}), ("device", "streams", {"attributes": NO_WORDS})]


@pytest.fixture(scope="module")
def plain():
    """The same job, filled by the host."""
    return trained_in_python(4, slots_on="host")


def kill(d, job, window):
    if window == 1:
        restart(d)
    elif window == 2:
        d.kill_engine(job, d.engine_pid(job))


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("slots_on, how, rig", HOW)
def test_the_same_bits(plain, slots_on, how, rig, killed):
    """Also when gaccd and the engine die on the way: the slots are other memory then, pinned or imported anew."""
    more = {} if slots_on == "device" else {"device": "host"}
    given = trained_in_python(4, kill if killed else nobody, [how], {"delay": LATE_US, **rig}, slots_on=slots_on, **more)
    assert given.splitlines()[-1] == plain.splitlines()[-1]


def test_who_dies_with_a_copy_queued():
    """The next process of the rank gets other slots: nobody knows what the GPU has still to write there."""
    with machine(allow=["RankLost"]) as d:
        job = d.submit({"ranks": 1, "micro_size": 3, "optimizer": OPTIMIZERS["adamw"], "clip_norm": 1.0})
        first = rank_in_python(d, job, 2, "copies", delay=50000)
        assert next_line(first) == "window 0\n"
        first.stdin.write("\n")
        first.stdin.flush()
        time.sleep(0.05)  # it is on its way to the next
        os.kill(first.pid, signal.SIGKILL)
        first.communicate()
        second = rank_in_python(d, job, 2, "copies")
        try:
            out, err = second.communicate("\n", timeout=60)
        finally:
            second.kill()
            second.wait()
        assert second.returncode == 0, err
        assert len(d.events("SlotsReplaced")) == 1
    assert out.splitlines()[-1] == trained_in_python(2, slots_on="host").splitlines()[-1]


def run_case(case, after=nobody, **rig):
    """tests/support/gpu_cases.py: what it prints at the end, of a job whose step subtracts the gradient."""
    with machine(allow=["RankLost"]) as d:
        job = d.submit({"ranks": 1, "micro_size": 1, "optimizer": SGD})
        rank = rank_in_python(d, job, case, program="gpu_cases.py", **{"delay": 100_000, **rig})
        try:
            if after is not nobody:
                assert next_line(rank) == "restart\n", rank.communicate(timeout=60)[1]
                after(d)
                rank.stdin.write("\n")
                rank.stdin.flush()
            out, err = rank.communicate(timeout=120)
        finally:
            rank.kill()
            rank.wait()
        assert rank.returncode == 0, err
        return out.splitlines()[-1]


@pytest.mark.parametrize("case", ["a_copy", "a_push_from_a_stream_that_is_captured", "a_push_that_cannot_be_written",
                                  "a_push_from_the_callers_stream_that_cannot_be_written", "a_copy_that_has_been_waited_for", "what_cannot_be"])
def test_copies_are_waited_for_by_the_push_that_counts(case):
    """Also if another one has failed before it: the slot has other numbers until the copy is made."""
    assert run_case(case) == "{-1.0}"


def test_what_the_callers_streams_write_is_waited_for_when_slots_are_exchanged():
    """Before the old memory goes: a copy on a stream that no push has named yet reaches the new one."""
    assert run_case("a_stream_of_the_caller_when_slots_are_exchanged", restart) == "{-1.0}"


def test_what_the_callers_streams_write_is_waited_for_at_the_end():
    """gaccd is told that the device is quiet, and it is."""
    assert run_case("a_stream_of_the_caller_at_the_end") == "done"


def test_pages_that_cannot_be_pinned():
    """All is as before, with the mailbox, and what was pinned of it is not any more."""
    assert run_case("pages_that_cannot_be_pinned", fail="cuMemHostRegister:2:2") == "{-1.0}"
    assert run_case("pages_that_cannot_be_pinned", fail="cuMemHostGetDevicePointer:2:2") == "{-1.0}"


def test_words_that_cannot_be_written():
    """The mailbox is there, and pushes wait."""
    assert run_case("a_copy", fail="cuMemHostGetDevicePointer:3:1") == "{-1.0}"


def test_a_context_that_fails_is_told_at_once():
    """The ready word will never come."""
    assert run_case("a_context_that_fails", hang_copy=2, fail="cuStreamQuery:1+:700,cuCtxSynchronize:2+:700") == "done"


def test_a_gpu_that_hangs():
    """Pushes end when their time is over, and Ctrl-C ends what has no limit."""
    assert run_case("a_gpu_that_hangs", hang_copy=2) == "done"
