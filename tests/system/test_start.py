# SPDX-License-Identifier: Apache-2.0
"""A gaccd that cannot start says why and ends; what it has made at its start and loses, it makes again."""
import os
import shutil
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from harness import F32, Client, Daemon, GaccError, Rank, alive, build_dir, killed_after, wait_until
from launching import open_gate, shell, wait_pids, wait_state


def test_socket_of_a_running_gaccd(daemon, tmp_path):
    second = subprocess.run([build_dir() / "bin/gaccd", "--set", f"listen.socket={daemon.socket}", "--set", f"state_dir={tmp_path}/state",
                             "--set", f"runtime_dir={tmp_path}/run"], capture_output=True, text=True, timeout=20)
    assert second.returncode == 2
    assert "a running daemon has it" in second.stderr and "cannot start: its socket is in use" in second.stderr
    assert daemon.client.node.GetNode().pid == daemon.pid


def test_sockets_that_were_removed(daemon):
    """As by a cleaner of temporary files: those connected stay, those who come find the sockets again."""
    daemon.allow.append(" WARN: .*sock.* was removed: it is made anew")
    job = daemon.submit({"ranks": 2, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1}})
    zeros, ones = {"w": np.zeros(3, np.float32)}, [np.ones(3, np.float32)]
    with Rank(daemon, job, 0, [("w", [3])]) as first:
        first.register()
        first.put_params(zeros)
        first.ready()
        for path in (daemon.socket, f"{daemon.socket}.attach", f"{daemon.socket}.attach.lock"):
            os.unlink(path)
        wait_until("the sockets", lambda: os.path.exists(daemon.socket) and os.path.exists(f"{daemon.socket}.attach"))
        with Rank(daemon, job, 1, [("w", [3])]) as second:
            second.start()
            for rank in (first, second):
                rank.push(ones)
            assert first.wait_step().result.applied_step == 1
            assert list(second.params()["w"]) == [-1, -1, -1]


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    gaccd = subprocess.run([build_dir() / "bin/gaccd", "--set", f"runtime_dir={tmp_path}/file/run", "--set", f"state_dir={tmp_path}"],
                           capture_output=True, text=True, timeout=20)
    assert gaccd.returncode == 1
    assert f"cannot make {tmp_path}/file/run (runtime_dir): Not a directory" in gaccd.stderr


@pytest.mark.parametrize("key", ["runtime_dir", "state_dir"])
@pytest.mark.parametrize("owner, mode, runs", [(65534, 0o755, False), (0, 0o777, False), (0, 0o1777, True), (0, 0o755, True)])
def test_a_folder_that_others_can_change(tmp_path, key, owner, mode, runs):
    """Whoever may rename in it can put a socket or a journal of their own there."""
    other = {"runtime_dir": "state_dir", "state_dir": "runtime_dir"}[key]
    folder = tmp_path / key
    folder.mkdir()
    os.chown(folder, owner, -1)
    folder.chmod(mode)
    gaccd = subprocess.Popen([build_dir() / "bin/gaccd", "--set", f"{key}={folder}", "--set", f"{other}={tmp_path}/{other}"],
                             stderr=subprocess.PIPE, text=True)
    try:
        if runs:
            wait_until("the socket", (tmp_path / "runtime_dir/gaccd.sock").exists)
            return
        assert gaccd.wait(20) == 1
        assert f"{folder} ({key}) belongs to user {owner} and has mode {mode:04o}: its files could be replaced" in gaccd.stderr.read()
        assert not list(folder.iterdir())
    finally:
        gaccd.terminate()
        with killed_after(gaccd):
            gaccd.communicate()


