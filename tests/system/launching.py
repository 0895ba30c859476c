# SPDX-License-Identifier: Apache-2.0
"""Jobs that gaccd launches, for the tests of launcher and queue."""
import pathlib

from harness import alive, wait_until

ALLOWED = [" Ended job=", " RankExited job="]  # in the log of a gaccd whose ranks are ended by the test
SPEC = {"name": "linear", "ranks": 2, "micro_size": 4, "steps": 40, "optimizer": {"type": "sgd", "lr": 0.01, "momentum": 0.5}}


def launched(*command, ranks=2, environment=None, max_restarts=0, grace_ms=500, **spec):
    variables = [{"key": k, "value": str(v)} for k, v in (environment or {}).items()]
    return {**SPEC, "ranks": ranks, **spec, "launch": "daemon",
            "launch_command": {"command": [str(c) for c in command], "environment": variables, "max_restarts": max_restarts,
                               "grace_ms": grace_ms}}


def shell(daemon, script, *arguments, environment=None, **more):
    """Ranks that run a shell script; $GATE is a folder of the test's own."""
    return launched("sh", "-c", script, "sh", *arguments, environment={"GATE": gate(daemon), "GACC_TEST": daemon.dir, **(environment or {})}, **more)


def gate(daemon):
    path = daemon.dir / "gate"
    path.mkdir(exist_ok=True)
    return path


def open_gate(daemon, name="go"):
    (gate(daemon) / name).touch()


def wait_state(daemon, job, *states, timeout=15):
    wait_until(lambda: f"{states}; it is {daemon.get_job(job)}\n{daemon.log()}", lambda: daemon.state(job) in states, timeout)
    return daemon.get_job(job)


def wait_pids(daemon, job, ranks=2):
    """Of the ranks, when all run and have files open as they should."""
    def all_there():
        pids = [r.pid for r in daemon.get_job(job).ranks]
        return pids if len(pids) == ranks and all(p and alive(p) for p in pids) else None
    return wait_until("the ranks' processes", all_there)


def log_of(daemon, job, rank):
    return pathlib.Path(daemon.get_job(job).log_dir, f"worker_{rank}.log").read_text()
