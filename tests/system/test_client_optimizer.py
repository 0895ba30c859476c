# SPDX-License-Identifier: Apache-2.0
"""Optimizer `client`: the reduced gradients stay readable until every trainer has said that it has them."""
import numpy as np

from harness import Rank

APPLIED, EMPTY = 1, 3


def test_reduced_gradients_outlive_windows_without_a_step(daemon):
    job = daemon.submit({"optimizer": {"type": "client"}, "reduction": "sum", "ranks": 1, "micro_size": 3})
    t = Rank(daemon, job, 0, [("w", [4])], 1)
    t.start({"w": np.zeros(4)})

    def window(*values):
        for i, v in enumerate(values):
            t.push([np.full(4, v, np.float32)], slot=i % 2)
        if len(values) < 3:
            t.flush()
        return t.wait_step()

    def reduced():
        return np.frombuffer(t.get_bytes(reduced_gradients=True), np.float32, 4).copy()

    assert window(1, 2, 4).result.outcome == APPLIED
    assert (reduced() == 7).all()
    assert window().result.outcome == EMPTY  # nothing is acknowledged yet
    assert (reduced() == 7).all()
    t.push([np.full(4, 8, np.float32)], slot=0)  # the first pass of a window needs no half that is being read
    assert (reduced() == 7).all()
    waiting = t.push_async([np.full(4, 16, np.float32)], slot=1)
    t.gacc.AckStep(session=t.session, window=0)
    waiting.result(timeout=20)
    t.flush()
    assert t.wait_step().result.outcome == APPLIED
    assert (reduced() == 24).all()
    t.gacc.Detach(session=t.session, done=True)
    t.close()
