"""A job whose trainers are all gone does not stay for ever."""
import numpy as np

from harness import Rank, wait_until

SPEC = {"optimizer": {"type": "sgd", "lr": 1}, "ranks": 2, "micro_size": 2}
STALLED, FAILED = 4, 8


def test_all_ranks_lost_stalls_and_ends(daemon):
    daemon.allow += [" RankLost job=", " RankLate job=", " Ended job="]
    job = daemon.submit({**SPEC, "stall_warn_ms": 300, "stall_abort_ms": 1200})
    trainers = [Rank(daemon, job, r, [("w", [4])], 2) for r in range(2)]
    for t in trainers:
        t.start({"w": np.zeros(4)})
    for t in trainers:
        t.close()  # without a word
    wait_until("stalled", lambda: daemon.get_job(job).state == STALLED)
    assert "rank 0" in daemon.get_job(job).reason
    wait_until("failed", lambda: daemon.get_job(job).state == FAILED)
    assert "waiting for rank 0" in daemon.get_job(job).reason
