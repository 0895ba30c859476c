# SPDX-License-Identifier: Apache-2.0
"""The same random jobs with all mailboxes and with none: every window's result, the parameters after it and the checkpoints have the same bits,
undisturbed and while processes die. compare_trees.py compares, and says what it leaves out.

GACC_SEEDS: how many (6); GACC_SEED: the first one. tests/long.sh random runs many.
"""
import collections
import os

import pytest

from by_mailbox import Both
from compare_trees import CONF, RecordedJob, differences, play
from harness import Daemon

FIRST = int(os.environ.get("GACC_SEED", "1"))
SEEDS = int(os.environ.get("GACC_SEEDS", "1" if "GACC_SEED" in os.environ else "6"))
used = collections.Counter()  # of mailboxes: "pushes", "waits"; and how many windows there were


class OneWay(RecordedJob):
    """All ranks by the same way, and all that they push and wait for."""
    by_mailbox = False

    def __init__(self, daemon, seed, disturbed):
        super().__init__(daemon, seed, disturbed)
        self.draw.off.add("mailbox")  # then nothing is drawn

    def has_mailbox(self):
        return self.by_mailbox


class ByMailbox(OneWay):
    by_mailbox = True


@pytest.fixture(scope="module")
def daemon():
    with Daemon(supervise=True, conf=CONF, allow=["."]) as d:
        d.engines_killed = True
        yield d


def run(daemon, kind, seed, disturbed):
    """(the job, how much of it went through mailboxes)"""
    before = Both.taken.copy()
    job = play(daemon, seed, disturbed, kind)
    assert not job.error, f"seed {seed}, {kind.__name__}, disturbed {disturbed}:\n{job.error}\n{job.describe()}"
    return job, Both.taken - before


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_random_jobs_have_the_same_bits_both_ways(daemon, seed):
    by_rpc, none = run(daemon, OneWay, seed, False)
    assert not none
    for disturbed in (False, True):
        by_mailbox, some = run(daemon, ByMailbox, seed, disturbed)
        what = differences(by_rpc, by_mailbox)
        assert not what, f"{len(what)} differences, disturbed {disturbed}:\n" + "\n".join(what[:8])
        used.update(some, windows=sum(isinstance(k[1], int) for k in by_mailbox.rows))


def test_mailboxes_were_used():
    """By most ranks of most windows; inline ranks have none."""
    assert SEEDS < 6 or (used["waits"] > used["windows"] // 2 and used["pushes"] > used["windows"]), used
