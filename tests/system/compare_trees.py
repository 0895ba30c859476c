#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the same random jobs and the same kill campaigns on two or more builds and compares all numbers that leave them, bit by bit.

    GACC_BUILD_DIR=build compare_trees.py [--seeds N] [--first SEED] [--campaigns N] OLD_BUILD... NEW_BUILD

A build is a folder with bin/gaccd and bin/campaign_trainer. The tests and the messages are those of GACC_BUILD_DIR's tree; each build
has its own gaccd, and each campaign's ranks have the libgacc of their build.

Each random job runs twice on each build: once undisturbed, and once while trainers, engines and gaccds die. All runs of a seed must give
the same windows, parameters and checkpoints. A campaign runs on each build undisturbed and under seeded SIGKILLs.

What depends on time is not compared: which rank was the last, by how much, and when. For the same reason operators close no window here,
and update a job only while its window cannot end. With ordering `arrival`, sums over several ranks depend on time unless they are exact;
random_draw.py gives such jobs numbers whose sums are.
"""
import argparse
import collections
import contextlib
import hashlib
import pathlib
import random
import sys
import tempfile
import time
import traceback

from harness import Daemon, wait_until
from random_draw import FAULTS, Draw
from random_job import ENDED, RandomJob
from saving_job import read_safetensors
from test_campaign import LOUD, MICRO_SIZE, RANKS, Campaign, Work

CONF = {"limits.jobs": 64, "limits.jobs_per_user": 64, "history.jobs": 100}
TIMES = {"last_rank", "last_lag_ns", "closed_unix_nanos"}
UNDISTURBED = {*FAULTS, "die_at_start", "torn"}
BY_TIME = {"flush"}
STEPS, KILLS = 60, 16  # of a campaign


class CountingDaemon(Daemon):
    """kills: SIGKILLs of gaccds and engines."""
    kills = 0

    def kill_gaccd(self, *args, **kwargs):
        self.kills += 1
        return super().kill_gaccd(*args, **kwargs)

    def kill_engine(self, *args, **kwargs):
        self.kills += 1
        return super().kill_engine(*args, **kwargs)


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def row_of(result):
    """A window's outcome as text; doubles as their bits, NaNs as one."""
    row = {}
    for field in result.DESCRIPTOR.fields:
        value = getattr(result, field.name)
        row[field.name] = value.hex() if isinstance(value, float) else value
    return {k: v for k, v in row.items() if k not in TIMES}


def end_of(j):
    return {"state": j.state, "window": j.window, "applied_step": j.applied_step, "loss_scale": j.loss_scale.hex(),
            **{f.name: getattr(j.counters, f.name) for f in j.counters.DESCRIPTOR.fields}}


def files_of(path):
    """name -> digest of parameters and optimizer's state in a checkpoint; the open window's sum depends on time."""
    files = [path / "model.safetensors", *sorted(path.glob("optimizer*.safetensors"))]
    return {f"{file.name}: {name}": f"{dtype} {shape} {digest(bytes(data))}" for file in files
            for name, (dtype, shape, data) in read_safetensors(file).items()}


# ---- random jobs ----


class OftenDraw(Draw):
    """More deaths, and more checkpoints of the end, than the tests have."""

    def chance(self, feature, p):
        return super().chance(feature, min(0.5, p * 2) if feature in (*FAULTS, "policy") else p)


