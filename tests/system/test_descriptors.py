# SPDX-License-Identifier: Apache-2.0
"""RLIMIT_NOFILE: what a job needs of it, that a job for which it is too small is refused with the numbers, and who gets which limit."""
import os
import pathlib
import resource

import pytest

from harness import Daemon, GaccError, Rank, build_dir, descriptors, wait_until
from launching import SPEC, launched, log_of, wait_pids, wait_state

OWN = 128  # of RLIMIT_NOFILE, for gaccd itself
TENSOR = [{"name": "w", "dtype": "f32", "shape": [16]}]


def need(ranks, slots=2):
    """The table of operations.md: segments and slots; the plan, engine and launcher; connections and mailbox of each rank."""
    return 8 + slots * (ranks + 1) + 3 + (4 + 4) * ranks


def external(ranks, **more):
    return {**SPEC, "ranks": ranks, "tensors": TENSOR, **more}


def refusal(daemon, spec):
    with pytest.raises(GaccError) as e:
        daemon.submit(spec)
    assert e.value.code == "RESOURCE_EXHAUSTED" and e.value.reason == "RESOURCE_EXHAUSTED"
    return e.value.text


def test_a_job_that_needs_more_than_the_limit_is_refused():
    free = 400 - OWN
    fits = max(r for r in range(100) if need(r) <= free)
    with Daemon(nofile=(400, 400)) as d:
        assert refusal(d, external(fits + 1)) == (
            f"needs {need(fits + 1)} descriptors and can never run here: gaccd has {free} for jobs (RLIMIT_NOFILE less {OWN}); "
            "raise LimitNOFILE= of its unit (ulimit -Hn), or ask for fewer ranks")
        assert not d.client.jobs.List().jobs
        first = d.submit(external(fits - 4))
        text = refusal(d, external(6))
        assert text.startswith(f"needs {need(6)} descriptors, other jobs hold {need(fits - 4)} of the {free} that gaccd has for jobs "
                               "(LimitNOFILE= of its unit, ulimit -Hn); in use: "), text
        waiting = d.submit(launched("sleep", 1000, ranks=6))  # who can wait does
        wait_until("its reason", lambda: d.get_job(waiting).reason.startswith(f"needs {need(6)} descriptors, other jobs hold "))
        d.cancel(first)
        wait_until("its turn", lambda: d.state(waiting) == "STARTING")
        d.cancel(waiting)
        wait_until("the launcher's end", lambda: not d.launchers())


def test_what_is_counted_is_what_is_held():
    """A job that is given exactly what it needs runs; that much is what gaccd holds for it, but for segments of other optimizers."""
    ranks = 12
    with Daemon(nofile=(64, OWN + need(ranks))) as d:
        d.client.jobs.List()
        idle, out = descriptors(d.pid), d.dir / "out"
        assert idle < OWN / 2
        out.mkdir()
        job = d.submit(launched(build_dir() / "bin/campaign_trainer", out, 100000, 1000, 5000, ranks=ranks, micro_size=2, steps=100000,
                                environment={"GACC_TEST": d.dir}, optimizer={"type": "sgd", "lr": 1}, log_dir=str(out)))
        wait_until(lambda: d.get_job(job), lambda: d.get_job(job).applied_step >= 2, 30)
        assert need(ranks) - 3 - 2 <= descriptors(d.pid) - idle <= need(ranks)
        assert descriptors(d.engine_pid(job)) < descriptors(d.pid)
        d.kill_engine(job)  # its successor needs no more
        step = d.get_job(job).applied_step
        wait_until("another step", lambda: d.get_job(job).applied_step > step + 1)
        d.cancel(job)
        wait_until("the launcher's end", lambda: not d.launchers())
        wait_until("its memory", lambda: descriptors(d.pid) <= idle + 2)


