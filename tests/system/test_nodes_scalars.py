# SPDX-License-Identifier: Apache-2.0
"""Values that the ranks of a job over several nodes log: they come to the gaccd that coordinates the job, and any node shows them."""
import contextlib
import json
import math
import time

import numpy as np
import pytest

from cluster import Cluster
from harness import wait_until
from python_package import environment, gacc
from test_examples import BIN, run

SGD = {"type": "sgd", "lr": 1.0}


@pytest.fixture(scope="module")
def c():
    with Cluster(2, allow=["AttemptFailed", "CommunicatorLost", "EngineLost"]) as cluster:
        yield cluster


def ctl(node, *words):
    return run([BIN / "gaccctl", *map(str, words)], environment(node))


@contextlib.contextmanager
def two_ranks(c, steps):
    """A session at each node, of a job with a part on each."""
    job = c.submit({"ranks": 2, "micro_size": 1, "steps": steps, "optimizer": SGD})
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(gacc.attach(job, rank, 2, endpoint=c[node].endpoint)) for rank, node in enumerate("ab")]
        for s in sessions:
            s.register({"w": ("f32", (4,))})
        for s in sessions:
            s.upload([np.zeros(4)])
        yield job, sessions


def step(sessions, *values):
    for s in sessions:
        s.fill([np.ones(4)])
        s.push(loss=s.window + 1)
    for s, v in zip(sessions, values):
        s.log(v)
    for s in sessions:
        s.wait()


def newest(c, job):
    return {f"{s.name} {s.window} rank {s.rank}" for s in c.coordinator.get_job(job).scalars}


def test_values_of_both_nodes(c):
    with two_ranks(c, 3) as (job, sessions):
        step(sessions, {"accuracy": 0.25, "a/only": 1}, {"accuracy": 0.75, "b/only": 2})
        step(sessions, {"accuracy": 0.5}, {"b/only": math.nan, "accuracy": 1})
        wait_until("all values", lambda: newest(c, job) == {"accuracy 1 rank 0", "a/only 0 rank 0", "b/only 1 rank 1"})
        for node in "ab":
            assert "logged: accuracy 0.5  a/only 1  b/only nan" in ctl(c[node], "top", "-n", 1).replace("  b/only nan  a/only 1", "  a/only 1  b/only nan")
        step(sessions)
        for s in sessions:
            s.detach()
    for node in "ab":
        found = json.loads(ctl(c[node], "history", job, "-o", "json"))["windows"]
        assert [{s["name"]: (s["value"], s.get("rank", 0)) for s in w["scalars"]} for w in found] == [
            {}, {"accuracy": (0.5, 0), "b/only": (None, 1)}, {"accuracy": (0.25, 0), "a/only": (1, 0), "b/only": (2, 1)}]
        records = gacc.history(job, endpoint=c[node].endpoint)
        assert [r["accuracy"] for r in records][:2] == [0.25, 0.5] and records[0]["b/only"] == 2 and math.isnan(records[1]["b/only"])


def test_what_another_node_refuses_says_the_same(c):
    with two_ranks(c, 1) as (job, sessions), gacc.connect(c["b"].endpoint) as at_b, gacc.connect(c["a"].endpoint) as at_a:
        def refusal(client, **fields):
            with pytest.raises(gacc.GaccError) as e:
                client.channel.call("JobService", "LogScalars", 10, **{"job": str(job), "scalars": [{"name": "x"}], **fields})
            return e.value.reason, str(e.value)
        for fields in ({"rank": 2}, {"window": 1}, {"scalars": [{"name": ""}]}, {"job": "99"}):
            assert refusal(at_b, **fields) == refusal(at_a, **fields)
        step(sessions)
        for s in sessions:
            s.detach()


@pytest.mark.parametrize("killed", "ab")
def test_logged_while_a_gaccd_is_away(c, killed):
    """The rank at b logs; of what that died: the one it talks to, or the one that has the values."""
    with two_ranks(c, 4) as (job, sessions):
        step(sessions, {}, {"before": 1})
        wait_until("the value", lambda: newest(c, job) == {"before 0 rank 1"})
        time.sleep(1)  # a tick and more: written
        with c.killed(killed):
            sessions[1].log(away=2)
            time.sleep(0.3)
        step(sessions, {}, {"after": 3})
        step(sessions), step(sessions)
        for s in sessions:
            s.detach()
    first, second = gacc.history(job, endpoint=c["b"].endpoint)[:2]
    assert (first["before"], first["away"], second["after"]) == (1, 2, 3)


def test_a_c_trainer_at_another_node(c):
    job = c.submit({"ranks": 1, "micro_size": 1, "steps": 2, "optimizer": SGD}, nodes="b")
    out = run([BIN / "log_trainer", c["b"].endpoint, job, "accuracy"], environment(c["b"]))
    assert "0 " in out, out
    for node in "ab":
        found = gacc.history(job, endpoint=c[node].endpoint)
        assert [r["c/loss"] for r in found] == [0.5, 1.5] and found[1]["accuracy"] == 1