class RecordedJob(RandomJob):
    """rows: (generation, window) -> {name: value}; ends: what is left of each generation."""

    def __init__(self, daemon, seed, disturbed):
        super().__init__(daemon, OftenDraw(seed, BY_TIME if disturbed else BY_TIME | UNDISTURBED))
        self.rows, self.ends, self.filled = {}, {}, 0

    def run(self):
        """And once more from the checkpoint of its end, if there is one; which others are complete depends on time."""
        self.begin(None)
        self.play()
        end = [s for s in self.saved if s.model.window == self.model.window and not s.carried]
        if end and not self.model.is_client:
            self.generation += 1
            self.begin(end[-1])
            self.left = 3
            self.play()

    def do_update(self, r):
        sent = {m for r2, m in self.answers if r2 == 0} | {f[0] for f in self.flight[0]}
        if r == 0 and len(sent) < self.model.values()["micro_size"]:  # else the window may be over
            super().do_update(r)

    def check_parameters(self, want, job_done):
        row = row_of(self.results[want["window"]])
        found = set()
        for r, t in enumerate(self.ranks):
            if self.here[r] and r not in self.fenced and (t.memory or not job_done):
                arrays = t.reduced() if "reduced" in want else {} if self.model.is_client else t.params()
                found.add(digest(b"".join(arrays[name].tobytes() for name in sorted(arrays))))
        assert len(found) <= 1, f"ranks have {len(found)} different parameters"
        if found:
            row["parameters"] = found.pop()
        self.rows[self.generation, self.model.window - 1] = row
        super().check_parameters(want, job_done)

    def play(self):
        try:
            super().play()
        finally:
            j = self.d.get_job(self.job)
            self.ends[self.generation] = end_of(j)

    def read_checkpoint(self, path, k, updates=None):
        self.rows[self.generation, f"checkpoint {k.window}"] = files_of(path)
        return super().read_checkpoint(path, k, updates)

    # An old tree may know no digest of a window any more when its gaccd has died. In the newest one that is a failure.

    def do_old(self, r):
        wait_step = self.ranks[r].gacc.WaitStep

        def whole(**fields):
            answer = wait_step(**fields)
            self.whole(answer.result, self.results[fields["window"]])
            return answer
        self.ranks[r].gacc.WaitStep = whole
        try:
            super().do_old(r)
        finally:
            self.ranks[r].gacc.WaitStep = wait_step

    def check_window(self, steps, size):
        for s in filter(None, steps):
            for other in filter(None, steps):
                self.whole(s.result, other.result)
        return super().check_window(steps, size)

    def whole(self, result, other):
        if self.d.killed and not result.params_digest and other.params_digest:
            result.params_digest, self.filled = other.params_digest, self.filled + 1


def differences(a, b):
    """Texts; what only one of the two could see (the parameters after the job's end, a checkpoint that failed) is no difference."""
    out = []
    for key in sorted({*a.rows, *b.rows}, key=str):
        x, y = a.rows.get(key), b.rows.get(key)
        if not (x and y) and ("checkpoint" in str(key[1]) or not (key[0] in a.ends and key[0] in b.ends)):
            continue
        if not (x and y):
            out.append(f"{key}: only one has it")
            continue
        names = {*x, *y} - ({"parameters"} if "parameters" not in x or "parameters" not in y else set())
        out += [f"{key} {name}: {x.get(name)} and {y.get(name)}" for name in sorted(names) if x.get(name) != y.get(name)]
    both = sorted({0, *a.ends} & {0, *b.ends})
    return out + [f"end of {g}: {a.ends.get(g)} and {b.ends.get(g)}" for g in both if a.ends.get(g) != b.ends.get(g)]


def play(daemon, seed, disturbed, kind=RecordedJob):
    job, error = kind(daemon, seed, disturbed), ""
    try:
        job.run()
    except Exception:
        job.give_up()
        error = traceback.format_exc()
    job.error = error
    return job


def features(job):
    s = job.spec
    yield "optimizer " + s["optimizer"]["type"]
    yield "gradient_dtype " + s.get("gradient_dtype", "of the tensors")
    yield from {"tensors " + (t[2] if len(t) > 2 else "f32") for t in job.tensors}
    yield "accumulate " + s.get("accumulate_dtype", "f32")
    yield "master " + s["master"]
    yield "reduction " + s["reduction"]
    yield "ordering " + s.get("ordering", "canonical") + (" of 1 rank" if s["ranks"] == 1 else "")
    yield "nonfinite " + s["nonfinite"]
    yield "uneven " + s.get("uneven", "flush")
    yield "micro_size > 1" if s["micro_size"] > 1 else "micro_size 1"
    yield "several ranks" if s["ranks"] > 1 else "1 rank"
    yield from {"clip_norm", "clip_value", "schedule", "outlier_skip", "loss_scale", "dynamic_loss_scale", "param_groups", "init"} & set(s)
    if job.generation:
        yield "restored"