@pytest.mark.parametrize("supervise", [False, True])
def test_gaccd_takes_all_and_ranks_get_what_it_was_started_with(supervise):
    with Daemon(supervise, nofile=(100, 900)) as d:
        job = d.submit(launched("sh", "-c", "echo limit $(ulimit -Sn) $(ulimit -Hn); sleep 1000", ranks=1))
        wait_pids(d, job, 1)
        wait_until("its log", lambda: pathlib.Path(d.get_job(job).log_dir, "worker_0.log").exists())
        wait_until("its word", lambda: "limit 100 900\n" in log_of(d, job, 0))
        held = d.submit(external(1))
        [launcher] = d.launchers()  # it has a pipe for each rank
        for pid in (d.pid, d.engine_pid(held), launcher):
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (900, 900)
        d.cancel(job)
        wait_state(d, job, "CANCELLED")
        wait_until("the launcher's end", lambda: not d.launchers())


def test_a_job_whose_memory_cannot_be_kept_is_refused():
    """The store of --supervise has room for half of its descriptors, less 17."""
    with Daemon(supervise=True, nofile=(300, 300), conf={"listen.connections_per_user": 3}) as d:
        room = 300 // 2 - 16 - 1  # gaccd keeps there where its journal stands
        assert refusal(d, external(64)) == (
            f"needs {8 + 2 * 65} places in the descriptor store and can never run here: it has {room} (FileDescriptorStoreMax= of gaccd's "
            "unit, or half its supervisor's RLIMIT_NOFILE); ask for slots_per_rank: 1 or fewer ranks")
        job = d.submit(external(61))
        assert d.get_job(job).engine_pid
        d.kill_gaccd()  # all of them are there for its successor
        d.wait_ready()
        wait_state(d, job, "STARTING")
        assert d.get_job(job).engine_pid


RANKS, TENSORS, STORED = 40, [("w", [16])], 6 + 2 * (40 + 1) + 1  # the last: where the journal stands
OUTAGE = ["exited with 1; starting it again", "was killed by signal 9", "RLIMIT_NOFILE", "cannot start: a limit is reached", "FewDescriptors"]


def half_a_window(d, r):
    r.start({"w": [0] * 16})
    r.push([[1] * 16])
    d.kill_gaccd()


def it_goes_on(d, job, r):
    d.wait_ready()
    wait_state(d, job, "RUNNING")
    assert list(r.ready().missing) == [1]
    d.wait_counted(job, 0, 1)
    d.cancel(job)


def test_gaccd_does_not_start_when_it_cannot_hold_all_jobs():
    """Its limit was lowered. A job that it could not take would be lost with what was acknowledged: the service manager keeps all until it can."""
    too_few = STORED + 3 + OWN - 1
    with Daemon(systemd_ms=20000, conf={"listen.connections_per_user": 8}, allow=OUTAGE, start=False) as d:
        d.env["PLAYER_LIMIT"] = d.dir / "limit"
        d.start()
        job = d.submit(external(RANKS, tensors=TENSOR, micro_size=2))
        with Rank(d, job, 0, TENSORS, RANKS) as r:
            (d.dir / "limit").write_text(str(too_few))
            half_a_window(d, r)
            words = f"RLIMIT_NOFILE is {too_few}, but {too_few + 1} descriptors are needed for the jobs whose memory the service manager keeps"
            wait_until(lambda: d.log(), lambda: d.log().count(words) >= 2)
            (d.dir / "limit").write_text(str(STORED + 40))  # it could not even read its journal
            words = f"RLIMIT_NOFILE is {STORED + 40}, but {STORED + OWN} descriptors are needed"
            wait_until(lambda: d.log(), lambda: d.log().count(words) >= 2)
            (d.dir / "limit").write_text(str(too_few + 1))
            it_goes_on(d, job, r)
            assert " FewDescriptors: jobs may come to need " in d.log()


def test_the_supervisor_keeps_what_it_cannot_hand_over():
    with Daemon(supervise=True, allow=OUTAGE) as d:
        job = d.submit(external(RANKS, tensors=TENSOR, micro_size=2))
        with Rank(d, job, 0, TENSORS, RANKS) as r:
            was = resource.prlimit(d.supervisor_pid, resource.RLIMIT_NOFILE)
            resource.prlimit(d.supervisor_pid, resource.RLIMIT_NOFILE, (60, was[1]))
            half_a_window(d, r)
            wait_until(lambda: d.log(), lambda: d.log().count(f"{STORED} descriptors of jobs cannot be handed to gaccd: ") >= 2)
            resource.prlimit(d.supervisor_pid, resource.RLIMIT_NOFILE, was)
            it_goes_on(d, job, r)
