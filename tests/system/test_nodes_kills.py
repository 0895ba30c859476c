# SPDX-License-Identifier: Apache-2.0
"""Jobs on two to four nodes whose ranks, engines and gaccds are killed at any time, and whose engines stop in the middle of an exchange. No
node is lost: its supervisor keeps the memory. Each micro-batch must be in the result once, with its weight, and the parameters must have the
bits of a run on one gaccd with as many parts in which nothing died.

GACC_NODES_KILLS: SIGKILLs in all (40). GACC_NODES: on how many nodes ("2,3,4"). GACC_SEED: of the random choices; the failing run prints
its own. tests/long.sh nodes has more, and nodes-asan and nodes-tsan some in builds with sanitizers.
"""
import contextlib
import os
import random
import signal
import subprocess
import time

import pytest

from cli import Cli
from cluster import Cluster
from harness import Daemon, GaccError, alive, build_dir, wait_until
from test_campaign import EVERYBODY, LOUD, MICRO_SIZE, NOBODY, RANKS, WORKS
from test_nodes import ALLOW, QUICK, drawn, over, push
from test_parts import spec

KILLS = int(os.environ.get("GACC_NODES_KILLS", "40"))
SEED = int(os.environ.get("GACC_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
KINDS = {"rank": 6, "engine": 6, "node": 3, "coordinator": 3, "stop": 2}  # how often each, and each once at least; a stop is none of the kills
PAUSE_US = 2000  # of a rank, before each of its pushes
SIZES = [int(n) for n in os.environ.get("GACC_NODES", "2,3,4").split(",")]


class Ranks:
    """The trainers of one job, as a user's scheduler would keep them: one that was killed is started again, by `look`."""

    def __init__(self, work, job, out, place, pause_us=0, by_rpc=NOBODY):
        """place: the daemon of each rank's node. by_rpc: a bit for each rank that uses no mailbox."""
        self.job, self.out, self.place = job, out, place
        self.command = [build_dir() / "bin/campaign_trainer", out, str(work.steps), str(work.elements), str(pause_us)]
        self.env = {**os.environ, "GACC_JOB_ID": str(job), "GACC_WORLD_SIZE": str(RANKS), "GACC_MICRO_SIZE": str(MICRO_SIZE),
                    "TEST_LR": str(work.push_lr), "TEST_BY_RPC": f"{by_rpc:x}"}
        self.running, self.restarts = {}, 0
        for rank in range(RANKS):
            self.start(rank)

    def start(self, rank):
        node = self.place[rank]
        env = {**self.env, "GACC_ENDPOINT": node.endpoint, "GACC_RANK": str(rank), "GACC_TEST": str(node.dir)}
        with open(self.out / f"rank_{rank}.log", "ab") as log:
            self.running[rank] = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)

    def look(self):
        """Whether all are done."""
        for rank, process in list(self.running.items()):
            code = process.poll()
            if code == -signal.SIGKILL:
                self.restarts += 1
                self.start(rank)
            elif code is not None:
                del self.running[rank]
                assert code == 0, f"rank {rank} ended with {code}:\n{(self.out / f'rank_{rank}.log').read_text()[-2000:]}"
        return not self.running

    def kill(self):
        for process in self.running.values():
            process.kill()
            process.wait()


def train(work, daemon, out, spec, place, during=None, **how):
    """One job from its submission to its end; `during(ranks)` while it runs."""
    out.mkdir()
    job = daemon.submit({"name": work.name, "ranks": RANKS, "micro_size": MICRO_SIZE, "steps": work.steps, "stall_warn_ms": 20000,
                         "checkpoint": {"dir": str(out / "checkpoint"), "at_end": True}, **work.spec, **spec})
    ranks = Ranks(work, job, out, place, **how)
    try:
        if during:
            during(ranks)
        wait_until(lambda: f"the ranks of {daemon.get_job(job)}", ranks.look, 120)
        wait_until(lambda: f"the end of {daemon.get_job(job)}", lambda: daemon.state(job) == "COMPLETED", 30)
    finally:
        ranks.kill()


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """(work, parts) -> the parameters of an undisturbed run on one gaccd."""
    found = {}
    with Daemon(conf={"engine.threads": 1}) as d:
        def run(work, parts):
            if (work.name, parts) not in found:
                out = tmp_path_factory.mktemp(work.name) / "out"
                train(work, d, out, {"parts": parts}, [d] * RANKS)
                found[work.name, parts] = work.results(out)[0]
                work.check(out, found[work.name, parts])
            return found[work.name, parts]
        yield run


class Campaign:
    """Faults for the jobs of one cluster."""

    def __init__(self, cluster, rng, kills):
        self.cluster, self.rng, self.until = cluster, rng, kills
        self.did, self.stopped, self.last_step = dict.fromkeys(KINDS, 0), [], 0
        for node in cluster.nodes.values():
            node.engines_killed = True

    @property
    def n_kills(self):
        return sum(n for kind, n in self.did.items() if kind != "stop")

    @property
    def is_over(self):
        return self.n_kills >= self.until and all(self.did.values())

    def draw(self):
        """A kind of fault. Half of the time one that has not been yet, so that a short campaign has all of them, too."""
        missing = [kind for kind, n in self.did.items() if not n]
        if missing and self.rng.random() < 0.5:
            return self.rng.choice(missing)
        return self.rng.choices(list(KINDS), KINDS.values())[0]

    def one(self, kind, ranks):
        """Whether something has happened."""
        if kind in ("node", "coordinator"):
            self.cluster[self.rng.choice([n for n in self.cluster.names if (n == "a") == (kind == "coordinator")])].kill_gaccd()
            return True
        pids = [p.pid for p in ranks.running.values()] if kind == "rank" else [p for n in self.cluster.nodes.values() for p in n.engine_pids()]
        pids = [p for p in pids if alive(p)]
        if not pids:
            return False
        pid = self.rng.choice(pids)
        if kind == "stop":
            self.stopped.append((pid, time.monotonic() + self.rng.uniform(0.2, 2.5)))  # an exchange waits for 1 s
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
            return True
        return False

    def let_go_on(self, all=False):
        for pid, until in list(self.stopped):
            if all or time.monotonic() >= until:
                self.stopped.remove((pid, until))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def steps(self, job):
        """How many it has made; None: nobody can say. An ended job has made all."""
        try:
            found = self.cluster.coordinator.client.jobs.Get(job=str(job), retry=False, timeout=2).job
        except GaccError:
            return None
        return found.applied_step

    def look(self, ranks):
        self.let_go_on()
        return ranks.look()

    def pause(self, ranks):
        """Until the job gets on, or only a moment, so that faults hit what mends the one before. Whether the job is over."""
        before, end = None, time.monotonic() + self.rng.uniform(0, 0.3)
        gets_on = self.rng.random() < 0.5

        def go_on():
            nonlocal before
            if self.look(ranks):
                return True
            if not gets_on:
                return time.monotonic() >= end
            now = self.steps(ranks.job)
            before = now if before is None else before
            return now is not None and now > before
        wait_until(lambda: f"a step of {self.cluster.coordinator.get_job(ranks.job)}", go_on, 60, 0.005)
        return self.look(ranks)

    def during(self, ranks):
        """Until there are enough kills and there was one of each kind, or the job has not got much left to do: a checkpoint is tried twice, and not more often."""
        while not self.is_over and not self.pause(ranks) and (self.steps(ranks.job) or 0) < self.last_step:
            for _ in range(2 if self.rng.random() < 0.3 else 1):  # the second one within a millisecond or two of the first
                kind = self.draw()
                self.did[kind] += self.one(kind, ranks)
        while self.stopped:
            self.look(ranks)
            time.sleep(0.01)

    def job(self, out, reference):
        """One job under faults, and the check of what it has learnt."""
        names = self.rng.sample(self.cluster.names, len(self.cluster.names))
        if len(names) > 2 and self.rng.random() < 0.3:
            names.remove("a")  # it coordinates, and has no part
        parts, work = self.rng.randint(len(names), RANKS), self.rng.choice(WORKS)
        self.last_step = work.steps - 2
        by_rpc = self.rng.choice([NOBODY, EVERYBODY, self.rng.getrandbits(RANKS)])
        place = [self.cluster.node_of_rank(r, RANKS, parts, names) for r in range(RANKS)]
        size = self.rng.choice([k for k in range(1, parts + 1) if parts % k == 0])
        sharding = self.rng.choice([{}, {"sharding": "full"}, {"sharding": "hybrid", "shard_size": size}])
        print(f"{work.name}, {parts} parts on {','.join(names)}, {sharding}, by RPC {by_rpc:x}")
        try:
            train(work, self.cluster.coordinator, out, {"parts": parts, "nodes": ",".join(names), **sharding}, place, self.during, pause_us=PAUSE_US, by_rpc=by_rpc)
        finally:
            self.let_go_on(all=True)
        work.check(out, reference(work, parts))


@pytest.mark.parametrize("nodes", SIZES)
def test_kills_change_no_bit(nodes, reference, tmp_path):
    print(f"GACC_SEED={SEED}")
    begin, jobs = time.monotonic(), 0
    with Cluster(nodes, conf=QUICK, allow=[*ALLOW, *LOUD]) as cluster:
        campaign = Campaign(cluster, random.Random(f"{SEED} {nodes}"), -(-KILLS // len(SIZES)))
        while not campaign.is_over:
            campaign.job(tmp_path / f"{jobs}", reference)
            jobs += 1
            assert jobs < 10 + campaign.until, f"faults that cannot be had: {campaign.did}"
    print(f"{nodes} nodes, {jobs} jobs: {campaign.n_kills} kills {campaign.did} in {time.monotonic() - begin:.0f} s")
    assert campaign.n_kills >= campaign.until and all(campaign.did.values()), campaign.did


@pytest.mark.parametrize("goes_on", [True, False], ids=["continued", "killed by its gaccd"])
def test_an_engine_stops_in_an_exchange(goes_on):
    """The engines of the other nodes say for whom they wait; the attempt is repeated when it goes on, or when another has taken its place."""
    conf = {**QUICK, **({} if goes_on else {"engine.timeout": "2s"})}
    with Cluster(2, conf=conf, allow=[*ALLOW, *LOUD, *([] if goes_on else [" EngineHung "])]) as cluster:
        c = over(cluster, spec(ranks=2, parts=2))
        for node in cluster.nodes.values():
            node.engines_killed = True
        c.window()
        sent = drawn(c)
        push(c, sent, 1)  # all of part 1: it waits for the exchange
        pid = c.pids()[1]
        os.kill(pid, signal.SIGSTOP)
        try:
            push(c, sent, 0)
            wait_until("an attempt that names the part", lambda: any("part 0 (node a) cannot reach part 1 (node b): " in line for line in cluster["a"].events("AttemptFailed")), 20)
            b = Cli(cluster["b"].dir, cluster["b"].endpoint)
            assert [line.split()[6:] for line in b.run("comms", c.team.job, "--no-headers").splitlines()] in ([["1", "(b)"], []], [["1", "(b)"], ["0", "(a)"]])
            assert "(node a) cannot reach part 1 (node b): " in b.run("events", c.team.job)
        finally:
            if goes_on:
                os.kill(pid, signal.SIGCONT)
        c.check(sent, [r.wait_step() for r in c.team.ranks][0].result)
        assert alive(pid) == goes_on
        c.window()
        c.close()