def count_common(windows, name, a, b):
    """What of two runs was compared."""
    common = {k for k in b.rows if k in a.rows}
    windows[name] += sum(isinstance(k[1], int) for k in common)
    windows[name, "restored"] += sum(isinstance(k[1], int) and k[0] > 0 for k in common)
    windows[name, "checkpoints"] += sum(not isinstance(k[1], int) for k in common)
    windows[name, "parameters"] += sum("parameters" in a.rows[k] and "parameters" in b.rows[k] for k in common)
    windows[name, "filled"] += b.filled


def random_jobs(builds, first, seeds):
    """Number of seeds with a difference."""
    seen, windows, outcomes, bad, compared = (collections.Counter() for _ in range(5))
    with contextlib.ExitStack() as stack:
        daemons = [stack.enter_context(CountingDaemon(supervise=True, conf=CONF, allow=["."], program=b / "bin/gaccd")) for b in builds]
        for seed in range(first, first + seeds):
            runs = [(f"{b}{' disturbed' if disturbed else ''}", play(d, seed, disturbed))
                    for disturbed in (False, True) for b, d in zip(builds, daemons)]
            last, failed = runs[len(builds) - 1][1], False
            seen.update(set(features(last)))
            outcomes.update(f"outcome {r['outcome']} skip {r['skip_reason']}" for k, r in last.rows.items() if isinstance(k[1], int))
            for name, job in runs:
                count_common(windows, name, last, job)
                if job.error:
                    bad["failed: " + name] += 1
                    print(f"seed {seed}: {name} failed:\n{job.error}\n{job.describe()}", flush=True)
                lacks = job.filled and job.d is daemons[-1]
                what = differences(last, job) + ["failed"] * bool(job.error) + ["digests were not told again"] * bool(lacks)
                failed |= bool(what)
                compared[name, bool(what)] += 1
                if what:
                    print(f"seed {seed}: {len(what)} differences of {name}:\n  " + "\n  ".join(what[:8]), flush=True)
            bad["seeds"] += failed
    print(f"random jobs {first} to {first + seeds - 1}: {dict(outcomes)}")
    for name, n in sorted(seen.items()):
        print(f"  {n:4d} {name}")
    for name in sorted({n for n, _ in compared}):
        print(f"{name}: {compared[name, False]} equal, {compared[name, True]} different, of these {bad['failed: ' + name]} failed;"
              f" compared: {windows[name]} windows ({windows[name, 'restored']} of restored jobs),"
              f" {windows[name, 'parameters']} with parameters, {windows[name, 'checkpoints']} checkpoints; {windows[name, 'filled']} digests were not told again")
    for b, d in zip(builds, daemons):
        print(f"{b}: {d.kills} SIGKILLs of gaccds and engines")
    return bad["seeds"]


# ---- campaigns ----

ADAM = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
KINDS_OF_WORK = [
    dict(reduction="sum", optimizer={"type": "sgd", "lr": 1}),
    dict(clip_norm=0.5, optimizer={"type": "adamw", **ADAM}),
    dict(clip_value=0.01, optimizer={"type": "lamb", **ADAM},
         schedule={"type": "cosine", "warmup_steps": 2, "total_steps": 30, "min_factor": 0.1}),
    dict(accumulate_dtype="f64", reduction="mean", optimizer={"type": "adam", **ADAM}),
    dict(nonfinite="reject_micro", reduction="fixed_divisor", fixed_divisor=7.3,
         optimizer={"type": "adam", **ADAM, "beta1": 0.5}, outlier_skip={"factor": 1.01, "decay": 0.5, "warmup_steps": 2}),
]


