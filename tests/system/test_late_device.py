# SPDX-License-Identifier: Apache-2.0
"""A trainer dies with a copy to its slot queued on a device (the fake driver), and the device runs on, as it does while another process holds it open.
The next process of the rank must not be given that memory: the copy comes when its own gradient is already in the slot."""
import functools
import os
import signal
import struct
import subprocess
import time

import pytest

from harness import Daemon, build_dir, next_line, rig_environment, wait_until
from training import Team

LATE_S = 4.0  # how long after its process has died the device makes the copy
SPEC = {"ranks": 1, "micro_size": 1, "max_micro_size": 1, "steps": 1, "slots_per_rank": 2, "optimizer": {"type": "sgd", "lr": 1.0},
        "init": [{"pattern": "*", "type": "zeros"}]}


class TooSlow(Exception):
    """The machine: the copy may have come before."""


def start(daemon, job, role, late_s=LATE_S, imports=False, **more):
    """`imports`: of a job with slots_on: device."""
    rig = rig_environment(daemon.dir.name, delay=200000, late=int(late_s * 1e6), kill_signal=int(signal.SIGUSR1))
    env = {**os.environ, "GACC_ENDPOINT": daemon.endpoint, "GACC_JOB_ID": str(job), "RANK": "0", "WORLD_SIZE": "1", **rig, **more}
    return subprocess.Popen([build_dir() / "bin/device_trainer", role, *["import"] * imports], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def restart(daemon):
    daemon.kill_gaccd()
    daemon.wait_ready()


def expected():
    """What SGD makes of one gradient whose bytes are all 0x3d."""
    np = pytest.importorskip("numpy")
    w = -np.frombuffer(bytes([0x3d] * 4), np.float32)[0]
    return f"{w:.9g} {w:.9g}\n"


def run_next(daemon, job, until=0.0, after=None, **more):
    """Trains the step in a slot that was filled before `until`, and is pushed after it."""
    trainer = start(daemon, job, "next", **more)
    try:
        line = next_line(trainer)
        assert line == "filled\n", trainer.communicate(timeout=60)[1]
        if until and time.monotonic() > until:
            raise TooSlow
        if after:
            after()
        time.sleep(max(0.0, until + 1.5 - time.monotonic()))  # the device makes the copy meanwhile
        out, err = trainer.communicate("go\n", timeout=60)
    finally:
        trainer.kill()
        trainer.wait()
    assert trainer.returncode == 0, err
    return out


def others_get_other_slots(machine, spec, killed, late_s=LATE_S, replaced=1, **more):
    """`killed`: who dies besides, before or after the successor has filled its slot. On a slow machine once more, with more time."""
    try:
        with machine(allow=["RankLost"]) as d:
            job = d.submit(spec)
            first = start(d, job, "late", late_s, **more)
            assert first.wait(timeout=60) == -signal.SIGKILL, first.stderr.read()
            until = time.monotonic() + late_s
            kill = {"gaccd": lambda: restart(d), "engine": lambda: d.kill_engine(job, d.engine_pid(job)), "nobody": None}[killed.split()[0]]
            if killed.endswith("before"):
                kill()
            assert run_next(d, job, until, kill if killed.endswith("after") else None, **more) == expected()
            assert len(d.events("SlotsReplaced")) == replaced
            wait_until("the job's end", lambda: d.state(job) == "COMPLETED")
    except TooSlow:
        assert late_s == LATE_S, "the machine is too slow to show it"
        others_get_other_slots(machine, spec, killed, 5 * LATE_S, replaced, **more)


def who_detaches_is_waited_for(machine, spec, **more):
    with machine(allow=["RankLost"]) as d:
        job = d.submit(spec)
        first = start(d, job, "leaves", **more)
        assert first.wait(timeout=60) == 0, first.stderr.read()
        assert run_next(d, job, **more) == expected()
        assert not d.events("SlotsReplaced")


@pytest.mark.parametrize("accumulate", ["sum", "none"])
@pytest.mark.parametrize("killed", ["nobody", "gaccd before", "gaccd after", "engine after"])
def test_the_next_process_gets_other_slots(accumulate, killed):
    others_get_other_slots(functools.partial(Daemon, supervise=True), {**SPEC, "accumulate": accumulate}, killed)


def test_who_has_the_memory_gets_no_other_by_what_is_written_there():
    """The note of a device lies in memory that the trainer may write: by writing it again and again a user would have new memory each time."""
    with Daemon() as d, Team(d, {**SPEC, "steps": 0}, [("w", [64])]) as team:
        trainer = team.ranks[0]
        trainer.memory[1, 0].obj[96:112] = struct.pack("<QII", 1 << 40, 0, 1)  # struct segment_device
        trainer.memory[1, 0][0] = 7
        trainer.map()
        assert trainer.memory[1, 0][0] == 7 and not d.events("SlotsReplaced")


def test_a_process_that_detaches_waits_for_its_device():
    who_detaches_is_waited_for(Daemon, SPEC)
