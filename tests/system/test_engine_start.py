# SPDX-License-Identifier: Apache-2.0
"""Engines that cannot be started, for real reasons, or die again and again: what a job loses by it, and what is said."""
import contextlib
import os
import re
import resource
import shutil
import signal
import time

import numpy as np
import pytest

from harness import Daemon, GaccError, Rank, alive, build_dir, wait_until
from launching import wait_state
from test_kills import Threads, check_all
from workload import Workload

TENSORS = [{"name": "w", "dtype": "f32", "shape": [16]}]
SPEC = {"name": "idle", "ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 0.1}, "tensors": TENSORS}
FAILING = ["EngineNotStarted", "EngineFailing", "no descriptors left", " Ended job=", " NoRanks job="]
NO_SOCKET = "its socket cannot be made: Too many open files"


@contextlib.contextmanager
def no_descriptors(daemon):
    """What is open stays open; gaccd gets no more."""
    soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (soft, hard))


def restarts(daemon, job):
    return daemon.get_job(job).engine_restarts


def test_a_job_waits_for_an_engine_that_may_come_and_goes_on():
    work = Workload(ranks=2, micro_size=3, steps=8, elements=20_000)
    with Daemon(allow=FAILING) as d:
        run = Threads(d, work, pause=0.05)
        d.engine_pid(run.job)
        wait_until("a step", lambda: d.get_job(run.job).applied_step >= 1)
        with no_descriptors(d):
            d.kill_engine(run.job)
            j = wait_state(d, run.job, "STALLED")
            assert j.reason == f"the engine cannot be started: {NO_SOCKET}; tried again for 600 s" and not j.engine_pid
            wait_until("more tries", lambda: restarts(d, run.job) >= 6)
            for event in ("EngineNotStarted", "EngineFailing"):  # once, not at each try
                assert len(d.events(event)) == 1, d.log()
        wait_state(d, run.job, "RUNNING")
        assert len(d.events("EngineBack")) == 1
        check_all(work, run.params())
        assert d.state(run.job) == "COMPLETED"


def test_a_job_ends_when_that_takes_too_long():
    with Daemon(allow=FAILING) as d:
        held, job = (d.submit({**SPEC, "name": name, "stall_abort_ms": 2500, "stall_warn_ms": 500, "init": [{"pattern": "*", "type": "zeros"}]})
                     for name in ("held", "other"))
        for j in (held, job):
            wait_state(d, j, "RUNNING")
        d.client.jobs.Pause(job=str(held))
        with no_descriptors(d):
            d.kill_engine(held)
            d.kill_engine(job)
            reason = wait_state(d, job, "NODE_FAIL").reason
            assert re.fullmatch(rf"the engine cannot be started \(\d+ tries in [2-9]\.\d s\): {NO_SOCKET}", reason), reason
            time.sleep(0.5)
            assert d.state(held) == "PAUSED"  # whoever holds it may be mending the node
            d.client.jobs.Resume(job=str(held))
            assert "EngineFailing" in d.log()
            wait_state(d, held, "NODE_FAIL")


def test_a_crash_loop_ends_the_job():
    """Each engine answers something, which could go on for ever, and then dies."""
    with Daemon(allow=[*FAILING, "Segmentation fault"]) as d:
        job = d.submit({**SPEC, "micro_size": 2, "stall_abort_ms": 2500, "stall_warn_ms": 500})
        with Rank(d, job, 0, [("w", [16])]) as r:
            r.start({"w": np.ones(16, np.float32)})
            r.push([np.ones(16, np.float32)])
            first, lives, start = d.engine_pid(job), [], time.monotonic()
            while d.state(job) != "NODE_FAIL":
                assert time.monotonic() - start < 30, lives
                pid = d.get_job(job).engine_pid
                if pid and pid not in lives:
                    r.attach(1, resume_generation=0)  # answered by this engine, if it has come so far
                    d.kill_engine(job, pid, signal.SIGSEGV)
                    lives.append(pid)
                time.sleep(0.005)
            reason = d.get_job(job).reason
            assert re.fullmatch(r"the engine has failed \d+ times in [2-9]\.\d s, and nothing was counted meanwhile: "
                                r"the engine was killed by signal 11 \(Segmentation fault\)", reason), reason
            assert lives[0] == first and 4 <= len(lives) <= 10, lives


def test_a_job_that_never_had_an_engine_is_refused(tmp_path):
    program = shutil.copy(build_dir() / "bin/gaccd", tmp_path)
    with Daemon(allow=FAILING, program=program) as d:
        os.chmod(program, 0)
        start = time.monotonic()
        with pytest.raises(GaccError) as e:
            d.submit(SPEC)
        assert time.monotonic() - start < 20
        assert (e.value.code, e.value.reason) == ("ABORTED", "ENGINE_FAILED")
        assert re.fullmatch(r"the engine cannot be started \(5 tries in [0-4]\.\d s\): no process: permission denied", e.value.text), e.value.text
        job, = d.client.jobs.List(all=True).jobs
        assert wait_state(d, job.id, "NODE_FAIL").reason == e.value.text
        assert len(d.events("EngineNotStarted")) == 1
        os.chmod(program, 0o755)
        assert d.engine_pid(d.submit(SPEC))


def test_an_engine_that_is_killed_whenever_it_comes_costs_nothing():
    work = Workload(ranks=2, micro_size=3, steps=6, elements=20_000)
    with Daemon(allow=FAILING) as d:
        run = Threads(d, work, pause=0.02)
        d.engine_pid(run.job)
        d.engines_killed, kills, begin = True, 0, time.monotonic()
        while (took := time.monotonic() - begin) < 2 or (kills <= 5 and took < 60):
            for pid in d.engine_pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
                wait_until("its death", lambda: not alive(pid), every=0.001)
        assert kills > 5
        check_all(work, run.params())
        assert d.state(run.job) == "COMPLETED"