class TreeWork(Work):
    """Of one build: its own trainer."""

    def __init__(self, build, kind):
        super().__init__(f"work{kind}", STEPS, 20_000, **KINDS_OF_WORK[kind])
        self.build = build

    def submit(self, daemon, out, pause_us, by_rpc=0):
        out.mkdir(exist_ok=True)
        command = [str(self.build / "bin/campaign_trainer"), str(out), str(self.steps), str(self.elements), str(pause_us)]
        return daemon.submit({
            "name": self.name, "ranks": RANKS, "micro_size": MICRO_SIZE, "steps": self.steps, "launch": "daemon", "log_dir": str(out),
            "stall_warn_ms": 20000, "checkpoint": {"dir": str(out / "checkpoint"), "at_end": True},
            "launch_command": {"command": command, "max_restarts": 1_000_000, "grace_ms": 2000,
                               "environment": [{"key": "GACC_TEST", "value": str(daemon.dir)},
                                               {"key": "TEST_BY_RPC", "value": f"{by_rpc:x}"}]}, **self.spec})


class Campaigned:
    """One run: rows as RecordedJob has them."""

    def __init__(self, build, kind, seed, kills):
        self.rows, self.ends, self.error, self.kills = {}, {}, "", {}
        with tempfile.TemporaryDirectory(prefix="gacc-bits-") as out:
            try:
                with Daemon(supervise=True, conf=CONF, allow=LOUD, program=build / "bin/gaccd") as d:
                    d.engines_killed = True
                    self.play(d, TreeWork(build, kind), pathlib.Path(out) / "job", random.Random(f"{seed} {kind}"), kills)
            except Exception:
                self.error = traceback.format_exc()

    def play(self, d, work, out, rng, kills):
        campaign = Campaign(d, rng)
        if kills:
            campaign.run(work, out, kills)
        else:
            campaign.job = work.submit(d, out, 0)
            wait_until(lambda: f"its end: {d.get_job(campaign.job)}", lambda: d.state(campaign.job) in ENDED, 120, 0.05)
        self.kills = {k: n for k, n in campaign.kills.items() if n}
        j = d.get_job(campaign.job)
        self.ends[0] = end_of(j)
        for row in d.client.jobs.History(job=str(campaign.job), limit=1000):
            self.rows[0, row.result.window] = row_of(row.result)
        bits = {digest(b) for b in work.results(out)} | {digest(work.saved(out))}
        assert len(bits) == 1, f"ranks and checkpoint have {len(bits)} different parameters"
        self.rows["end"] = {"parameters": bits.pop()}
        self.rows[0, "checkpoint"] = files_of(next(out.glob("checkpoint/*")))


def campaigns(builds, first, n):
    """Number of seeds with a difference."""
    bad, plain, failed = 0, {}, set()
    for seed in range(first, first + n):
        kind = seed % len(KINDS_OF_WORK)
        for b in builds:
            if (kind, b) not in plain:
                plain[kind, b] = Campaigned(b, kind, 0, 0)
                failed |= {kind} if report(f"work {kind}, {b}, undisturbed", plain[kind, builds[0]], plain[kind, b]) else set()
        different = [report(f"campaign {seed}, work {kind}, {b}", plain[kind, builds[0]], Campaigned(b, kind, seed, KILLS))
                     for b in builds]
        bad += kind in failed or any(different)
    return bad


def report(name, reference, run):
    """Whether they differ. History that died with its gaccd is not compared."""
    common = {k: v for k, v in reference.rows.items() if k in run.rows}
    missing = len(reference.rows) - len(common)
    what = [f"{k} {f}: {v[f]} and {run.rows[k].get(f)}" for k, v in common.items() for f in v if v[f] != run.rows[k].get(f)]
    what += [f"end: {reference.ends} and {run.ends}"] * (reference.ends != run.ends) + [run.error] * bool(run.error)
    verdict = "DIFFERENT" if what else "equal"
    print(f"{name}: {verdict}, {len(common)} rows, {missing} not there, kills {run.kills}", *what[:6], sep="\n  ", flush=True)
    return bool(what)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("builds", nargs="+", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--campaigns", type=int, default=15)
    a = parser.parse_args()
    builds, start = [b.resolve() for b in a.builds], time.monotonic()
    bad = random_jobs(builds, a.first, a.seeds) if a.seeds else 0
    bad += campaigns(builds, a.first, a.campaigns) if a.campaigns else 0
    print(f"{time.monotonic() - start:.0f} s")
    print(f"{a.seeds + a.campaigns - bad} passed, {bad} failed")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
