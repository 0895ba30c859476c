# SPDX-License-Identifier: Apache-2.0
"""Ranks in Python whose gradients are on a GPU, which is the rig's: copied to slots in the host's memory, or written to slots on the device, behind
streams that are late. No push waits for the GPU."""
import os
import signal
import time

import pytest

from batches import OPTIMIZERS
from test_device_slots import machine, nobody, rank_in_python, restart, trained_in_python

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
        assert first.stdout.readline() == "window 0\n"
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
