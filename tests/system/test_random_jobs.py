# SPDX-License-Identifier: Apache-2.0
"""Random jobs: whatever is drawn, every number that leaves the daemon is that of exact.py.

GACC_SEEDS: how many; GACC_SEED: the first one (1). Without both, GACC_SAMPLE draws 10 of the first 20, and for several nodes some more.
GACC_OFF: features that are left out (random_draw.FEATURES), by commas. GACC_SHRINK: how long a failing job is made smaller (120 s). tests/long.sh random runs thousands.
"""
import itertools
import os
import time
import traceback
import zlib

import pytest

from by_mailbox import Both
from cluster import Cluster
from harness import Daemon
from random_draw import FEATURES, Draw
from random_job import RandomJob

FIRST = int(os.environ.get("GACC_SEED", "1"))
SEEDS = int(os.environ.get("GACC_SEEDS", "1" if "GACC_SEED" in os.environ else "20"))
SHRINK_S = float(os.environ.get("GACC_SHRINK", "120"))
SAMPLE = None if "GACC_SEED" in os.environ or "GACC_SEEDS" in os.environ else os.environ.get("GACC_SAMPLE", "none")
DRAWN = 4
OFF = set(filter(None, os.environ.get("GACC_OFF", "").split(",")))
CONF = {"limits.jobs": 64, "limits.jobs_per_user": 64, "history.jobs": 20}


def run(daemon, seed, off=OFF, cluster=None):
    """None, or what went wrong and in which job."""
    job = RandomJob(daemon, Draw(seed, off), cluster=cluster)
    try:
        job.run()
    except Exception:
        job.give_up()
        return f"{traceback.format_exc()}\n{job.describe()}"
    return None


def in_a_daemon_of_its_own(seed, off):
    with Daemon(supervise=True, conf=CONF, allow=["ParamsNonfinite", " WARN"]) as d:
        d.test_failed = True
        return run(d, seed, off)


def make_smaller(seed, off):
    """Turns off all features that the failure does not need."""
    end = time.monotonic() + SHRINK_S
    for feature in FEATURES:
        if time.monotonic() < end and feature not in off and in_a_daemon_of_its_own(seed, off | {feature}):
            off = off | {feature}
    return off, in_a_daemon_of_its_own(seed, off)


def report(seed, what):
    text = f"seed {seed}: {what}"
    if SHRINK_S:
        off, smaller = make_smaller(seed, OFF)
        if smaller:
            text += f"\n\nsmaller:\n{smaller}"
            seed = f"{seed} GACC_OFF={','.join(sorted(off))}"
    return text + f"\n\nagain: GACC_SEED={seed} /usr/bin/python3 -m pytest -s tests/system/test_random_jobs.py"


def drawn_seeds():
    seeds = list(range(FIRST, FIRST + SEEDS))
    return seeds if SAMPLE is None else sorted(sorted(seeds, key=lambda s: zlib.crc32(f"{SAMPLE}/{s}".encode()))[:SEEDS // 2])


def test_random_jobs():
    failed, taken, seeds = [], Both.taken.copy(), drawn_seeds()
    with Daemon(supervise=True, conf=CONF, allow=["ParamsNonfinite", " WARN"]) as d:
        d.engines_killed = True
        for seed in seeds:
            what = run(d, seed)
            if what:
                failed.append((seed, what))
                print(f"seed {seed}: {what}", flush=True)
            if len(failed) == 3:
                break
            if seed % 100 == 0:
                print(f"seed {seed}", flush=True)
        d.test_failed = bool(failed)
    if failed:
        pytest.fail(f"{len(failed)} of {len(seeds)} seeds fail: {[s for s, _ in failed]}\n{report(*failed[0])}")
    if SEEDS >= 20 and "mailbox" not in OFF:
        used = Both.taken - taken
        assert used["pushes"] > 2 * len(seeds) and used["waits"] > len(seeds) // 2, f"mailboxes were not used: {used}"


KINDS = [lambda s: True, lambda s: "sharding" in s or "sharding" in OFF, lambda s: s["reduction"] == "weighted_mean"]


def of_parts(first, n):
    """So many seeds of jobs of several parts; a third of them are sharded at least, and a third have the default reduction."""
    def seeds(kind):
        for seed in itertools.count(first):
            s = Draw(seed, OFF).spec([("w", [3], "f32")])
            if s.get("parts", 1) > 1 and kind(s):
                yield seed
    if "parts" in OFF:
        return []
    found, kinds = [], itertools.cycle(map(seeds, KINDS))
    while len(found) < n:
        found.append(next(seed for seed in next(kinds) if seed not in found))
    return found


def seeds_over_nodes():
    """Half as many as there are seeds, from the first one on. GACC_SAMPLE draws a half of those, in a row so that each kind is among them, and DRAWN more."""
    seeds = of_parts(FIRST, max(SEEDS // 2, 1))
    if SAMPLE is None:
        return seeds
    draw = zlib.crc32(SAMPLE.encode())
    begin = draw % len(seeds) if seeds else 0
    return (seeds[begin:] + seeds[:begin])[:len(seeds) // 2] + of_parts(1000 + draw, DRAWN)


def test_random_jobs_over_nodes():
    """The same jobs on three nodes, if they have several parts."""
    with Cluster(3, conf=CONF, allow=["ParamsNonfinite", " WARN"]) as c:
        for node in c.nodes.values():
            node.engines_killed = True
        for seed in seeds_over_nodes():
            what = run(c.coordinator, seed, cluster=c)
            if what:
                c.coordinator.test_failed = True
                pytest.fail(f"seed {seed}: {what}")
