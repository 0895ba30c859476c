# SPDX-License-Identifier: Apache-2.0
"""A gaccd whose journal lacks what was acknowledged, or whose configuration is wrong, does not start, and costs no job: its memory is
kept until the cause is mended, or the operator says that it may go on without."""
import os
import pathlib
import shutil
import signal
import subprocess

import numpy as np
import pytest

from harness import Daemon, Rank, alive, children, wait_until

SPEC = {"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1}}
FAILED = 8


def train(rank, windows):
    for _ in range(windows):
        rank.push([np.ones(4, np.float32)], weight=1)
        step = rank.wait_step()
    return step.result.applied_step


def start_rank(daemon, job):
    rank = Rank(daemon, job, 0, [("w", [4])])
    rank.start({"w": np.zeros(4, np.float32)})
    return rank


# the gaccd that the supervisor starts meanwhile may find the journal taken by the one that accepts
MEANWHILE = ["cannot start: unavailable", "exited with 1; starting it again"]


def accept_loss(daemon):
    command = [str(word) for word in daemon.command() if word != "--supervise"]
    command = command[command.index(str(daemon.program)):]  # without who plays the service manager
    return subprocess.run([*command, "--accept-journal-loss"], capture_output=True, text=True, timeout=60)


@pytest.fixture
def daemon():
    with Daemon(supervise=True, allow=[" journal .*: ", "gaccd does not start with it", "cannot start: its journal", "keeps the jobs' memory",
                                       "exited with (74|78); starting it again", " Rank(Lost|Late) ", " Ended job=", *MEANWHILE]) as d:
        yield d


def kill_and(daemon, change):
    """SIGKILL, and a change before the next gaccd looks: the supervisor is stopped meanwhile."""
    os.kill(daemon.process.pid, signal.SIGSTOP)
    pid = daemon.pid
    os.kill(pid, signal.SIGKILL)
    wait_until("death", lambda: not alive(pid))
    daemon.killed += 1
    change()
    os.kill(daemon.process.pid, signal.SIGCONT)


def test_a_lost_log_costs_nothing_when_it_comes_back(daemon):
    job = daemon.submit(SPEC)
    rank = start_rank(daemon, job)
    train(rank, 3)
    wal, aside = daemon.dir / "state/journal.sqlite-wal", daemon.dir / "wal"
    kill_and(daemon, lambda: wal.rename(aside))
    wait_until("refusal", lambda: "exited with 74" in daemon.log(), 30)
    assert f"job {job} (of user {os.getuid()}) is missing whole" in daemon.log()
    assert "gaccd --accept-journal-loss" in daemon.log()
    assert not daemon.engine_pids()
    shutil.move(aside, wal)
    daemon.wait_ready(60)
    assert train(rank, 1) == 4
    rank.close()
    daemon.cancel(job)


def test_the_operator_goes_on_without_it(daemon):
    early = (daemon.dir / "state/journal.sqlite").read_bytes()  # SQLite may write what is in the log into it at any time
    old, other = daemon.submit(SPEC), daemon.submit(SPEC)
    rank = start_rank(daemon, old)
    train(rank, 2)
    kill_and(daemon, lambda: None)  # what was written so far is known to the journal that follows
    daemon.wait_ready()
    state = daemon.dir / "state"
    train(rank, 1)

    def lose():
        (state / "journal.sqlite-wal").unlink()
        (state / "journal.sqlite").write_bytes(early)
    kill_and(daemon, lose)
    wait_until("refusal", lambda: "exited with 74" in daemon.log(), 30)
    told = accept_loss(daemon)
    assert told.returncode == 0, told
    assert f"job {old} is lost whole" in told.stdout and f"job {other} is lost whole" in told.stdout
    aside, = state.glob("journal.sqlite.damaged-*")
    assert (aside / "journal.sqlite").exists() and (aside / "journal.sqlite.anchor").exists()
    daemon.wait_ready(60)
    rank.close()
    new = daemon.submit(SPEC)
    assert new == other + 1  # ids are never given out twice
    assert "(incarnation 3, term 3, " in daemon.log()
    assert accept_loss(daemon).returncode == 1  # a gaccd runs
    daemon.cancel(new)


def test_a_wrong_configuration_costs_no_job(daemon):
    job = daemon.submit(SPEC)
    rank = start_rank(daemon, job)
    train(rank, 1)
    conf = daemon.dir / "gaccd.yaml"
    kill_and(daemon, lambda: conf.write_text("no_such_key: 1\n"))
    wait_until("refusal", lambda: "exited with 78; starting it again" in daemon.log(), 30)
    assert "no_such_key" in daemon.log()
    conf.write_text("")
    daemon.wait_ready(60)
    assert train(rank, 1) == 2
    rank.close()
    daemon.cancel(job)


def test_without_anything_to_keep_it_stops():
    d = Daemon(supervise=True, start=False)
    command = d.command()
    pathlib.Path(d.dir / "gaccd.yaml").write_text("no_such_key: 1\n")
    done = subprocess.run([str(w) for w in command], capture_output=True, text=True, timeout=30, env={**os.environ, "TMPDIR": str(d.dir)})
    shutil.rmtree(d.dir)
    assert done.returncode == 2 and "no_such_key" in done.stderr


def test_a_new_job_never_gets_the_id_of_a_launcher_that_lives():
    """Without a service manager, and with all of state_dir gone: the launcher and its ranks are still there."""
    with Daemon(allow=["has traces of a launcher of job 1"]) as d:
        old = d.submit({**SPEC, "launch": "daemon", "tensors": [{"name": "w", "dtype": "f32", "shape": [4]}],
                        "launch_command": {"command": ["sleep", "600"], "environment": [{"key": "GACC_TEST", "value": str(d.dir)}]}})
        wait_until("the launcher", lambda: d.get_job(old).launcher_pid)
        d.kill_gaccd()
        assert d.launchers()
        shutil.rmtree(d.dir / "state")
        d.start()
        assert d.submit({**SPEC}) > old
        for pid in d.launchers():
            os.kill(pid, signal.SIGTERM)
        wait_until("the launcher's end", lambda: not d.launchers())


LAUNCHED = {**SPEC, "launch": "daemon", "tensors": [{"name": "w", "dtype": "f32", "shape": [4]}]}


def launched(daemon):
    """Job 1 of this gaccd: memory, a launcher and a rank that sleeps."""
    job = daemon.submit({**LAUNCHED, "launch_command": {"command": ["sleep", "600"], "environment": [{"key": "GACC_TEST", "value": str(daemon.dir)}]}})
    assert job == 1
    wait_until("the rank", lambda: daemon.get_job(job).ranks[0].pid)
    wait_until("its memory", lambda: daemon.get_job(job).engine_pid)  # starts when the service manager has all of it
    return daemon.get_job(job).ranks[0].pid


def test_another_jobs_memory_and_ranks_are_not_adopted(tmp_path):
    """A state_dir takes the place of another one, and both have a job 1: ids say nothing, uuids do."""
    with Daemon(supervise=True) as other:
        launched(other)
        taken = other.dir / "state"
        kill_and(other, lambda: shutil.copytree(taken, other.dir / "copy"))
        other.wait_ready()
        aside = shutil.copytree(other.dir / "copy", tmp_path / "state")
        other.cancel(1)
    allow = [" journal .*: ", "gaccd does not start with it", "cannot start: its journal", "keeps the jobs' memory", "exited with 74; starting",
             " NotAdopted ", "the service manager keeps memory of job 1 with uuid", *MEANWHILE]
    with Daemon(supervise=True, allow=allow) as daemon:
        rank = launched(daemon)
        old = daemon.get_job(1).uuid
        launcher, = daemon.launchers()
        state = daemon.dir / "state"

        def swap():
            shutil.rmtree(state)
            shutil.move(aside, state)
        kill_and(daemon, swap)
        wait_until("refusal", lambda: "exited with 74" in daemon.log(), 30)
        assert accept_loss(daemon).returncode == 0
        daemon.wait_ready(60)
        job = daemon.get_job(1)
        assert job.uuid != old
        wait_until("its own launcher", lambda: daemon.get_job(1).launcher_pid)
        wait_until("its own rank", lambda: daemon.get_job(1).ranks[0].pid)
        job = daemon.get_job(1)
        assert job.launcher_pid != launcher and job.ranks[0].pid != rank
        assert alive(launcher) and alive(rank)  # left alone
        told = [line for line in daemon.log().splitlines() if " NotAdopted " in line]
        assert any(f"j1.r1.0.1 is of another job of this id, with uuid {old}" in line for line in told), told
        assert any("is the launcher of another job of this id" in line for line in told), told
        command, = {line.split("at once: ")[1] for line in told if "at once: " in line}
        subprocess.run(command, shell=True, check=True)
        wait_until("their end", lambda: not alive(launcher) and not alive(rank))
        assert alive(job.launcher_pid) and alive(job.ranks[0].pid)
        daemon.cancel(1)
        wait_until("its ranks' end", lambda: not daemon.launchers())


def test_memory_ahead_of_the_journal_is_kept():
    """An older copy of state_dir, and nothing but the job's own memory says so: the service manager does not keep where the journal stands."""
    daemon = Daemon(systemd_ms=30000, start=False, allow=[
        " journal .*: ", "commits are missing in it", "gaccd does not start with it", "cannot start: its journal", "keeps the jobs' memory",
        " Rank(Lost|Late) ", " Ended job="])
    daemon.env["PLAYER_FORGETS"] = str(daemon.dir / "forget")
    with daemon:
        daemon.start()
        job, state, older, newer = daemon.submit(SPEC), daemon.dir / "state", daemon.dir / "older", daemon.dir / "newer"
        rank = start_rank(daemon, job)
        train(rank, 2)
        kill_and(daemon, lambda: shutil.copytree(state, older))
        daemon.wait_ready()
        assert train(rank, 3) == 5
        (daemon.dir / "forget").write_text("journal")

        def bring_back(copy):
            shutil.rmtree(state)
            shutil.copytree(copy, state)
        kill_and(daemon, lambda: (shutil.copytree(state, newer), bring_back(older)))
        missing = f"job {job}: the job's memory is at window 5, and the journal at window 2: commits are missing in it"
        wait_until("refusal", lambda: daemon.log().count(missing) >= 2, 30)  # at each start: nothing has been changed by the first
        os.kill(daemon.process.pid, signal.SIGSTOP)
        wait_until("the end of this try", lambda: not any(alive(pid) for pid in children(daemon.process.pid)))
        bring_back(newer)
        os.kill(daemon.process.pid, signal.SIGCONT)
        daemon.wait_ready(60)
        assert train(rank, 1) == 6  # nothing was lost
        kill_and(daemon, lambda: bring_back(older))
        wait_until("refusal", lambda: "the job's memory is at window 6, and the journal at window 2" in daemon.log(), 30)
        assert accept_loss(daemon).returncode == 0
        daemon.wait_ready(60)
        wait_until("the job's end", lambda: daemon.state(job) == "NODE_FAIL")
        assert "commits are missing in it" in daemon.get_job(job).reason
        rank.close()
