# SPDX-License-Identifier: Apache-2.0
"""Jobs of several parts whose engines and whose gaccd are killed at any time: every step gives the bits that it gives without.

GACC_PARTS_KILLS: how many kills each job has at least (10). GACC_SEED: of the random choices, which are drawn by GACC_SAMPLE otherwise; the failing run
prints its own. tests/long.sh parts has 1,000 kills.
"""
import os
import random
import signal
import threading
import zlib

import pytest

from batches import OPTIMIZERS, TENSORS, job, micros
from harness import Daemon
from training import Team

WINDOWS = 60
KILLS = int(os.environ.get("GACC_PARTS_KILLS", "10"))
SEED = int(os.environ.get("GACC_SEED", "0")) or zlib.crc32(os.environ.get("GACC_SAMPLE", "none").encode()) + 1


@pytest.fixture
def node():
    with Daemon(supervise=True, allow=["CommunicatorLost"]) as d:
        yield d


class Killer(threading.Thread):
    """Kills an engine every now and then, or gaccd, until it is told to stop."""

    def __init__(self, node, seed):
        super().__init__()
        self.node, self.random, self.over, self.killed, self.error = node, random.Random(f"{SEED} {seed}"), threading.Event(), 0, None

    def run(self):
        try:
            while not self.over.wait(self.random.uniform(0.05, 0.5)):
                self.kill()
        except BaseException as e:  # seen by the test
            self.error = e

    def kill(self):
        engines = self.node.engine_pids()
        if self.random.random() < 0.2:
            self.node.kill_gaccd()
        elif engines:
            self.node.engines_killed = True
            try:
                os.kill(self.random.choice(engines), signal.SIGKILL)
            except ProcessLookupError:
                return
        self.killed += bool(engines)


def steps(node, spec, windows, killer=None):
    """The digests of the parameters after each step."""
    digests, full = [], [spec["micro_size"]] * spec["ranks"]
    with Team(node, spec, TENSORS) as team:
        if killer:
            killer.start()
        try:
            while len(digests) < windows or (killer and killer.killed < KILLS and not killer.error):
                counts = full if len(digests) % 3 else [full[0], *[r % 2 * (n - 1) for r, n in enumerate(full[1:])]]
                digests.append(team.window(micros(len(digests) % 5, counts)).result.params_digest)
        finally:
            if killer:
                killer.over.set()
                killer.join()
    return digests


def drawn():
    """Another job for each commit."""
    draw = random.Random(SEED)
    parts = draw.randint(2, 5)
    return job(ranks=draw.randint(parts, 7), micro_size=draw.randint(1, 5), parts=parts, optimizer=OPTIMIZERS[draw.choice(sorted(OPTIMIZERS))],
               **draw.choice([{}, {"accumulate_dtype": "f64"}, {"clip_norm": 0.5}, {"reduction": "sum"}]))


@pytest.mark.parametrize("parts", [2, 3, None], ids=["2", "3", "drawn"])
def test_kills_change_no_bit(node, parts):
    spec = job(optimizer=OPTIMIZERS["adam"], parts=parts) if parts else drawn()
    print(f"GACC_SEED={SEED}: {spec}")
    killer = Killer(node, parts)
    with_kills = steps(node, spec, WINDOWS, killer)
    assert killer.error is None and killer.killed >= KILLS
    assert with_kills == steps(node, {**spec, "name": "without"}, len(with_kills))
