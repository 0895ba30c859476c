# SPDX-License-Identifier: Apache-2.0
"""Real processes and real SIGKILLs: trainers, engines, gaccd, all of them. Whatever dies, the job ends with the bits of a run in
which nothing died, and each micro-batch is in it once, with its weight (workload.py)."""
import concurrent.futures
import json
import os
import pathlib
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import time

import numpy as np
import pytest

from harness import SLOWER, Daemon, GaccError, Rank, alive, build_dir, parent_and_state, wait_until
from test_failpoints import Control
from workload import Workload, run_in_order, train

TRAINERS = pathlib.Path(__file__).parent / "trainers"
RANK_LOST = " RankLost job="
SGD = Workload(ranks=2, micro_size=3, steps=5, elements=50_000)
ADAMW = Workload(ranks=2, micro_size=3, steps=5, elements=50_000, optimizer="adamw", clip_norm=1.0)
both_optimizers = pytest.mark.parametrize("work", [SGD, ADAMW], ids=["sgd", "adamw"])


class Trainer:
    """train.py or another script of trainers/ as a process, which is gone when its daemon is."""

    def __init__(self, daemon, job, rank, work, *more, script="train.py"):
        self.out, self.log = daemon.dir / f"{job}.{rank}.npz", daemon.dir / f"{job}.{rank}.{time.monotonic_ns()}.log"
        command = [sys.executable, TRAINERS / script, daemon.endpoint, str(job), str(rank), work.to_json()]
        if script in ("train.py", "train_package.py"):
            command.append(self.out)
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([*command, *more], stdin=subprocess.PIPE, stdout=log, stderr=log,
                                            env={**os.environ, "GACC_TEST": str(daemon.dir)})
        self.pid = self.process.pid

    def lines(self, n, timeout=30):
        """The first n lines it printed."""
        def printed():
            assert self.process.poll() in (None, 0, -signal.SIGKILL), self.log.read_text()
            lines = self.log.read_text().splitlines()
            return lines[:n] if len(lines) >= n else None
        return wait_until(lambda: f"{n} lines: {self.log.read_text()}", printed, timeout)

    def resumed(self):
        """Where it began: (window, missing); None: the job had ended."""
        line = json.loads(self.lines(1)[0])
        return line and (line["window"], line["missing"])

    def wait_stopped(self):
        wait_until(lambda: f"stop: {self.log.read_text()}", lambda: parent_and_state(self.pid)[1] == "T", 30)

    def wait_killed(self):
        assert self.process.wait(60) == -signal.SIGKILL, self.log.read_text()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def params(self, timeout=120):
        """Its parameters at the job's end; None if it came when the job had ended."""
        assert self.process.wait(timeout) == 0, self.log.read_text()
        return dict(np.load(self.out)) if self.out.exists() else None


class Threads:
    """The ranks of a job as threads of this process: they outlive what is killed around them."""

    def __init__(self, daemon, work, pause=0.0):
        """`pause`: seconds before each push, so that the job lasts long enough to be disturbed."""
        self.job = daemon.submit(work.spec)
        self.trainers = [Rank(daemon, self.job, rank, work.tensors, work.ranks) for rank in range(work.ranks)]
        self.tokens = [t.session.token for t in self.trainers]
        for t in self.trainers:
            t.register()
        self.trainers[0].put_params(work.initial())
        for t in self.trainers:
            t.ready()
        self.pool = concurrent.futures.ThreadPoolExecutor(work.ranks)
        self.runs = [self.pool.submit(self._train, t, work, pause) for t in self.trainers]

    @staticmethod
    def _train(trainer, work, pause):
        return train(trainer, work, lambda params, micro: (time.sleep(pause), work.push(trainer, params, micro)))

    @property
    def done(self):
        return all(run.done() for run in self.runs)

    def params(self, timeout=120):
        """Of all ranks at the job's end. They must have kept their first sessions."""
        results = [run.result(timeout) for run in self.runs]
        assert [t.session.token for t in self.trainers] == self.tokens
        for t in self.trainers:
            t.detach()
            t.close()
        self.pool.shutdown()
        return results


def check_all(work, results):
    for params in results:
        work.check(params)


# ---- trainers ----


