# SPDX-License-Identifier: Apache-2.0
"""SIGSTOP beyond every timeout, then SIGCONT: what hangs is named, killed where that helps, and what wakes up later does no harm."""
import os
import shutil
import signal
import subprocess
import time

import pytest

from harness import Daemon, alive, build_dir, wait_until
from test_kills import RANK_LOST, Threads, Trainer, check_all
from workload import Workload

WORK = Workload(ranks=2, micro_size=3, steps=8, elements=20_000)
LATE = Workload(ranks=2, micro_size=3, steps=3, elements=1000, stall_warn_ms=300)


def test_engine_that_is_stopped_is_replaced():
    """It cannot end by itself: its memory goes to the next one, and the job's bits are those of an undisturbed run."""
    with Daemon(conf={"engine.timeout": "2s"}, allow=["EngineHung"]) as d:
        run = Threads(d, WORK, pause=0.05)
        engine = d.engine_pid(run.job)
        d.engines_killed = True
        os.kill(engine, signal.SIGSTOP)
        wait_until("the engine to be given up", lambda: d.events("EngineHung"))
        wait_until("its death", lambda: not alive(engine))
        check_all(WORK, run.params())
        assert d.get_job(run.job).engine_restarts == 1


def test_engine_that_is_slow_is_left_alone():
    with Daemon(conf={"engine.timeout": "3s"}) as d:
        run = Threads(d, WORK, pause=0.02)
        engine = d.engine_pid(run.job)
        for _ in range(3):
            os.kill(engine, signal.SIGSTOP)
            time.sleep(0.5)
            os.kill(engine, signal.SIGCONT)
            time.sleep(0.2)
        check_all(WORK, run.params())
        assert not d.events("EngineHung") and d.get_job(run.job).engine_restarts == 0


def test_gaccd_that_is_stopped_is_replaced_by_the_service_manager():
    """The watchdog kills it; trainers keep their sessions. A shorter stop goes unnoticed."""
    with Daemon(systemd_ms=3000) as d:
        run = Threads(d, WORK, pause=0.1)
        first = d.pid
        os.kill(first, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(first, signal.SIGCONT)
        time.sleep(0.3)
        assert d.pid == first
        os.kill(first, signal.SIGSTOP)
        wait_until("the watchdog", lambda: not alive(first))
        d.wait_ready()
        check_all(WORK, run.params())


def test_a_gaccd_without_its_service_manager_says_that_the_memory_is_lost():
    with Daemon(supervise=True, allow=["service manager: "]) as d:
        pid = d.pid
        d.process.kill()
        d.process.wait()
        wait_until("the end of gaccd", lambda: not alive(pid))
        d.process = None
        shutil.rmtree(next(d.dir.glob("gaccd-notify*")))  # the supervisor's own
        assert "stopping: jobs lose their memory, as the service manager does not answer any more" in d.log()


def test_trainer_that_is_stopped_is_named_and_goes_on():
    with Daemon(allow=["RankLate", "NoRanks"]) as d:
        job = d.submit(LATE.spec)
        trainers = [Trainer(d, job, 0, LATE), Trainer(d, job, 1, LATE, "--at", "sent:1:1")]
        trainers[1].wait_stopped()
        wait_until("the stall", lambda: d.state(job) == "STALLED")
        late = d.get_job(job)
        assert f"rank 1 (pid {trainers[1].pid})" in late.reason and "at 2/3" in late.reason, late.reason
        os.kill(trainers[1].pid, signal.SIGCONT)
        check_all(LATE, [t.params() for t in trainers])
        assert d.state(job) == "COMPLETED"


def test_trainer_that_is_stopped_for_too_long_fails_the_job_by_name():
    with Daemon(allow=["RankLate", "NoRanks", " Ended job=", RANK_LOST]) as d:
        work = Workload(ranks=2, micro_size=3, steps=3, elements=1000, stall_warn_ms=200, stall_abort_ms=5000)
        job = d.submit(work.spec)
        trainers = [Trainer(d, job, 0, work), Trainer(d, job, 1, work, "--at", "sent:1:1")]
        trainers[1].wait_stopped()
        wait_until("the end", lambda: d.state(job) == "FAILED")
        assert f"rank 1 (pid {trainers[1].pid}) at 2/3" in d.get_job(job).reason
        os.kill(trainers[1].pid, signal.SIGCONT)
        for t in trainers:
            assert t.process.wait(30) == 1 and "JOB_ENDED" in t.log.read_text()


@pytest.mark.parametrize("seconds", [0.2, 2.0])
def test_everything_stopped_at_once(seconds):
    """As when a virtual machine is suspended: engine and gaccd wake up together and go on."""
    with Daemon(supervise=True, conf={"engine.timeout": "2s"}, allow=["EngineHung"]) as d:
        d.engines_killed = True
        run = Threads(d, WORK, pause=0.05)
        both = [d.pid, d.engine_pid(run.job)]
        for pid in both:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in both:
            os.kill(pid, signal.SIGCONT)
        check_all(WORK, run.params())
        assert d.pid == both[0] and not d.events("EngineHung")


def test_a_stopped_gaccd_is_named():
    """By gaccctl, in the time it was given, whether the connection is new or not."""
    with Daemon() as d:
        os.kill(d.pid, signal.SIGSTOP)
        p = subprocess.run([build_dir() / "bin/gaccctl", "--endpoint", d.endpoint, "--timeout", "500ms", "jobs"],
                           capture_output=True, text=True, timeout=20)
        os.kill(d.pid, signal.SIGCONT)
        assert p.returncode in (3, 5), p
        assert f"gaccd at {d.endpoint} did" in p.stderr and "systemctl status gaccd" in p.stderr
