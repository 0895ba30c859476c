# SPDX-License-Identifier: Apache-2.0
"""Several users of one gaccd: what one of them names, keeps or sends never means another's."""
import contextlib
import json
import os
import pathlib
import pty
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

from harness import Client, Daemon, GaccError, Rank, build_dir, descriptors, next_line, wait_until
from launching import launched, log_of, wait_state

TRAINERS = pathlib.Path(__file__).parent / "trainers"
SPEC = {"name": "shared-name", "ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 0.1}}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def submit_as(daemon, user, spec, request_id):
    """What trainers/submit_as.py prints: the job's id, or the error."""
    return subprocess.run([sys.executable, TRAINERS / "submit_as.py", daemon.endpoint, user, json.dumps(spec), request_id.hex()],
                          stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.strip()


@pytest.fixture
def shared():
    """A supervised gaccd that every user may reach."""
    with Daemon(conf={"listen.mode": "0666"}, supervise=True) as d:
        d.dir.chmod(0o755)
        yield d


def test_a_request_id_is_its_users_own(shared):
    """The same 16 bytes of two users are two jobs, before and after a restart of gaccd reads them from the journal."""
    request_id = bytes(range(16))
    first = submit_as(shared, "nobody", SPEC, request_id)
    ours = shared.submit(SPEC, request_id)
    assert int(first) != ours
    assert submit_as(shared, "nobody", SPEC, request_id) == first and shared.submit(SPEC, request_id) == ours
    shared.kill_gaccd()
    shared.wait_ready()
    assert submit_as(shared, "nobody", SPEC, request_id) == first and shared.submit(SPEC, request_id) == ours
    assert [shared.get_job(j).user for j in (first, ours)] == ["nobody", pwd.getpwuid(0).pw_name]


def test_a_name_means_the_callers_own_job(shared):
    """Also for root, who may see all jobs: a job of that name that another user submitted later is not meant."""
    ours = shared.submit(SPEC)
    theirs = int(submit_as(shared, "nobody", SPEC, os.urandom(16)))
    assert shared.get_job(SPEC["name"]).id == ours and shared.get_job(theirs).id == theirs
    other = int(submit_as(shared, "nobody", {**SPEC, "name": "theirs"}, os.urandom(16)))
    assert shared.get_job("theirs").id == other  # root has none of that name
    attached = shared.client.gradient.Attach(
        job="theirs", rank=0, world_size=1, nonce=os.urandom(16), protocol_min=1, protocol_max=1,
        create_if_missing=shared.client.types.spec(**{**SPEC, "name": "theirs"}))
    assert attached.job_id not in (ours, theirs, other) and shared.get_job(attached.job_id).user == pwd.getpwuid(0).pw_name


class Unprivileged(Daemon):
    """A gaccd of root that Linux does not excuse from limits, as that of the unit."""

    def command(self):
        return ["setpriv", "--bounding-set=-sys_resource,-sys_admin", *super().command()]


@pytest.mark.parametrize("connections", [101, 250])
def test_descriptors_that_a_user_does_not_receive_stop_no_engine(connections):
    """Linux counts those in flight for all of gaccd's sockets together: 101 connections with six each were enough for nobody's engine to start."""
    limit = 600
    with Unprivileged(nofile=(limit, limit), conf={"listen.mode": "0666"}, allow=["have not been received", "RankLost"]) as d:
        d.dir.chmod(0o755)
        hostile = subprocess.Popen([sys.executable, TRAINERS / "abandon_maps.py", d.endpoint, "nobody", str(connections)],
                                   stdout=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, "HOME": "/"})
        try:
            granted, reason, text = next_line(hostile).split(" ", 2)
            assert hostile.wait(10) == 0  # whoever connected is dead
            job = d.submit({**SPEC, "tensors": [{"name": "w", "dtype": "f32", "shape": [16]}], "slots_per_rank": 2})
            with Rank(d, job, 0, [("w", [16])], 1) as r:
                r.start({"w": np.zeros(16, np.float32)})
                r.push([np.ones(16, np.float32)])
                r.wait_step()
                d.kill_engine(job)
                r.push([np.ones(16, np.float32)])
                r.wait_step()
            assert 0 < 6 * int(granted) <= limit / 8 / 2
            assert reason == "RESOURCE_EXHAUSTED" and "have not been received" in text
        finally:
            os.killpg(hostile.pid, signal.SIGKILL)
        d.cancel("abandons")
        wait_until("the connections' end", lambda: descriptors(d.pid) < 64)


def status_field(pid, name):
    return next(line.split()[1] for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(name + ":"))


def test_nobody_gains_privileges_below_gaccd():
    """Supervisor, gaccd, engine and launcher, without a unit that says so; a rank of another user cannot become root by a setuid program."""
    with Daemon(conf={"listen.mode": "0666"}, supervise=True, allow=["RankExited", "Ended job="]) as d:
        d.dir.chmod(0o755)
        setuid = d.dir / "setuid-id"
        shutil.copy("/usr/bin/id", setuid)
        setuid.chmod(0o4755)
        assert subprocess.run(["setpriv", "--reuid=65534", "--clear-groups", setuid, "-u"], capture_output=True, text=True).stdout == "0\n"
        script = f"{setuid} -u; echo done; sleep 1000"
        job = int(submit_as(d, "nobody", launched("sh", "-c", script, ranks=1), os.urandom(16)))
        wait_until("its word", lambda: "done" in log_of(d, job, 0) if pathlib.Path(d.get_job(job).log_dir, "worker_0.log").exists() else False)
        assert log_of(d, job, 0) == "65534\ndone\n"
        held = d.submit({**SPEC, "tensors": [{"name": "w", "dtype": "f32", "shape": [16]}]})
        for pid in (d.supervisor_pid, d.pid, d.engine_pid(held), *d.launchers(), *(r.pid for r in d.get_job(job).ranks)):
            assert status_field(pid, "NoNewPrivs") == "1", pid
        d.cancel(job)
        wait_until("the launcher's end", lambda: not d.launchers())


def run_on_terminal(command, env):
    """What it writes to a terminal."""
    master, slave = pty.openpty()
    p = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env)
    os.close(slave)
    out = b""
    try:
        while piece := os.read(master, 65536):
            out += piece
    except OSError:  # EIO: nobody has the other end
        pass
    assert p.wait(30) == 0
    os.close(master)
    return out.replace(b"\r\n", b"\n")


