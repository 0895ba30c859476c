# SPDX-License-Identifier: Apache-2.0
"""What docs/operations.md promises, where no other test does."""
import os
import pathlib
import signal
import stat
import subprocess

import numpy as np

from cli import Cli
from harness import Daemon, Rank, alive, build_dir, wait_until


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_ranks_end_with_gaccctl_run_and_the_job_goes_on(tmp_path):
    """Section 3: what survives the death of `gaccctl run`."""
    with Daemon(allow=["RankLost", "RankLate job=", "NoRanks"]) as d:
        cli = Cli(tmp_path, d.endpoint)
        run = cli.start("run", "-n", "2", "--micro-size", "1000", "--set", "optimizer.type=sgd", "--set", "timeouts.stall_warn=300ms", "--",
                        build_dir() / "bin/mlp", "--batch", "8", "--epochs", "9")
        ranks = wait_until("the ranks", lambda: (lambda found: len(found) == 2 and all(found) and found)(
            [r.pid for job in d.client.jobs.List().jobs for r in job.ranks if r.micro_count > 2]))
        run.kill()
        run.communicate(timeout=60)
        wait_until("the end of the ranks", lambda: not any(alive(pid) for pid in ranks))
        job = d.client.jobs.List().jobs[0]
        assert all(r.micro_count > 2 for r in job.ranks)  # what was pushed is there
        wait_until("the stall", lambda: d.get_job(job.id).reason.startswith("no rank is attached: "))
        d.cancel(job.id)


def test_who_may_read_what_gaccd_makes():
    """Sections 2, 6 and 11: modes of sockets, locks, journal and folders."""
    for mode in ("0660", "0666"):
        with Daemon(conf={"listen.mode": mode}) as d:
            for socket in (d.socket, pathlib.Path(f"{d.socket}.attach")):
                assert mode_of(socket) == int(mode, 8) and mode_of(f"{socket}.lock") == 0o600
            state = d.dir / "state"
            assert not mode_of(state) & 0o066  # 0711 at most: users reach their logs below it
            for file in state.iterdir():
                assert mode_of(file) & 0o077 == 0 or (file.is_dir() and file.name in ("logs", "checkpoints")), file


def test_the_configuration_is_read_at_start_only():
    with Daemon() as d:
        os.kill(d.pid, signal.SIGHUP)
        wait_until("the note", lambda: "SIGHUP: the configuration is read at start only" in d.log())
        assert d.client.node.GetNode().version


def test_exit_statuses_of_gaccd():
    """Section 10: 2 for arguments, configuration and a socket in use; 1 for what cannot run."""
    def start(*settings):
        words = [w for s in settings for w in ("--set", s)]
        done = subprocess.run([build_dir() / "bin/gaccd", *words], capture_output=True, text=True, timeout=30)
        return done.returncode, done.stderr
    with Daemon() as d:
        taken, other = f"listen.socket={d.socket}", f"listen.socket={d.dir}/o.sock"
        runtime, token = f"runtime_dir={d.dir}/run2", d.dir / "token"
        code, err = start(taken, runtime, f"state_dir={d.dir}/state2")
        assert code == 2 and "a running daemon has it" in err
        code, err = start(other, runtime, f"state_dir={d.dir}/state")
        assert code == 1 and "another process has it" in err
        code, err = start("limits.jbos=1")
        assert code == 2 and 'unknown key "jbos" in limits; did you mean "jobs"?' in err
        tcp = [other, runtime, f"state_dir={d.dir}/state2", "listen.tcp=127.0.0.1:1", f"listen.token_file={token}"]
        for text, mode, said in (("x" * 20, 0o644, "is readable by others (mode 644): chmod 600"), ("short", 0o600, "at least 16 are needed")):
            token.write_text(text)
            token.chmod(mode)
            code, err = start(*tcp)
            assert code == 2 and said in err, err
        token.write_text("x" * 20)
        code, err = start(*tcp[:3], "listen.tcp=0.0.0.0:1", tcp[4])
        assert code == 2 and "a token alone is allowed on 127.0.0.1 and [::1] only" in err
        for left in ("o.sock", "o.sock.attach"):
            assert not (d.dir / left).exists()


def test_a_window_with_nothing_in_it_is_told(daemon):
    """Section 10: event StepEmpty; the step does not count."""
    job = daemon.submit({"optimizer": {"type": "sgd", "lr": 1}, "ranks": 1, "micro_size": 2})
    with Rank(daemon, job, 0, [("w", [4])]) as r:
        r.start({"w": np.zeros(4)})
        daemon.client.jobs.Flush(job=str(job))
        assert r.wait_step().result.applied_step == 0
        assert ["window 0 closed with nothing in it" in line for line in daemon.events("StepEmpty")] == [True]
        r.detach()


def test_a_job_without_tensors_says_what_it_waits_for(daemon):
    """Section 4: a job that is PENDING says why, also when it is not in the queue."""
    job = daemon.submit({"optimizer": {"type": "sgd", "lr": 1}, "ranks": 1, "micro_size": 2})
    assert (daemon.state(job), daemon.get_job(job).reason) == ("PENDING", "waits for a rank to register its tensors")
    with Rank(daemon, job, 0, [("w", [4])]) as r:
        r.start({"w": np.zeros(4)})
        wait_until("it runs", lambda: daemon.state(job) == "RUNNING")
        assert daemon.get_job(job).reason == ""
        r.detach()


def test_a_saved_checkpoint_is_told(daemon):
    """Section 7: event CheckpointSaved, with path and bytes."""
    job = daemon.submit({"optimizer": {"type": "sgd", "lr": 1}, "ranks": 1, "micro_size": 1, "init": [{"pattern": "*", "type": "zeros"}],
                         "tensors": [{"name": "w", "dtype": "f32", "shape": [4]}]})
    wait_until("it runs", lambda: daemon.state(job) == "RUNNING")
    saved = daemon.client.jobs.SaveCheckpoint(job=str(job), wait=True, request_id=os.urandom(16)).checkpoint
    told, = wait_until("the event", lambda: daemon.events("CheckpointSaved"))
    assert saved.path in told and f"{saved.bytes} bytes" in told
    daemon.cancel(job)
