# SPDX-License-Identifier: Apache-2.0
"""Jobs that have ended: what is kept of them, for whom, and over a restart of gaccd."""
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
from google.protobuf import json_format

from gacc_client import build_dir
from harness import Daemon, GaccError, Rank, wait_until
from launching import launched, wait_state

SPEC = {"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1}}

SUBMIT_AS_OTHER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from gacc_client import Client
c = Client(sys.argv[2])
j = c.jobs.Submit(spec=c.types.spec(name="other", ranks=1, micro_size=1, optimizer={"type": "sgd", "lr": 1}), request_id=os.urandom(16)).job
c.jobs.Cancel(job=str(j.id))
print(j.id)
"""


def ended_jobs(d):
    return [j.id for j in d.client.jobs.List(all=True).jobs]


def histories(d):
    """Jobs of which the history has events."""
    return {e.job for e in d.client.jobs.ListEvents().events} - {0}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_who_has_most_loses_the_oldest():
    with Daemon(supervise=True, conf={"history.jobs": 3, "listen.mode": "0666"}) as d:
        d.dir.chmod(0o755)
        mine = [d.submit(SPEC)]
        others = int(subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", SUBMIT_AS_OTHER,
                                     pathlib.Path(__file__).parent, d.endpoint], capture_output=True, text=True, check=True,
                                    env={**os.environ, "HOME": "/"}).stdout)
        mine += [d.submit(SPEC) for _ in range(4)]
        for job in mine:
            d.cancel(job)
        assert ended_jobs(d) == sorted([*mine, others], reverse=True)
        d.kill_gaccd()  # what has ended before its start is over at once
        d.wait_ready()
        left = [mine[4], mine[3], others]
        wait_until("the others are forgotten", lambda: ended_jobs(d) == left and histories(d) == set(left))
        d.kill_gaccd()  # perhaps before the journal has forgotten them, too
        d.wait_ready()
        wait_until("the same are forgotten", lambda: ended_jobs(d) == left)


# ---- what is shown of them ----

def end_some_jobs(d):
    """One of each kind, by name."""
    ids = {}

    def train(name, windows, **spec):
        ids[name] = d.submit({"name": name, "ranks": 2, "micro_size": 2, "optimizer": {"type": "sgd", "lr": 0.5}, **spec})
        ranks = [Rank(d, ids[name], r, [("w", [40]), ("b", [3], "bf16")], 2) for r in range(2)]
        for r in ranks:
            r.start({"w": np.zeros(40, np.float32), "b": np.zeros(3, np.uint16)})
        for _ in range(windows):
            for m in range(2):
                for r in ranks:
                    r.push({"w": np.full(40, 1.5, np.float32), "b": np.ones(3, np.float32)}, weight=3, loss=0.25 * (1 + m))
            for r in ranks:
                r.wait_step()
                if spec.get("optimizer"):
                    r.gacc.AckStep(session=r.session, window=r.window - 1)
        return ranks

    def leave(ranks):
        for r in ranks:
            r.detach()
            r.close()

    leave(train("completed", 3, steps=3, labels=[{"key": "a", "value": "b"}], param_groups=[{"pattern": "b", "frozen": True}]))
    ranks = train("cancelled", 2, max_micro_size=4)
    d.client.jobs.Update(job=str(ids["cancelled"]), window=9, values=d.client.types.JobValues(lr=0.25, micro_size=3))
    ranks[0].push({"w": np.ones(40, np.float32), "b": np.ones(3, np.float32)})
    d.client.jobs.SaveCheckpoint(job=str(ids["cancelled"]), wait=True, request_id=os.urandom(16))
    d.cancel(ids["cancelled"], reason="enough seen")
    for r in ranks:
        r.close()
    leave(train("reduced", 2, optimizer={"type": "client"}))
    ids["never began"] = d.submit({**SPEC, "name": "never began", "ranks": 3})
    d.cancel(ids["never began"])
    ids["failed"] = d.submit(launched("sh", "-c", 'echo last words; exit $((RANK * 3))', name="failed", max_restarts=1))
    ids["launched"] = d.submit(launched(build_dir() / "bin/linear", name="launched", steps=5))
    wait_state(d, ids["failed"], "FAILED")
    wait_state(d, ids["launched"], "COMPLETED")
    wait_until("the launchers' end", lambda: not d.launchers())
    return ids


def answers(d, ids):
    """Get's and List's answer of each, as plain dicts."""
    def plain(job):
        return json_format.MessageToDict(job, preserving_proto_field_name=True)
    listed = {j.id: plain(j) for j in d.client.jobs.List(all=True).jobs}
    return {name: (plain(d.get_job(i)), listed[i]) for name, i in ids.items()}


def differences(a, b, path=""):
    if isinstance(a, dict) and isinstance(b, dict):
        return [x for k in {**a, **b} for x in differences(a.get(k), b.get(k), f"{path}.{k}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [x for i, (v, w) in enumerate(zip(a, b)) for x in differences(v, w, f"{path}[]")]
    return [] if a == b else [(path, a, b)]


def compare(before, after):
    return [(name, kind, *x) for name in before for kind, a, b in zip(("Get", "List"), before[name], after[name]) for x in differences(a, b)]


def restart(d):
    d.kill_gaccd()
    d.wait_ready()


def wait_released(d, ids):
    """Sessions are over, processes and memory are gone: nothing changes any more, and the journal has heard of it."""
    def over(j):
        return not (j.host_bytes or j.engine_pid or j.launcher_pid)
    wait_until("the end of their memory", lambda: all(over(d.get_job(i)) for i in ids.values()))
    time.sleep(1)


def test_ended_jobs_are_shown_as_they_were():
    with Daemon(supervise=True, allow=[" RankExited ", " RankRestarted ", " Ended ", " RankLost "]) as d:
        first = end_some_jobs(d)
        wait_released(d, first)
        shown = answers(d, first)
        for name, (got, listed) in shown.items():
            assert got["state_since_unix_nanos"] == got["ended_unix_nanos"] == listed["ended_unix_nanos"], name
            assert ("last" in got) == ("last" in listed) == (name not in ("failed", "never began")), name
        assert shown["completed"][0]["window"] == "3" and shown["completed"][1]["last"]["mean_loss"] == 0.375
        assert "labels" not in shown["completed"][1]["spec"] and shown["completed"][0]["spec"]["labels"]
        assert shown["failed"][1]["root_cause"]["log_tail"] == ["last words"] * 2
        assert shown["cancelled"][1]["updates"] and shown["cancelled"][1]["ranks"][0]["micro_count"] == 1
        restart(d)  # before they were retired
        assert not compare(shown, answers(d, first))
        time.sleep(1)  # each has a tick
        assert not compare(shown, answers(d, first))
        second = end_some_jobs(d)
        wait_released(d, second)
        shown_too = answers(d, second)
        time.sleep(10.5)
        assert not compare(shown_too, answers(d, second))  # retired
        restart(d)
        assert not compare(shown_too, answers(d, second))
        assert not compare(shown, answers(d, first))


# of a job whose gaccd dies as soon as the end is on the disk: processes and memory are gone then, and of what ranks did behind the decision
# that it ends nothing is known
UNTOLD = {".host_bytes", ".engine_pid"} | {f".ranks[].{f}" for f in ("state", "micro_count", "weight", "last_push_unix_nanos", "detail")}


def test_a_job_that_gaccd_hardly_survives_is_shown_as_it_ended():
    with Daemon(supervise=True) as d:
        job = d.submit({**SPEC, "micro_size": 2})
        with Rank(d, job, 0, [("w", [4])], 1) as r:
            r.start({"w": np.zeros(4, np.float32)})
            for micro in range(2):
                r.push({"w": np.ones(4, np.float32)}, loss=2.5)
            r.wait_step()
            r.push({"w": np.ones(4, np.float32)})
            d.cancel(job)
            shown = answers(d, {"job": job})
            restart(d)
            again = answers(d, {"job": job})
        assert {x[2] for x in compare(shown, again)} <= UNTOLD
        assert again["job"][1]["last"]["mean_loss"] == 2.5 and again["job"][1]["window"] == "1"


def test_what_is_large_is_read_back_when_it_is_asked_for():
    """Tensors and ranks of a job that is over are not in memory; Get, Watch, Wait, Cancel and a repeated Submit have them all the same."""
    labels = [{"key": "k", "value": "v"}]
    wide = {**SPEC, "name": "wide", "ranks": 400, "labels": labels}
    deep = {**SPEC, "name": "deep", "labels": labels, "tensors": [{"name": f"t{i}", "dtype": "f32", "shape": [1]} for i in range(2000)]}
    with Daemon(supervise=True, conf={"node.name": "n" * 200}) as d:  # so that 400 ranks are many
        jobs, ids = d.client.jobs, {}
        for spec in (wide, deep):
            ids[spec["name"]] = d.submit(spec, request_id=spec["name"].encode() * 4)
            d.cancel(ids[spec["name"]])
        wait_released(d, ids)
        shown = answers(d, ids)
        assert len(shown["wide"][0]["ranks"]) == len(shown["wide"][1]["ranks"]) == 400
        assert (len(shown["deep"][0]["spec"]["tensors"]), shown["deep"][1]["tensors"]) == (2000, "2000")
        restart(d)
        wait_until("it is small", lambda: not d.client.jobs.List(all=True).jobs[1].ranks)
        assert {x[1:3] for x in compare(shown, answers(d, ids))} == {("List", ".ranks")}
        for spec in (wide, deep):
            job = d.get_job(ids[spec["name"]])
            again = jobs.Submit(spec=d.client.types.spec(**spec), request_id=spec["name"].encode() * 4)
            assert again.existed
            job.ClearField("events")
            name = str(job.id)
            for j in (again.job, jobs.Cancel(job=name).job, jobs.Wait(job=name).job, next(iter(jobs.Watch(job=name))).job):
                assert j == job
            with pytest.raises(GaccError) as e:
                d.submit({**spec, "seed": 7}, request_id=spec["name"].encode() * 4)
            assert e.value.reason == "ALREADY_EXISTS"