def test_text_of_a_user_does_not_act_on_a_terminal(shared):
    """A name (ASCII's controls are refused in it) and a log with an escape sequence, C1's CSI and a right-to-left override, as root sees them, and in gaccd's log."""
    d, acts = shared, "a\x1b[2J\x9bb\u202ec"
    d.allow += ["RankExited", "Ended job="]
    job = int(submit_as(d, "nobody", {**launched("sh", "-c", 'printf "%s\\n" "$TEXT"; exit 3', ranks=1, environment={"TEXT": acts}), "name": acts.replace("\x1b", "")},
                        os.urandom(16)))
    wait_state(d, job, "FAILED")
    env = {**os.environ, "GACC_ENDPOINT": d.endpoint, "TERM": "xterm", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    gaccctl = build_dir() / "bin/gaccctl"
    for words in (["jobs", "-a"], ["describe", f"job/{job}"], ["events"], ["jobs", "-a", "-o", "json"], ["jobs", "-a", "-o", "yaml"],
                  ["describe", f"job/{job}", "-o", "json"], ["logs", str(job)]):
        out = run_on_terminal([gaccctl, *words], env).decode()
        assert not set(out) & {"\x1b", "\x9b", "\u202e"}, (words, out)
        if words[0] in ("jobs", "logs"):
            assert "u202ec" in out, (words, out)
    assert run_on_terminal([gaccctl, "logs", str(job), "--raw"], env).decode() == acts + "\n"
    assert subprocess.run([gaccctl, "logs", str(job)], env=env, stdout=subprocess.PIPE, check=True).stdout.decode() == acts + "\n"
    assert not set(d.log()) & {"\x1b", "\x9b", "\u202e"}


ASK_LAUNCHER = """
import socket, sys
c = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
c.settimeout(10)
c.connect(sys.argv[1])
print("closed" if not c.recv(65536) else "answered")
"""


def test_a_launcher_hears_gaccds_user_only(shared):
    """Even where the modes of its directory and socket let others in."""
    shared.allow += [" Ended job="]
    job = shared.submit(launched("sleep", "1000", ranks=1))
    wait_until("the rank", lambda: shared.get_job(job).ranks[0].pid)
    pid, [sock] = shared.get_job(job).ranks[0].pid, (shared.dir / "run").glob("launch-*.sock")
    sock.parent.chmod(0o755)
    sock.chmod(0o666)
    asked = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", ASK_LAUNCHER, sock],
                           capture_output=True, text=True, timeout=60)
    assert asked.stdout == "closed\n", asked.stderr
    assert shared.get_job(job).ranks[0].pid == pid
    shared.cancel(job, grace_ms=100)
    wait_until("the launcher's end", lambda: not shared.launchers())


HAND_OVER = """
import socket, sys
c = socket.socket(socket.AF_UNIX)
c.connect(sys.argv[1])
socket.send_fds(socket.socket(fileno=0), [b"x"], [c.fileno()])
sys.stdin.read()
"""


def carry(a, b):
    """Bytes from a to b until the end."""
    with contextlib.suppress(OSError):
        while data := a.recv(65536):
            b.sendall(data)


def relay_one(listener, there):
    here = listener.accept()[0]
    threading.Thread(target=carry, args=(there, here), daemon=True).start()
    carry(here, there)


def process_with(pid):
    """A process with this number, which is free."""
    for _ in range(200):
        p = subprocess.Popen(["sh", "-c", f"echo {pid - 1} >/proc/sys/kernel/ns_last_pid; sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE,
                             text=True, start_new_session=True)
        if int(next_line(p)) == pid:
            return p
        os.killpg(p.pid, signal.SIGKILL)
        p.wait()
    pytest.fail(f"no process gets the number {pid}")


def test_who_has_a_dead_callers_number_is_not_its_trainer(shared, tmp_path):
    """A process connects, hands the connection on and dies; another gets its number; then Attach comes by the connection."""
    job = shared.submit(SPEC)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    caller = subprocess.Popen([sys.executable, "-c", HAND_OVER, shared.endpoint.removeprefix("unix:")], stdin=theirs)
    _, [fd], _, _ = socket.recv_fds(ours, 1, 1)
    with socket.socket(socket.AF_UNIX) as relay, socket.socket(fileno=fd) as there:
        relay.bind(str(tmp_path / "relay"))
        relay.listen()
        client = Client(f"unix:{tmp_path}/relay")
        threading.Thread(target=relay_one, args=(relay, there), daemon=True).start()
        assert [j.id for j in client.jobs.List().jobs] == [job]  # gaccd has taken the connection
        caller.kill()
        caller.wait()
        other = process_with(caller.pid)
        try:
            with pytest.raises(GaccError) as e:
                client.gradient.Attach(job=str(job), rank=0, world_size=1, nonce=os.urandom(16), protocol_min=1, protocol_max=1)
            assert e.value.reason == "CANCELLED" and f"process {caller.pid} is gone" in e.value.text
        finally:
            os.killpg(other.pid, signal.SIGKILL)
            other.wait()
            client.close()