@both_optimizers
def test_trainer_killed_between_filling_a_slot_and_pushing_it(daemon, work):
    daemon.allow.append(RANK_LOST)
    job = daemon.submit(work.spec)
    first, dying = Trainer(daemon, job, 0, work), Trainer(daemon, job, 1, work, "--at", "fill:2:1")
    dying.wait_killed()
    wait_until("the loss to be noticed", lambda: daemon.events("RankLost"))
    again = Trainer(daemon, job, 1, work)
    assert again.resumed() == (2, [1, 2])
    check_all(work, [first.params(), again.params()])


@both_optimizers
def test_trainer_killed_after_the_flip_before_it_sees_the_reply(daemon, work):
    daemon.allow.append(RANK_LOST)
    job = daemon.submit(work.spec)
    first, dying = Trainer(daemon, job, 0, work), Trainer(daemon, job, 1, work, "--at", "sent:2:1")
    dying.wait_stopped()
    daemon.wait_counted(job, 1, 2)
    assert daemon.get_job(job).window == 2
    dying.kill()
    again = Trainer(daemon, job, 1, work)
    assert again.resumed() == (2, [2])
    check_all(work, [first.params(), again.params()])


def test_trainer_killed_with_its_window_full(daemon):
    """Nothing is missing of that window: the new process goes on with the next."""
    daemon.allow.append(RANK_LOST)
    job = daemon.submit(SGD.spec)
    first, dying = Trainer(daemon, job, 0, SGD), Trainer(daemon, job, 1, SGD, "--at", "kill:2:2")
    dying.wait_killed()
    wait_until("the next window", lambda: daemon.get_job(job).window == 3)
    again = Trainer(daemon, job, 1, SGD)
    assert again.resumed() == (3, [0, 1, 2])
    check_all(SGD, [first.params(), again.params()])


def test_all_trainers_killed_at_once(daemon):
    work = Workload(ranks=3, micro_size=3, steps=4, elements=1000)
    daemon.allow.append(RANK_LOST)
    job = daemon.submit(work.spec)
    dying = [Trainer(daemon, job, rank, work, "--at", at) for rank, at in
             enumerate(["sent:1:2", "sent:1:1", "fill:1:1"])]
    dying[2].wait_killed()
    dying[1].wait_stopped()  # rank 0 waits with micro-batch 2 for rank 2: it is not counted yet
    for t in dying[:2]:
        t.kill()
    again = [Trainer(daemon, job, rank, work) for rank in range(2)]
    assert [t.resumed() for t in again] == [(1, [2]), (1, [2])]
    again.append(Trainer(daemon, job, 2, work))
    assert again[2].resumed() == (1, [1, 2])
    check_all(work, [t.params() for t in again])


def test_zombie_is_fenced_and_its_writes_reach_nothing(daemon):
    daemon.allow.append(RANK_LOST)
    job = daemon.submit(SGD.spec)
    zombie = Trainer(daemon, job, 1, SGD, script="zombie.py")
    first = Trainer(daemon, job, 0, SGD)
    zombie.wait_stopped()
    again = Trainer(daemon, job, 1, SGD, "--at", "sent:0:1")  # holds the window open while the zombie writes
    assert again.resumed() == (0, [1, 2])
    again.wait_stopped()
    os.kill(zombie.pid, signal.SIGCONT)
    assert zombie.lines(1) == ["SESSION_FENCED"]
    os.kill(again.pid, signal.SIGCONT)
    results = [first.params(), again.params()]
    zombie.process.stdin.close()
    assert zombie.process.wait(10) == 0
    check_all(SGD, results)


# ---- engines ----


class Aim:
    """A random delay after which something is still under way: shorter after a miss, longer after a hit."""

    def __init__(self, seed, longest):
        self.rng, self.longest, self.hits, self.shots = random.Random(seed), longest, 0, 0

    def wait(self):
        end = time.monotonic() + self.rng.uniform(0, self.longest)
        while time.monotonic() < end:
            pass

    def note(self, hit):
        self.shots, self.hits = self.shots + 1, self.hits + bool(hit)
        self.longest *= 1.5 if hit else 0.7

    def goes_on(self, hits):
        """Whether another run is needed for so many hits; on a busy machine most shots come too late."""
        return self.hits < hits and self.shots < 200


