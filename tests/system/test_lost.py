# SPDX-License-Identifier: Apache-2.0
"""A job whose trainers are all gone does not stay for ever."""
import pathlib
import subprocess
import sys

import numpy as np

from harness import Client, Daemon, Rank, free_port, next_line, wait_until

SPEC = {"optimizer": {"type": "sgd", "lr": 1}, "ranks": 2, "micro_size": 2}
STALLED, FAILED = 4, 8


def started(daemon, **timeouts):
    """A job of two ranks that have attached and wait for nobody."""
    job = daemon.submit({**SPEC, **timeouts})
    trainers = [Rank(daemon, job, r, [("w", [4])], 2) for r in range(2)]
    for t in trainers:
        t.start({"w": np.zeros(4)})
    return job, trainers


def test_all_ranks_lost_stalls_and_is_abandoned(daemon):
    """stall_abort is for stragglers that others wait for; nobody waits here. It also limits the start, which a busy machine delays."""
    daemon.allow += [" RankLost job=", " NoRanks job=", " Ended job="]
    job, trainers = started(daemon, stall_warn_ms=300, stall_abort_ms=4000, abandoned_ms=5000)
    for t in trainers:
        t.close()  # without a word
    wait_until("stalled", lambda: daemon.get_job(job).state == STALLED)
    assert daemon.get_job(job).reason == "no rank is attached: without one the job ends after timeouts.abandoned (5 s)"
    wait_until("failed", lambda: daemon.get_job(job).state == FAILED)
    assert daemon.get_job(job).reason == "abandoned: no rank was attached for 5 s (timeouts.abandoned)"


def test_a_rank_that_is_back_saves_the_job(daemon):
    daemon.allow += [" RankLost job=", " NoRanks job=", " RankLate job="]  # the second one may be slow
    job, trainers = started(daemon, stall_warn_ms=300, abandoned_ms=60000)
    for t in trainers:
        t.close()
    wait_until("stalled", lambda: daemon.get_job(job).state == STALLED)
    again = [Rank(daemon, job, r, [("w", [4])], 2) for r in range(2)]
    for t in again:
        t.start({"w": np.zeros(4)})
    wait_until("running", lambda: daemon.state(job) == "RUNNING")
    assert [e for e in daemon.events("RanksBack") if "a rank is attached again after" in e]
    for t in again:
        t.detach()
        t.close()


def test_ranks_that_never_come(daemon):
    """A job that gaccd initialises runs without them; one that waits for their tensors does not. Both are abandoned."""
    daemon.allow += [" NoRanks job=", " Ended job="]
    times = {"stall_warn_ms": 300, "abandoned_ms": 3000}
    tensors = {"tensors": [{"name": "w", "dtype": 1, "shape": [4]}], "init": [{"pattern": "*", "type": "zeros"}]}
    jobs = [daemon.submit({**SPEC, **times}), daemon.submit({**SPEC, **times, **tensors})]
    for job, waiting in zip(jobs, ("PENDING", "STALLED")):
        wait_until("told", lambda: "no rank is attached" in daemon.get_job(job).reason)
        assert daemon.state(job) == waiting
    for job in jobs:
        wait_until("failed", lambda: daemon.get_job(job).state == FAILED)
        assert daemon.get_job(job).reason.startswith("abandoned: no rank was attached for 3 s")


def test_silent_trainers_far_away_do_not_keep_a_job(tmp_path):
    """Over TCP, in messages, without a WatchSession stream: nothing breaks when they die, and nobody can look at their processes."""
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    conf = {"listen.tcp": f"127.0.0.1:{free_port()}", "listen.token_file": token}
    with Daemon(conf=conf, allow=[" NoRanks job=", " Ended job="]) as d:
        client = Client(conf["listen.tcp"], metadata=[("authorization", "Bearer 0123456789abcdef")])
        job = d.submit({**SPEC, "stall_warn_ms": 300, "abandoned_ms": 4000})
        trainers = [Rank(d, job, r, [("w", [4])], 2, inline=True, client=client) for r in range(2)]
        for t in trainers:
            t.start({"w": np.zeros(4)})
        wait_until("stalled", lambda: d.get_job(job).state == STALLED)
        trainers[0].push({"w": np.zeros(4)})  # one is heard
        wait_until("running", lambda: d.state(job) == "RUNNING")
        wait_until("failed", lambda: d.get_job(job).state == FAILED)
        assert d.get_job(job).reason == "abandoned: no rank was attached for 4 s (timeouts.abandoned)"
        client.close()


CHILD = """
import os, sys, time
import numpy as np
from harness import Client, Rank
client = Client(sys.argv[1])
times = {"stall_warn_ms": 300, "abandoned_ms": 2500}
spec = client.types.spec(name=sys.argv[2], ranks=1, micro_size=1, optimizer={"type": "sgd", "lr": 1}, **times)
r = Rank(sys.argv[1], sys.argv[2], 0, [("w", [4])], 1, inline="inline" in sys.argv[2], create_if_missing=spec)
if "attached" not in sys.argv[2]:
    r.start({"w": np.zeros(4)})
print(r.attached.job_id, flush=True)
time.sleep(100)
"""


def test_a_job_that_its_process_has_made_ends_without_it(supervised):
    """By Attach with create_if_missing, as a script makes it: nobody would cancel it, and it counts among the user's jobs. Also when gaccd dies
    meanwhile: its time begins anew then."""
    supervised.allow += [" RankLost job=", " NoRanks job=", " Ended job="]
    jobs, children = [], []
    for how in "mapped", "inline", "attached mapped", "attached inline":
        child = subprocess.Popen([sys.executable, "-c", CHILD, supervised.endpoint, how], stdout=subprocess.PIPE, text=True, cwd=pathlib.Path(__file__).parent)
        children.append(child)
        jobs.append(int(next_line(child)))
    for child in children:
        child.kill()
        child.wait()
        child.stdout.close()
    supervised.kill_gaccd()
    supervised.wait_ready()
    for job in jobs:
        wait_until(lambda: f"{job} is over: {supervised.get_job(job)}", lambda: supervised.get_job(job).state == FAILED)
        assert supervised.get_job(job).reason.startswith("abandoned: no rank was attached for 2.5 s")
