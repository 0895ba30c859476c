# SPDX-License-Identifier: Apache-2.0
"""A gaccd to test.

    with Daemon() as d:
        job = d.submit({"ranks": 1, "micro_size": 2, "optimizer": {"type": "sgd", "lr": 0.1}})
        with Rank(d, job, 0, [("w", [3])]) as r:
            r.start({"w": np.ones(3, np.float32)})
            r.push([np.ones(3, np.float32)], weight=4)
            r.push([np.zeros(3, np.float32)], weight=1)
            step = r.wait_step()
            print(step.result.applied_step, r.params()["w"])

Rank and the calls are those of gacc_client.py, whose names are to be had from here, too.
"""
import contextlib
import functools
import os
import pathlib
import pwd
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from gacc_client import (BF16, CALL_S, CHUNK, DTYPES, F16, F32, F64, NUMPY, Client, GaccError, Rank,  # noqa: F401
                         Service, Types, as_dtype, build_dir, from_bf16, known_types, to_bf16)


def wait_until(what, condition, timeout=20.0, every=0.01):
    """The condition's first true value; fails with `what` (a text or a function that makes one)."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"not within {timeout} s: {what() if callable(what) else what}")
        time.sleep(every)


class TooSlow(AssertionError):
    """Something took too long, which may be due to what else runs on the machine."""


def tried_again(test):
    """A test that says TooSlow is tried three times: what is slow by itself is slow each time."""
    @functools.wraps(test)
    def tries(*arguments, **more):
        for _ in range(2):
            try:
                return test(*arguments, **more)
            except TooSlow as e:
                print(f"once more: {e}")
        return test(*arguments, **more)
    return tries


def said_by_a_fork(say):
    """What say() returns in a forked child of this process; "" if it raises. A child that hangs, as threads' locks can make it, is killed."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writes, say().encode())
        finally:
            os._exit(0)  # never back into pytest
    os.close(writes)
    try:
        wait_until("the child's end", lambda: os.waitpid(child, os.WNOHANG)[0])
        return os.read(reads, 4096).decode()
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        os.close(reads)


