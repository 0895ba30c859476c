# SPDX-License-Identifier: Apache-2.0
"""The fault campaign: 8 ranks, micro_size 16, started by gaccd; trainers, the engine, gaccd, the launcher and pairs of them are killed by
SIGKILL at random, 1 to 20 a second. Each micro-batch must be in the result once, with its weight, and the parameters must have the bits of a run in
which nothing died.

GACC_KILLS: how many kills in all (320). GACC_SEED: of the random choices; the failing run prints its own. tests/long.sh campaign runs 10,000.
"""
import os
import random
import signal
import statistics
import time

import numpy as np
import pytest

from harness import Daemon, GaccError, alive, build_dir, wait_until
from saving_job import read_safetensors

RANKS, MICRO_SIZE = 8, 16
KILLS = int(os.environ.get("GACC_KILLS", "320"))
SEED = int(os.environ.get("GACC_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
STATES = {"RUNNING": 3, "STALLED": 4, "COMPLETING": 6, "COMPLETED": 7}
ATTACHED = (2, 3, 4, 5)  # RankState ATTACHED, COMPUTING, WAITING, LATE
KINDS = ("trainer", "engine", "gaccd", "launcher")
NOBODY, EVERYBODY = 0, (1 << RANKS) - 1  # of the ranks without a mailbox
LOUD = ["RankLost", "RankExited", "RankRestarted", "Launcher", "EngineExited", "EngineLost", "EngineFailing", "RankLate", "was killed by signal 9"]


class Work:
    """What campaign_trainer.c does, and what must come out."""

    def __init__(self, name, steps, elements, push_lr=0, **spec):
        self.name, self.steps, self.elements, self.push_lr, self.spec = name, steps, elements, push_lr, spec
        self.ledger = steps * RANKS * MICRO_SIZE

    def submit(self, daemon, out, pause_us, by_rpc=0):
        """by_rpc: a bit for each rank that uses no mailbox."""
        out.mkdir(exist_ok=True)
        command = [str(build_dir() / "bin/campaign_trainer"), str(out), str(self.steps), str(self.elements), str(pause_us)]
        return daemon.submit({
            "name": self.name, "ranks": RANKS, "micro_size": MICRO_SIZE, "steps": self.steps, "launch": "daemon", "log_dir": str(out),
            "stall_warn_ms": 20000, "checkpoint": {"dir": str(out / "checkpoint"), "at_end": True},
            "launch_command": {"command": command, "max_restarts": 1_000_000, "grace_ms": 2000,
                               "environment": [{"key": "GACC_TEST", "value": str(daemon.dir)},
                                               # else a rank's exit code tells of gRPC's own races, and it is started again
                                               {"key": "TSAN_OPTIONS", "value": os.environ.get("TSAN_OPTIONS", "")},
                                               {"key": "TEST_LR", "value": str(self.push_lr)},
                                               {"key": "TEST_BY_RPC", "value": f"{by_rpc:x}"}]}, **self.spec})

    def weight(self, g):
        window, rest = divmod(g, RANKS * MICRO_SIZE)
        micro, rank = divmod(rest, RANKS)
        return 0.5 + 0.25 * ((5 * window + 3 * micro + 7 * rank) % 12)

    def results(self, out):
        """Bytes of the parameters of every rank that wrote them."""
        return [p.read_bytes() for p in sorted(out.glob("params_*.bin"))]

    def saved(self, out):
        """Bytes of the parameters in the checkpoint of the end: none of the ranks need have lived to see it."""
        model = read_safetensors(next(out.glob("checkpoint/*/model.safetensors")))
        return model["ledger"][2] + model["body"][2]

    def check(self, out, reference):
        for bits in [*self.results(out), self.saved(out)]:
            assert len(bits) == 4 * (self.ledger + self.elements)
            values = np.frombuffer(bits, np.float32)
            if self.spec["optimizer"]["type"] == "sgd":
                counted = -values[:self.ledger].astype(np.float64)
                wrong = [(g, counted[g], self.weight(g)) for g in range(self.ledger) if counted[g] != self.weight(g)]
                assert not wrong, f"{len(wrong)} micro-batches are not in it once: (number, is, must be) {wrong[:8]}"
            assert bits == reference, f"{np.count_nonzero(values.view(np.uint32) != np.frombuffer(reference, np.uint32))} elements differ"


# The ledger shows weights only if the learning rate is 1: the pushes give it, the job has another.
WORKS = [Work("ledger", 60, 20_000, push_lr=1, reduction="sum", optimizer={"type": "sgd", "lr": 0.5}),
         Work("adamw", 60, 20_000, clip_norm=0.5,
              optimizer={"type": "adamw", "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01})]


def finish(daemon, job, timeout=120):
    wait_until(lambda: f"the job's end: {daemon.get_job(job)}", lambda: daemon.state(job) in ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL"),
               timeout, 0.05)
    assert daemon.state(job) == "COMPLETED", daemon.get_job(job)
    # ranks that were killed at the very end come back, hear that the job is over, and go
    wait_until("the launcher's end", lambda: not daemon.launchers(), 30, 0.05)


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """Parameters of undisturbed runs, all ranks the same, with mailboxes and without."""
    found = {}
    with Daemon() as d:
        for work in WORKS:
            for by_rpc in (NOBODY, EVERYBODY):
                out = tmp_path_factory.mktemp(work.name)
                finish(d, work.submit(d, out, 0, by_rpc))
                bits = work.results(out)
                assert len(bits) == RANKS and len(set(bits)) == 1
                work.check(out, found.setdefault(work.name, bits[0]))
    return found


class Campaign:
    def __init__(self, daemon, rng):
        self.daemon, self.rng, self.job = daemon, rng, 0
        self.kills = dict.fromkeys(KINDS, 0)
        self.pairs = self.storms = 0
        self.recovery = {kind: [] for kind in (*KINDS, "pair", "storm")}

    def victims(self):
        """kind -> pids, from /proc: nobody who could be dead is asked."""
        return {"trainer": self.daemon.trainers(), "engine": self.daemon.engine_pids(), "gaccd": [p for p in [self.daemon.pid] if p],
                "launcher": self.daemon.launchers()}

    def kill(self, kind, found):
        """Whether somebody died."""
        pids = [p for p in found[kind] if alive(p)]
        if not pids:
            return False
        pid = self.rng.choice(pids)
        if kind == "gaccd":
            self.daemon.killed += 1
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.kills[kind] += 1
        found[kind].remove(pid)
        wait_until(f"death of {kind} {pid}", lambda: not alive(pid), every=0.0005)
        return True

    @property
    def n_kills(self):
        return sum(self.kills.values())

    def look(self):
        try:
            return self.daemon.client.jobs.Get(job=str(self.job), retry=False, timeout=2).job
        except GaccError:
            return None

    def whole(self):
        """Everything is there again."""
        j = self.look()
        if not j:
            return None
        ended = j.state not in (STATES["RUNNING"], STATES["STALLED"])
        up = j.engine_pid and alive(j.engine_pid) and j.launcher_pid and alive(j.launcher_pid)
        return j if ended or (up and all(r.state in ATTACHED and alive(r.pid) for r in j.ranks)) else None

    def recover(self, what, start):
        j = wait_until(lambda: f"recovery from the death of {what}: {self.look()}\n{self.daemon.log()[-4000:]}", self.whole, 60, 0.005)
        self.recovery[what].append(time.monotonic() - start)
        return j

    def one(self):
        """One fault, or two at the same moment; then until it is whole again."""
        found = self.victims()
        kinds = self.rng.choices(KINDS, [6, 3, 3, 1], k=2 if self.rng.random() < 0.3 else 1)
        died = [self.kill(kind, found) for kind in kinds]  # the second dies within a millisecond or two of the first
        self.pairs += len(died) == 2 and all(died)
        return "pair" if len(kinds) == 2 else kinds[0]

    def storm(self):
        """A second of 5 to 20 kills a second, whatever state things are in."""
        self.storms += 1
        end = time.monotonic() + 1
        while time.monotonic() < end:
            self.one()
            time.sleep(self.rng.uniform(0.05, 0.2))

    def run(self, work, out, until):
        """One job under kills, which end before the job does or when there have been `until`. Some ranks use mailboxes, some do not."""
        by_rpc = self.rng.choice([NOBODY, EVERYBODY, self.rng.getrandbits(RANKS), self.rng.getrandbits(RANKS)])
        self.job = work.submit(self.daemon, out, 500, by_rpc)
        wait_until("the job to run", lambda: self.daemon.state(self.job) == "RUNNING", 30)
        while self.n_kills < until:
            start = time.monotonic()
            if self.rng.random() < 0.25:
                self.storm()
                what, start = "storm", time.monotonic()
            else:
                what = self.one()
            j = self.recover(what, start)
            if j.applied_step >= work.steps - 2 or j.state not in (STATES["RUNNING"], STATES["STALLED"]):
                break
            time.sleep(self.rng.uniform(0, 0.4))
        finish(self.daemon, self.job)

    def report(self, how):
        print(f"{how}: {self.n_kills} kills {self.kills}, of them {self.pairs} pairs, {self.storms} storms")
        for what, times in self.recovery.items():
            if times:
                times.sort()
                print(f"  {what:9s} {len(times):4d} times, whole again after {statistics.median(times):.2f} s (median), "
                      f"{times[int(len(times) * 0.99)]:.2f} s (p99), {times[-1]:.2f} s (most)")


@pytest.mark.campaign
@pytest.mark.parametrize("how, share", [("supervise", 0.6), ("systemd", 0.4)])
def test_campaign(how, share, references, tmp_path):
    rng = random.Random(f"{SEED} {how}")
    print(f"GACC_SEED={SEED}")
    supervisor = {"supervise": True} if how == "supervise" else {"systemd_ms": 5000}
    with Daemon(allow=LOUD, **supervisor) as d:
        d.engines_killed = True
        campaign, jobs = Campaign(d, rng), 0
        while campaign.n_kills < KILLS * share:
            work, out = WORKS[jobs % 2], tmp_path / f"{jobs}"
            campaign.run(work, out, KILLS * share)
            work.check(out, references[work.name])
            jobs += 1
        campaign.report(f"{how}, {jobs} jobs")
    assert campaign.n_kills < 100 or all(campaign.kills.values()), campaign.kills
