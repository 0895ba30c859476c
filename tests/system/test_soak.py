# SPDX-License-Identifier: Apache-2.0
"""A long life in small: jobs come and go, trainers and engines die now and then, and gaccd's memory and descriptors stay what they were.

GACC_SOAK_S: seconds (45) after the warm-up. tests/long.sh soak runs half an hour. The warm-up lasts until as much is held as ever will be: an ended
job keeps its memory for 10 s (hosted_retire.c), then a short record of it stays until `history.jobs` newer ones have ended; and caches, the
allocator's arenas and the history's files grow to their size.
"""
import os
import pathlib
import random
import signal
import statistics
import time

import numpy as np
import pytest

from harness import Daemon, build_dir, descriptors, sanitized, wait_until
from test_campaign import LOUD

SECONDS = float(os.environ.get("GACC_SOAK_S", "45"))
WARM_UP_S, HISTORY_JOBS = 25, 16
LIMIT_BYTES = 8 << 20  # that the line through the samples may rise, gaccd and its supervisor each; 60 jobs that kept their memory would rise as much
SPECS = [dict(ranks=2, micro_size=4, steps=20, optimizer={"type": "sgd", "lr": 1}, reduction="sum"),
         dict(ranks=3, micro_size=2, steps=15, clip_norm=1.0,
              optimizer={"type": "adamw", "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}),
         dict(ranks=1, micro_size=8, steps=10, optimizer={"type": "sgd", "lr": 0.1, "momentum": 0.9})]


def private_bytes(pid):
    fields = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(fields[k].split()[0]) * 1024 for k in ("Private_Clean", "Private_Dirty"))


class Soak:
    def __init__(self, daemon, out, rng):
        self.daemon, self.out, self.rng = daemon, out, rng
        self.running, self.n_jobs, self.kills = [], 0, 0
        self.samples = []  # (seconds, {name: bytes}) while no job runs
        self.idle_fds = []
        self.most_fds = {}  # {name: that may be open while no job runs}

    def submit(self):
        spec = dict(self.rng.choice(SPECS))
        out = self.out / f"{self.n_jobs}"
        out.mkdir()
        command = [str(build_dir() / "bin/campaign_trainer"), str(out), str(spec["steps"]), "50000", "200"]
        environment = [{"key": k, "value": v} for k, v in (("GACC_TEST", str(self.daemon.dir)), ("TSAN_OPTIONS", os.environ.get("TSAN_OPTIONS", "")))]
        self.running.append(self.daemon.submit({**spec, "name": f"soak-{self.n_jobs}", "launch": "daemon", "log_dir": str(out), "launch_command": {
            "command": command, "max_restarts": 1000, "grace_ms": 2000, "environment": environment}}))
        self.n_jobs += 1

    def reap(self):
        for job in list(self.running):
            state = self.daemon.state(job)
            assert state not in ("FAILED", "CANCELLED", "NODE_FAIL"), self.daemon.get_job(job)
            if state == "COMPLETED":
                self.running.remove(job)

    def kill_somebody(self):
        pids = self.daemon.trainers() + self.daemon.engine_pids()
        if pids:
            try:
                os.kill(self.rng.choice(pids), signal.SIGKILL)
                self.kills += 1
            except ProcessLookupError:
                pass

    def idle(self):
        """Until the last job has given its memory back; then one sample."""
        while self.running:
            self.reap()
            time.sleep(0.05)
        wait_until("the jobs' memory to be given back", lambda: self.daemon.client.node.GetNode().host_bytes_used == 0, 90)
        wait_until(lambda: "engines, launchers and ranks to end; there are " + self.daemon.describe_processes(), lambda: len(self.daemon.processes()) == 2, 30)
        both = {"gaccd": self.daemon.pid, "supervisor": self.daemon.supervisor_pid}
        for name, most in self.most_fds.items():  # the supervisor may not have read yet what it need not keep any more
            wait_until(lambda name=name: f"{name}, which has {descriptors(both[name])} descriptors, to give all of the jobs back",
                       lambda name=name, most=most: descriptors(both[name]) <= most, 10)
        self.samples.append((time.monotonic(), {name: private_bytes(pid) for name, pid in both.items()}))
        self.idle_fds.append({name: descriptors(pid) for name, pid in both.items()})

    def run(self, seconds, jobs=0):
        begin = time.monotonic()
        while time.monotonic() - begin < seconds or self.n_jobs < jobs:
            for _ in range(self.rng.randrange(3, 8)):
                while len(self.running) >= 3:
                    self.reap()
                    time.sleep(0.02)
                self.submit()
                self.daemon.client.jobs.List(all=True)
                if self.rng.random() < 0.3:
                    time.sleep(self.rng.uniform(0, 0.3))
                    self.kill_somebody()
            self.idle()


@pytest.mark.campaign
def test_soak(tmp_path):
    seed = int(os.environ.get("GACC_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"GACC_SEED={seed}")
    with Daemon(supervise=True, allow=LOUD, conf={"history.jobs": HISTORY_JOBS}) as d:
        d.engines_killed = True
        soak = Soak(d, tmp_path, random.Random(seed))
        soak.run(WARM_UP_S, 2 * HISTORY_JOBS)
        n_warm = len(soak.samples)
        soak.most_fds = {name: n + 3 for name, n in soak.idle_fds[-1].items()}
        soak.run(SECONDS)
        samples, idle_fds = soak.samples[n_warm:], soak.idle_fds[n_warm:]
        assert len(samples) >= 3, "too few samples: a longer soak is needed"
        print(f"{soak.n_jobs} jobs, {soak.kills} kills, {len(samples)} samples")
        for name in ("gaccd", "supervisor"):
            t, b = [s[0] for s in samples], [s[1][name] for s in samples]
            rise = np.polyfit(t, b, 1)[0] * (t[-1] - t[0])
            fds = [f[name] for f in idle_fds]
            print(f"  {name:10s} private {statistics.median(b) / 2**20:.1f} MiB, rise {rise / 2**20:+.2f} MiB over {t[-1] - t[0]:.0f} s; "
                  f"descriptors {fds[0]} .. {fds[-1]}, most {max(fds)}")
            assert sanitized() or rise < LIMIT_BYTES, f"{name} grows"