@contextlib.contextmanager
def killed_after(process, timeout=60.0):
    """For reading what it prints: if the `with` takes longer, the process is killed, and there is nothing more to read."""
    timer = threading.Timer(timeout, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def next_line(process, stream=None, timeout=60.0):
    """The next line of its output, or of that stream; "" at the end."""
    with killed_after(process, timeout):
        return (stream or process.stdout).readline()


def free_port():
    """Of TCP on loopback, and none that the kernel gives to connections: one of them could have it while a killed daemon is started again,
    even the connection of a node that dials this very port."""
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", random.SystemRandom().randrange(first // 2, first)))
            return s.getsockname()[1]


ME = pwd.getpwuid(os.getuid())  # whoever runs the tests


# ---- the daemon ----


def parent_and_state(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None, "X"
    state, parent = stat[stat.rindex(")") + 2:].split()[:2]
    return int(parent), state


def is_log_writer(pid):
    """A child of a launcher that is no rank."""
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text() == "gacc-logs\n"
    except OSError:
        return False


def alive(pid):
    return parent_and_state(pid)[1] not in "XZ"


def resident(pid):
    """Bytes of memory that it has."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) << 10


def sanitized():
    """The build has a sanitizer. Its allocator keeps what is freed, so that a process's size says little."""
    cache = (build_dir() / "CMakeCache.txt").read_text()
    return any(line.startswith("GACC_SANITIZE:") and line.partition("=")[2] for line in cache.splitlines())


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def kill_at_once(pids, sig=signal.SIGKILL):
    """A signal that ends these processes; returns when their descriptors are closed, and with them their locks are gone. /proc does not tell that:
    a process that ends loses its environment first, and the first thread of several is a zombie while the others still end."""
    ends = [os.pidfd_open(pid) for pid in pids]
    try:
        for end in ends:
            signal.pidfd_send_signal(end, sig)
        for pid, end in zip(pids, ends):
            assert select.select([end], [], [], 60)[0], f"process {pid} does not end"
    finally:
        for end in ends:
            os.close(end)


def children(pid):
    pids = [int(p) for p in os.listdir("/proc") if p.isdigit()]
    return [p for p in pids if parent_and_state(p)[0] == pid and alive(p)]


def shared_memory():
    """Files of ours. gacc makes none (test_packaging.py looks for shm_open in its programs); folders there are unit tests'
    (support/scratch.h), which may run at the same time, and other names are other programs'."""
    with os.scandir("/dev/shm") as entries:
        return {entry.name for entry in entries if "gacc" in entry.name and not entry.is_dir(follow_symlinks=False)}


DEVICE = os.environ.get("TEST_DEVICE")  # "cuda": jobs that can be on a GPU are on that of the rig, where a test does not say
SLOWER = 32 if DEVICE else 1  # its simulator takes about so many times as long for an element


def rig_environment(name, **more):
    """Of a gaccd whose engines see a GPU that is none: the fake driver, and the product's kernels on the simulator. `name`: of the machine, which
    outlives processes."""
    return {"LD_LIBRARY_PATH": str(build_dir() / "lib/fake_cuda"), "FAKE_CUDA_MACHINE": name,
            "FAKE_CUDA_KERNELS": str(build_dir() / "lib/gacc_cuda_host.so"), **{f"FAKE_CUDA_{k.upper()}": str(v) for k, v in more.items()}}


def can_be_on_a_device(spec):
    return (spec.get("parts", 1) <= 2 and not spec.get("nodes") and spec.get("sharding", "none") == "none" and spec.get("accumulate", "sum") == "sum" and spec.get("accumulate_dtype", 1) in (0, 1, "f32") and
            (spec.get("optimizer") or {}).get("type", "client") != "client" and "device" not in spec)


class Daemon:
    """A gaccd in a folder of its own. At the end of the `with`, it is stopped and must have left nothing: no process, no socket,
    nothing in /dev/shm, no WARN, ERROR or sanitizer report in the log but those that `allow` names (regular
    expressions, matched against the line). Warnings about processes that the harness itself killed are expected, as many as kills."""

    BAD_LINE = re.compile(r" (WARN|ERROR)[ :]|Sanitizer|runtime error:|[Aa]ssertion|[Ss]egmentation")

    def __init__(self, supervise=False, conf=None, env=None, allow=(), start=True, systemd_ms=0, nofile=None, program=None):
        """`systemd_ms`: supervised by support/systemd_player.py in the place of gaccd --supervise, with a watchdog of so many ms.
        `nofile`: soft and hard RLIMIT_NOFILE. `program`: another gaccd than the build's."""
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="gacc-"))
        self.supervise, self.allow, self.systemd_ms = supervise or bool(systemd_ms), list(allow), systemd_ms
        self.conf = {"engine.threads": 2, **(conf or {})}
        self.env, self.start_on_enter = {**(rig_environment(self.dir.name) if DEVICE else {}), **(env or {})}, start
        self.program = program or build_dir() / "bin/gaccd"
        self.nofile = ["prlimit", f"--nofile={nofile[0]}:{nofile[1]}"] if nofile else []
        self.socket = self.dir / "g.sock"
        self.endpoint = f"unix:{self.socket}"
        self.process = self._client = None
        self.killed = 0  # gaccds under a supervisor, by us
        self.engines_killed = False
        self.test_failed = False  # then the log is shown, and what is left over is only cleaned up
        self._shared_memory = shared_memory()

    # -- life --

    def command(self):
        conf = {"listen.socket": self.socket, "state_dir": self.dir / "state", "runtime_dir": self.dir / "run",
                "log.format": "text", **self.conf}
        (self.dir / "gaccd.yaml").write_text("")
        player = [sys.executable, pathlib.Path(__file__).parents[1] / "support/systemd_player.py", str(self.systemd_ms)]
        return (self.nofile + player * bool(self.systemd_ms) + [self.program, "--config", self.dir / "gaccd.yaml"] +
                ["--supervise"] * (self.supervise and not self.systemd_ms) + [word for key, value in conf.items() for word in ("--set", f"{key}={value}")])

    def start(self, env=None):
        """Starts gaccd (and its supervisor) and waits until it answers."""
        assert not self.process
        tsan = {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1"}  # gRPC and libuv are not instrumented
        with open(self.dir / "log", "ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**tsan, **os.environ, **self.env, **(env or {}), "TMPDIR": str(self.dir), "GACC_TEST": str(self.dir)})
        self.wait_ready()
        return self

    def wait_ready(self, timeout=30.0):
        """The node's description, from the gaccd that is alive now."""
        def answer():
            assert self.process.poll() is None, f"gaccd ended with {self.process.returncode}:\n{self.log()}"
            try:
                return self.client.node.GetNode(timeout=1, retry=False)
            except GaccError as e:
                assert e.is_outage or e.code == "DEADLINE_EXCEEDED", e
        return wait_until(lambda: "gaccd is not ready:\n" + self.log(), answer, timeout, 0.02)

    @property
    def client(self):
        if not self._client:
            self._client = Client(self.endpoint)
        return self._client

    def terminate(self, timeout):
        """SIGTERM. Under TSan it is repeated: a thread that gets the signal handles it with its next call of an instrumented function, and a
        thread of gRPC that sleeps makes none."""
        end, each = time.monotonic() + timeout, 1.0 if "TSAN_OPTIONS" in os.environ else timeout
        while self.process.poll() is None:
            self.process.terminate()
            try:
                return self.process.wait(min(each, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                if time.monotonic() >= end:
                    raise
        return self.process.returncode

    def stop(self, timeout=20.0):
        """SIGTERM, and the end of the process; its exit code."""
        if not self.process:
            return None
        if self._client:  # an idle connection would be waited for
            self._client.close()
            self._client = None
        try:
            code = self.terminate(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"gaccd did not stop within {timeout} s:\n{self.log()}") from None
        self.process = None
        return code

    def __enter__(self):
        return self.start() if self.start_on_enter else self

    def kill_engines(self):
        """After a failure: one that the test has stopped would hold up gaccd's end, and outlive it, and nothing about it says whose it was."""
        for pid in self.engine_pids() if self.process else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def __exit__(self, kind, value, traceback):
        if kind or self.test_failed:
            self.kill_engines()
        try:
            code = self.stop()
            if kind is None and not self.test_failed:
                assert not code, f"gaccd ended with {code}:\n{self.log()}"
                self.check_nothing_left()
                self.check_log()
            else:
                print(f"--- log of gaccd, last lines\n{self.log()[-8000:]}")
        finally:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._client:
                self._client.close()
            shutil.rmtree(self.dir, ignore_errors=True)

    # -- pids and kills --

    @property
    def supervisor_pid(self):
        return self.process.pid if self.supervise else None

    @property
    def pid(self):
        """Of gaccd; None while the supervisor has none."""
        if not self.supervise:
            return self.process.pid
        return next(iter(children(self.process.pid)), None)

    def engine_pids(self):
        return [p for p in children(self.pid or 0) if b"--engine" in command_line(p)]

    def engine_pid(self, job, timeout=20.0):
        """Of a job's engine that is up; 0 is never returned."""
        return wait_until(f"engine of job {job}", lambda: self.get_job(job).engine_pid, timeout)

    def kill_gaccd(self, sig=signal.SIGKILL):
        pid = wait_until("gaccd's pid", lambda: self.pid)
        self.killed += 1
        kill_at_once([pid], sig)
        if not self.supervise:
            self.process.wait()
            self.process = None
        return pid

    def kill_engine(self, job, pid=None, sig=signal.SIGKILL):
        """The engine of that job, or the one with this pid that a test has asked for before; returns when it is dead."""
        pid = pid or self.engine_pid(job)
        self.engines_killed = True
        try:
            os.kill(pid, sig)
        except ProcessLookupError:
            return pid
        wait_until(f"death of engine {pid}", lambda: not alive(pid), every=0.001)
        return pid

    def kill_supervisor(self):
        """The memory is lost with it, and gaccd is killed first: the supervisor is stopped, so that it does not start another."""
        supervisor = self.process.pid
        os.kill(supervisor, signal.SIGSTOP)
        wait_until("it has stopped", lambda: re.search(r"\) [TZ] ", pathlib.Path(f"/proc/{supervisor}/stat").read_text()))
        kill_at_once([*children(supervisor), supervisor])
        self.process.wait()
        self.process = None
        wait_until("death of gaccd and engines", lambda: not self.processes())
        for left in self.dir.glob("gaccd-notify*"):
            shutil.rmtree(left)

    def is_launcher(self, pid):
        """One of this gaccd's: launchers have no environment, and outlive it."""
        words = command_line(pid).split(b"\0")
        return words[:2] == [b"gaccd", b"--launcher"] and str(self.dir / "run").encode() in words

    def launchers(self):
        pids = {int(p) for p in filter(str.isdigit, os.listdir("/proc")) if self.is_launcher(p) and alive(int(p))}
        # a rank looks like its launcher until it executes, and the writer of their logs always does
        return [p for p in pids if parent_and_state(p)[0] not in pids and not is_log_writer(p)]

    def trainers(self):
        """campaign_trainer processes. A child of one is none: LeakSanitizer looks at a trainer from a process that shares its memory,
        and waits for ever if that is killed."""
        found = [p for p in self.processes() if command_line(p).split(b"\0")[0].endswith(b"/campaign_trainer")]
        return [p for p in found if parent_and_state(p)[0] not in found]

    def processes(self):
        """All that live with our folder in their environment or their arguments, as a launcher does; engines have neither."""
        mark, found = f"GACC_TEST={self.dir}".encode(), []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                environ = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            ours = mark in environ.split(b"\0") or self.is_launcher(pid)
            if ours and alive(int(pid)):
                found.append(int(pid))
        return found

    def describe_processes(self):
        """"1 (0, S) gaccd --config ...; 2 (1, S) ..." with each one's parent and state."""
        return "; ".join(f"{p} {parent_and_state(p)} {command_line(p).replace(bytes(1), b' ').decode(errors='replace')[:200]}" for p in self.processes())

    # -- the log --

    def log(self):
        path = self.dir / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def events(self, name):
        """Lines of the log with this event: "EngineExited"."""
        return [line for line in self.log().splitlines() if f" {name} job=" in line]

    def unexpected(self):
        allow = list(self.allow) + (["EngineExited", "EngineLost", "EngineFailing", "AttemptFailed"] if self.engines_killed else [])
        restarts = self.killed if self.supervise else 0
        bad = []
        for line in self.log().splitlines():
            if not self.BAD_LINE.search(line) or any(re.search(a, line) for a in allow):
                continue
            if restarts and "was killed by signal 9; starting it again" in line:
                restarts -= 1
                continue
            bad.append(line)
        return bad

    def check_log(self):
        bad = self.unexpected()
        assert not bad, "in gaccd's log:\n" + "\n".join(bad)

    def check_nothing_left(self):
        wait_until(lambda: f"still alive: {[(p, command_line(p)) for p in self.processes()]}",
                   lambda: not self.processes(), 10)
        for path in (self.socket, pathlib.Path(f"{self.socket}.attach")):
            assert not path.exists(), f"{path} is still there"
        assert not list(self.dir.glob("gaccd-notify*")), "the supervisor's socket is still there"
        new = shared_memory() - self._shared_memory
        assert not new, f"new in /dev/shm: {new}"

    # -- jobs --

    def submit(self, spec, request_id=None):
        """Id of a new job; spec as a dict, enum values short ("adamw")."""
        if DEVICE and can_be_on_a_device(spec):
            spec = {**spec, "device": DEVICE}
        request = self.client.types.SubmitRequest(spec=self.client.types.spec(**{"name": "test", **spec}), request_id=request_id or os.urandom(16))
        return self.client.jobs.Submit(request).job.id

    def get_job(self, job):
        return self.client.jobs.Get(job=str(job)).job

    def state(self, job):
        """ "RUNNING", "FAILED", ..."""
        j = self.get_job(job)
        return j.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_number[j.state].name.removeprefix("JOB_STATE_")

    def cancel(self, job, **how):
        self.allow.append(r" Ended job=\d+ .*cancelled by")
        self.client.jobs.Cancel(job=str(job), **how)  # answers when the end is durable
        assert self.state(job) == "CANCELLED"

    def wait_counted(self, job, rank, count, window=None, timeout=20.0):
        """Until the job shows this many micro-batches of the rank (in `window`, or a later window)."""
        def reached():
            j = self.get_job(job)
            return (window is not None and j.window > window) or j.ranks[rank].micro_count >= count
        wait_until(lambda: f"rank {rank}: {count} counted; it is {self.get_job(job).ranks[rank]}", reached, timeout, 0.005)


def command_line(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
