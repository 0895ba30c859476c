# SPDX-License-Identifier: Apache-2.0
"""Values that trainers log: into the history, to gaccctl and to gacc.history()."""
import json
import logging
import math
import time

import numpy as np
import pytest

from harness import wait_until
from python_package import environment, gacc
from test_examples import BIN, run

SGD = {"type": "sgd", "lr": 1.0}


def ctl(daemon, *words):
    return run([BIN / "gaccctl", *map(str, words)], environment(daemon))


@pytest.fixture
def client(daemon):
    with gacc.connect(daemon.endpoint) as c:
        yield c


@pytest.fixture
def session(daemon, client):
    job = client.submit(name="logs", ranks=1, micro_size=2, steps=4, optimizer=SGD)
    with gacc.attach(job, 0, 1, endpoint=daemon.endpoint) as s:
        s.register({"w": ("f32", (4,))})
        s.upload([np.zeros(4)])
        yield s


def window(session, **values):
    for micro in session.missing:
        session.fill([np.ones(4)])
        session.push(loss=session.window + 1)
        session.log(**values, micro=micro)
    return session.wait()


def test_log_history_and_top(daemon, client, session):
    window(session, accuracy=0.25)
    session.log({"val/loss": np.float32(0.5)})  # after the last push: still of window 0
    window(session, accuracy=math.nan)
    session.log(late=1, window=0)
    wait_until("all values", lambda: {"accuracy 1", "late 0"} <= {f"{s.name} {s.window}" for s in client.job(session.job_id).scalars})
    shown = ctl(daemon, "top", "-n", 1)
    assert "logged: accuracy nan  micro 1  val/loss 0.5  late 1" in shown
    window(session), window(session)
    session.detach()
    found = json.loads(ctl(daemon, "history", session.job_id, "-o", "json"))["windows"]
    assert [{s["name"]: s["value"] for s in w["scalars"]} for w in found] == [
        {"micro": 1}, {"micro": 1}, {"accuracy": None, "micro": 1}, {"accuracy": 0.25, "late": 1, "micro": 1, "val/loss": 0.5}]
    lines = ctl(daemon, "history", session.job_id).splitlines()
    assert lines[0].split()[-4:] == ["micro", "accuracy", "late", "val/loss"]
    assert lines[4].split()[-4:] == ["1", "0.25", "1", "0.5"] and lines[3].split()[-4:] == ["1", "nan", "-", "-"]
    records = gacc.history(session.job_id, endpoint=daemon.endpoint)
    assert [r["window"] for r in records] == [0, 1, 2, 3] and [r["loss"] for r in records] == [1, 2, 3, 4]
    assert all(list(r) == list(records[0]) for r in records)
    assert [r["accuracy"] for r in records][0] == 0.25 and math.isnan(records[1]["val/loss"]) and records[0]["val/loss"] == 0.5
    assert abs(records[3]["time"] - time.time()) < 60
    assert gacc.history("logs", 2, endpoint=daemon.endpoint) == [{k: v for k, v in r.items() if k in ("micro",) or k in list(r)[:11]}
                                                                 for r in records[2:]]


def test_the_lowest_rank_counts(daemon, client):
    job = client.submit(name="two", ranks=2, micro_size=1, steps=1, optimizer=SGD)
    sessions = [gacc.attach(job, r, 2, endpoint=daemon.endpoint) for r in (0, 1)]
    for s in sessions:
        s.register({"w": ("f32", (4,))})
        s.upload([np.zeros(4)])
    for s in sessions:
        s.fill([np.ones(4)])
        s.push()
    for s in reversed(sessions):
        s.log(x=10 + s.rank, only=s.rank) if s.rank else s.log(x=10 + s.rank)
        s.wait()
    for s in sessions:
        s.detach()
    assert [(r["x"], r["only"]) for r in gacc.history(job, endpoint=daemon.endpoint)] == [(10, 1)]


def test_what_is_refused(daemon, client, session, caplog):
    for bad in ({"": 1}, {"a\n": 1}, {"x" * 64: 1}, {f"n{i}": 1 for i in range(65)}):
        with pytest.raises(gacc.GaccError) as e:
            session.log(bad)
        assert e.value.reason == "INVALID_ARGUMENT"
    with pytest.raises((TypeError, ValueError)):
        session.log(x="much")

    def refusal(**fields):
        with pytest.raises(gacc.GaccError) as e:
            client.channel.call("JobService", "LogScalars", 10, **{"job": str(session.job_id), "scalars": [{"name": "a"}], **fields})
        return e.value.reason
    assert refusal(rank=1) == "INVALID_ARGUMENT" and refusal(window=1) == "NOT_CURRENT_WINDOW" and refusal(job="9") == "JOB_NOT_FOUND"
    assert refusal(scalars=[{"name": f"n{i}"} for i in range(65)]) == "INVALID_ARGUMENT"
    assert refusal(scalars=[{"name": "good"}, {"name": ""}]) == "INVALID_ARGUMENT"
    client.channel.call("JobService", "LogScalars", 10, job="logs", scalars=[{"name": f"n{i}"} for i in range(64)])
    assert refusal() == "INVALID_ARGUMENT"
    with caplog.at_level(logging.WARNING, "gacc"):
        session.log(one_more=1)
        wait_until("the refusal", lambda: "one_more" in caplog.text)
        session.log(one_more=2)
    for _ in range(4):
        window(session)
    assert "good" not in {s.name for s in client.job("logs").scalars}


def test_logged_while_gaccd_is_away(supervised):
    with gacc.connect(supervised.endpoint) as client:
        job = client.submit(name="logs", ranks=1, micro_size=2, steps=4, optimizer=SGD)
        with gacc.attach(job, 0, 1, endpoint=supervised.endpoint) as s:
            s.register({"w": ("f32", (4,))})
            s.upload([np.zeros(4)])
            window(s, a=1)
            time.sleep(1)  # a tick and more: written
            supervised.kill_gaccd()
            s.log(b=2)
            window(s, a=3), window(s), window(s)
        first, second = gacc.history(job, endpoint=supervised.endpoint)[:2]
        assert (first["a"], first["b"], second["a"]) == (1, 2, 3)


@pytest.mark.parametrize("name, said", [("accuracy", "0 "), ("", "0 "), ("x" * 64, "1 to 63 bytes"), ("a\tb", "printable")])
def test_a_c_trainer_logs(daemon, client, name, said):
    job = client.submit(name="in-c", ranks=1, micro_size=1, steps=2, optimizer=SGD)
    out = run([BIN / "log_trainer", daemon.endpoint, job.id, name], environment(daemon))
    assert said in out, out
    found = gacc.history(job, endpoint=daemon.endpoint)
    assert [r["c/loss"] for r in found] == [0.5, 1.5]
    assert (found[1].get("accuracy") == 1) == (name == "accuracy")