def test_a_start_with_jobs_puts_off_the_managers_limit(tmp_path):
    """What the journal has may take longer than TimeoutStartSec=."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, Daemon() as d:
        d.submit({"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1}})
        d.stop()
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(10)
        d.start(env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        said = []
        while not said or said[-1] != b"READY=1\n":
            said.append(manager.recv(4096))
        assert b"EXTEND_TIMEOUT_USEC=60000000\n" in said
        for job in d.client.jobs.List(all=False).jobs:
            d.cancel(job.id)


def test_a_newer_program_goes_on_with_the_launchers_of_an_older_one(tmp_path):
    """As a package does it: the file is replaced, and gaccd started again. The launcher and its ranks run the file that is gone."""
    program = tmp_path / "gaccd"
    shutil.copy(build_dir() / "bin/gaccd", program)
    with Daemon(supervise=True, program=program, allow=[" RankLost job="]) as d:
        job = d.submit(shell(d, 'while [ ! -e "$GATE/go" ]; do sleep 0.02; done; exec "$1"', build_dir() / "bin/linear"))
        pids, [launcher] = wait_pids(d, job), d.launchers()
        shutil.copy(program, tmp_path / "new")
        (tmp_path / "new").rename(program)
        d.kill_gaccd()
        d.wait_ready()
        assert os.readlink(f"/proc/{launcher}/exe") == f"{program} (deleted)" and os.readlink(f"/proc/{d.pid}/exe") == str(program)
        wait_until("the launcher's pid", lambda: d.get_job(job).launcher_pid == launcher)
        assert wait_pids(d, job) == pids and d.launchers() == [launcher]
        open_gate(d)
        wait_state(d, job, "COMPLETED")
        wait_until("the launcher's end", lambda: not d.launchers())


PARENTS = {  # what whoever starts gaccd may have done to itself
    "closed descriptors": "os.closerange(0, 3)",
    "SIGCHLD ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "signals blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))",
}
BECOMES = "import os, signal, sys; [signal.signal(s, signal.SIG_DFL) for s in (signal.SIGPIPE, signal.SIGXFSZ)]; {}; os.execv(sys.argv[1], sys.argv[1:])"


@pytest.mark.parametrize("parent", PARENTS)
def test_what_the_parent_leaves_does_not_matter(parent, tmp_path):
    """Jobs run, gaccd is started again when it dies, and SIGTERM ends it."""
    gaccd = subprocess.Popen([sys.executable, "-c", BECOMES.format(PARENTS[parent]), build_dir() / "bin/gaccd", "--supervise", "--set",
                              f"runtime_dir={tmp_path}", "--set", f"state_dir={tmp_path}/state"], stderr=subprocess.DEVNULL)
    client = Client(f"unix:{tmp_path}/gaccd.sock")
    try:
        first = wait_until("gaccd", lambda: client.node.GetNode().pid)
        spec = client.types.spec(name="j", ranks=1, micro_size=1, optimizer={"type": "sgd", "lr": 1})
        job = client.jobs.Submit(spec=spec, request_id=os.urandom(16)).job.id
        with Rank(f"unix:{tmp_path}/gaccd.sock", job, 0, [("w", [3])]) as rank:
            rank.start({"w": np.zeros(3, np.float32)})
            rank.push([np.ones(3, np.float32)])
            assert rank.wait_step().result.applied_step == 1
            os.kill(first, signal.SIGKILL)
            wait_until("its successor", lambda: client.node.GetNode().pid != first)
            rank.push([np.ones(3, np.float32)])
            assert rank.wait_step().result.applied_step == 2
    finally:
        client.close()
        gaccd.terminate()
        try:
            assert gaccd.wait(20) == 0
        finally:
            gaccd.kill()
            if alive(first):
                os.kill(first, signal.SIGKILL)


def test_a_job_beyond_the_limit_of_files_is_refused():
    """RLIMIT_FSIZE holds for a job's memory, too: what one user asks for must not end gaccd."""
    d = Daemon(allow=["File too large"])
    d.nofile = ["prlimit", "--fsize=40000000"]
    with d:
        with pytest.raises(GaccError) as e:
            d.submit({"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1}, "tensors": [{"name": "w", "dtype": F32, "shape": [50 << 20]}]})
        assert "File too large" in e.value.text
        assert d.client.node.GetNode().pid == d.pid