def test_engine_killed_while_it_adds(one_thread):
    """At random moments of a push; the arena is large, so that most of a push is the pass over it."""
    work, aim = Workload(ranks=2, micro_size=3, steps=10, elements=(1 << 22) // SLOWER), Aim(1, 0.004)

    def push(trainer, params, micro):
        if (micro + trainer.rank) % 3 == 0:
            work.push(trainer, params, micro)
            return
        engine = one_thread.engine_pid(trainer.job)
        trainer.fill(work.gradients(params, trainer.window, micro, trainer.rank))
        future = trainer.push_async(micro=micro, slot=0, **work.header(trainer.window, micro, trainer.rank))
        aim.wait()
        counted = trainer.status().counted
        one_thread.kill_engine(trainer.job, engine)
        aim.note(trainer.status().counted == counted and not future.done())
        assert future.result().result in (1, 2)  # COUNTED; DUPLICATE if the flip was before the kill

    while aim.goes_on(5):
        work.check(run_in_order(one_thread, work, push))
    print(f"engine killed {aim.shots} times, {aim.hits} of them with a push sent and not counted")
    assert aim.hits >= 5


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_engine_killed_while_it_updates(one_thread, optimizer):
    """At random moments of the update: the status page's seq is odd while parameters are being written."""
    work = Workload(ranks=2, micro_size=1, steps=20, elements=(1 << 23) // SLOWER, slots=1, optimizer=optimizer)
    aim, longest = Aim(2, 0.004), 0.0

    def push(trainer, params, micro):
        nonlocal longest
        engine = one_thread.engine_pid(trainer.job)
        work.push(trainer, params, micro)
        if micro + 1 < work.micro_size or trainer.rank + 1 < work.ranks:
            return
        wait_until("the update's begin", lambda: trainer.status().seq & 1 or trainer.status().window > trainer.window, every=0)
        aim.wait()
        one_thread.kill_engine(trainer.job, engine)
        aim.note(trainer.status().seq & 1)
        begin = time.monotonic()
        wait_until("the update's end", lambda: trainer.status().window > trainer.window)
        longest = max(longest, time.monotonic() - begin)

    while aim.goes_on(4):
        work.check(run_in_order(one_thread, work, push))
    print(f"{optimizer}: engine killed {aim.shots} times, {aim.hits} of them in the middle of an update, which was "
          f"complete after {longest:.2f} s at most")
    assert aim.hits >= 4


# ---- gaccd ----


@both_optimizers
def test_gaccd_killed_in_the_middle_of_a_window(supervised, work):
    """Acknowledged pushes are kept, and trainers go on with their old sessions."""
    rng, kills = random.Random(3), 0

    def push(trainer, params, micro):
        nonlocal kills
        work.push(trainer, params, micro)
        if rng.random() < 0.25:
            supervised.kill_gaccd()
            kills += 1
            supervised.wait_counted(trainer.job, trainer.rank, micro + 1, trainer.window)

    work.check(run_in_order(supervised, work, push))
    print(f"gaccd killed {kills} times")
    assert kills >= 4


def test_gaccd_killed_at_random_moments(supervised):
    work, rng, kills = Workload(ranks=3, micro_size=3, steps=40, elements=200_000, optimizer="adamw"), random.Random(4), 0
    run = Threads(supervised, work, pause=0.02)
    while not run.done and kills < 8:
        time.sleep(rng.uniform(0, 0.4))
        supervised.kill_gaccd()
        supervised.wait_ready()
        kills += 1
    check_all(work, run.params())
    print(f"gaccd killed {kills} times")
    assert kills >= 4


@pytest.mark.parametrize("when", ["before", "after"])
@both_optimizers
def test_gaccd_killed_around_the_sync_of_a_commit(when, work):
    """The commit is decided by what is in the journal: after the sync it is the old life's, before it the new life's. (What SQLite
    wrote and did not sync is in the page cache, which survives a SIGKILL: before the sync, either may be found.)"""
    with Daemon(supervise=True, start=False, conf={"limits.journal_reserve": "1MiB"}) as d:
        kill_file, kills = d.dir / "kill", 0
        d.start(env={"LD_PRELOAD": str(build_dir() / "lib/kill_after_sync.so"), "GACC_KILL_FILE": str(kill_file)})
        # from now on gaccd writes no more of the reserve, each piece of which is a commit
        wait_until("the journal's reserve", lambda: d.client.node.GetNode().state_disk.journal_reserve == 1 << 20)

        def push(trainer, params, micro):
            nonlocal kills
            last = micro + 1 == work.micro_size and trainer.rank + 1 == work.ranks
            if last and trainer.window in (1, 3):
                kill_file.write_text(f"{when} 1\n")
                kills += 1
            work.push(trainer, params, micro)
            if last and trainer.window in (1, 3):
                wait_until("the shim to fire", lambda: not kill_file.exists())
                d.killed += 1

        params = run_in_order(d, work, push)
        d.stop()  # it has the journal to itself
        with sqlite3.connect(d.dir / "state/journal.sqlite") as journal:
            terms = dict(journal.execute("SELECT window, term FROM windows"))
            outcomes = [o for o, in journal.execute("SELECT outcome FROM windows ORDER BY window")]
        assert kills == 2 and outcomes == [1] * work.steps
        if when == "after":
            first = terms[0]
            assert [terms[w] for w in range(5)] == [first, first, first + 1, first + 1, first + 2]
        work.check(params)


def test_gaccd_and_engine_killed_together(supervised):
    work, rng, kills = Workload(ranks=2, micro_size=3, steps=20, elements=1 << 19, optimizer="adamw"), random.Random(5), 0
    run = Threads(supervised, work, pause=0.02)
    while not run.done and kills < 6:
        time.sleep(rng.uniform(0, 0.3))
        engines = supervised.engine_pids()
        if rng.random() < 0.5:
            engines and supervised.kill_engine(run.job, engines[0])
            supervised.kill_gaccd()
        else:
            supervised.kill_gaccd()
            engines and alive(engines[0]) and supervised.kill_engine(run.job, engines[0])
        supervised.wait_ready()
        kills += 1
    check_all(work, run.params())
    assert kills >= 3


def test_gaccd_killed_when_the_job_has_ended(supervised):
    """A rank that is slow to ask still hears of the last step, and reads the parameters where it has them mapped."""
    work = Workload(ranks=2, micro_size=1, steps=2, elements=1000)
    run = Threads(supervised, work)
    for r in run.runs:
        r.result(60)
    wait_until("the job's end", lambda: supervised.state(run.job) == "COMPLETED")
    told = supervised.get_job(run.job).last
    supervised.kill_gaccd()
    late = run.trainers[1]
    step = late.wait_step(window=work.steps - 1)
    assert told.params_digest and str(step.result) == str(told)
    assert step.job_done and (step.result.outcome, step.result.applied_step) == (1, work.steps)
    assert late.push(window=work.steps - 1, micro=0).result == 3  # ALREADY_COMMITTED
    with Rank(supervised, run.job, 1, work.tensors, work.ranks, inline=True, attach=False, client=late.client) as inline:
        inline.session, inline.registered, inline.layout = late.session, late.registered, late.layout
        assert inline.push([], window=work.steps - 1, micro=0).result == 3
        inline.session = None
    with pytest.raises(GaccError) as e:
        late.push(micro=0)
    assert e.value.reason == "JOB_ENDED" and "all steps are applied" in e.value.text
    check_all(work, run.params())


def test_memory_that_is_lost_ends_the_job_and_says_so():
    with Daemon(supervise=True, allow=[r" Ended job=\d+ .*memory is gone"]) as d:
        job = d.submit(SGD.spec)
        trainer = Rank(d, job, 0, SGD.tensors, SGD.ranks)
        trainer.start(SGD.initial())
        SGD.push(trainer, trainer.params(), 0)
        d.kill_supervisor()
        d.start()
        wait_until("the job's end", lambda: d.state(job) == "NODE_FAIL")
        assert "memory is gone" in d.get_job(job).reason
        with pytest.raises(GaccError) as e:
            trainer.ready(timeout=5)
        assert e.value.reason == "JOB_ENDED" and "memory is gone" in e.value.text
        trainer.close()


@pytest.mark.failpoints
def test_no_rank_begins_before_the_journal_knows_of_the_parameters(daemon):
    """A job without that record begins anew when its memory is lost: what it had counted would be lost without a word."""
    control = Control(daemon.dir / "run/failpoints.sock")
    control.do("arm coord_params_before sleep 1500")
    job = daemon.submit({**SGD.spec, "ranks": 1})
    trainer = Rank(daemon, job, 0, SGD.tensors, 1)
    trainer.register()
    trainer.put_params(SGD.initial())
    begin = time.monotonic()
    trainer.ready()
    assert time.monotonic() - begin > 1
    control.do("disarm all")
    control.close()
    daemon.cancel(job)
    trainer.close()


def test_one_jobs_deaths_do_not_touch_another(daemon):
    """Its engine dies again and again; the neighbour's engine, sessions and bits are those of a quiet node."""
    works = [Workload(ranks=2, micro_size=3, steps=25, elements=200_000, momentum=0),
             Workload(ranks=2, micro_size=3, steps=25, elements=200_000, optimizer="adamw", clip_norm=1.0)]
    unlucky, neighbour = runs = [Threads(daemon, work, pause=0.01) for work in works]
    engine, kills = daemon.engine_pid(neighbour.job), 0
    while not unlucky.done:
        step = daemon.get_job(unlucky.job).applied_step
        daemon.kill_engine(unlucky.job)
        kills += 1
        wait_until("a step of the new engine", lambda: unlucky.done or daemon.get_job(unlucky.job).applied_step > step)
        time.sleep(0.1)
    for work, run in zip(works, runs):
        check_all(work, run.params())
    about = daemon.get_job(neighbour.job)
    assert kills >= 3 and about.engine_restarts == 0 and about.engine_pid in (0, engine)
    assert not any(f" job={neighbour.job} " in line for line in daemon.events("EngineLost") + daemon.events("EngineExited"))


# ---- everything ----


class Campaign:
    """One job under random kills, until it is done."""

    def __init__(self, daemon, work, rng):
        self.daemon, self.work, self.rng = daemon, work, rng
        self.job = daemon.submit(work.spec)
        self.trainers = [Trainer(daemon, self.job, rank, work) for rank in range(work.ranks)]
        for t in self.trainers:
            t.resumed()
        self.recovery = {"engine": [], "gaccd": [], "trainer": [], "gaccd and engine": []}

    def over(self):
        return all(t.process.poll() is not None for t in self.trainers)

    def engine_is_up(self, killed):
        try:
            job = self.daemon.client.jobs.Get(job=str(self.job), retry=False, timeout=1).job
        except GaccError:
            return False
        return job.engine_pid not in killed or job.state == 7  # COMPLETED

    def kill(self, what):
        """Pids that are no engine any more, 0 included."""
        killed = [0]
        if "engine" in what:
            for pid in self.daemon.engine_pids():
                killed.append(self.daemon.kill_engine(self.job, pid))
        if "gaccd" in what:
            self.daemon.kill_gaccd()
        if what == "trainer":
            rank = self.rng.randrange(self.work.ranks)
            if self.trainers[rank].process.poll() is None:
                self.trainers[rank].kill()
                self.trainers[rank] = Trainer(self.daemon, self.job, rank, self.work)
        return killed

    def one_fault(self):
        what = self.rng.choices(list(self.recovery), [5, 3, 3, 2])[0]
        killed = self.kill(what)
        begin = time.monotonic()
        wait_until(f"recovery from the death of {what}", lambda: self.engine_is_up(killed), 30)
        if what == "trainer":
            for t in self.trainers:
                t.process.poll() is None and t.resumed()
        self.recovery[what].append(time.monotonic() - begin)

    def run(self):
        while not self.over():
            time.sleep(self.rng.uniform(0, 0.3))
            self.one_fault()
        results = [p for p in (t.params() for t in self.trainers) if p]
        assert results
        check_all(self.work, results)
        return self.recovery


@pytest.mark.campaign
def test_campaign():
    seed, seconds = int(os.environ.get("GACC_SEED", "7")), float(os.environ.get("GACC_CAMPAIGN_S", "60"))
    rng, end, jobs, all_times = random.Random(seed), time.monotonic() + seconds, 0, {}
    works = [Workload(ranks=3, micro_size=4, steps=60, elements=300_000, momentum=0),
             Workload(ranks=2, micro_size=3, steps=60, elements=300_000, optimizer="adamw", clip_norm=0.5)]
    with Daemon(supervise=True, allow=[RANK_LOST]) as d:
        while time.monotonic() < end:
            for what, times in Campaign(d, works[jobs % 2], rng).run().items():
                all_times.setdefault(what, []).extend(times)
            jobs += 1
    print(f"seed {seed}: {jobs} jobs, {sum(map(len, all_times.values()))} kills")
    for what, times in all_times.items():
        if times:
            print(f"  {what}: {len(times)} kills, recovered after {statistics.median(times):.2f} s (median), {max(times):.2f} s (most)")
    assert jobs and sum(map(len, all_times.values())) > seconds / 4
