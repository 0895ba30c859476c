# SPDX-License-Identifier: Apache-2.0
"""Journals of earlier versions are read by this gaccd. Their gaccd was killed and the jobs' memory is gone, as after a crash of the node: all
jobs are there with what had been told of them, those that had begun end with NODE_FAIL, the others go on, and checkpoints can be restored.

tests/golden/journals/make.py makes the files: NAME.tar.xz is the state_dir, NAME.json what that gaccd had said."""
import functools
import json
import os
import pathlib
import sqlite3
import subprocess
import tarfile

import numpy as np
import pytest
from google.protobuf import json_format

from golden_journal import UNSHARE, GoldenDaemon, GoldenJob, plain, told_of
from harness import Rank, known_types, wait_until

may_mount = subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode == 0
pytestmark = pytest.mark.skipif(not may_mount, reason="mounts are not allowed here")
FILES = pathlib.Path(__file__).parents[1] / "golden/journals"
VERSIONS = ["f83b7f6", "holes", "structs"]  # `structs`: the last whose records were memory images
LOST = {"running": 14, "scaled": 10, "client": 9, "restored": 14}  # segments of those that had begun
ENDED = ["completed", "cancelled", "failed", "launched"]
KEPT = ["id", "uuid", "spec", "user", "created_unix_nanos", "window", "applied_step", "epoch", "tensors", "parameters", "micro_size",
        "loss_scale", "counters", "updates"]
TIMES = "closed_unix_nanos", "last_lag_ns"


@functools.lru_cache(maxsize=None)
def told(version):
    return json.loads((FILES / f"{version}.json").read_text())


def id_of(version, name):
    return int(told(version)["jobs"][name]["job"]["id"])


def without(d, *keys):
    return {k: v for k, v in d.items() if k not in keys}


NODES = "last_node", "blocks"  # not kept with the windows, and not said by older gaccds


def golden_daemon(version):
    d = GoldenDaemon(start=False, allow=[r" Ended job=\d+ .*: the job's memory is gone: 0 of "])
    with tarfile.open(FILES / f"{version}.tar.xz") as tar:
        tar.extractall(d.state_dir)
    return d


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


@pytest.fixture
def d(version, request):
    with golden_daemon(version) as daemon:
        daemon.start()
        yield daemon
        daemon.test_failed = getattr(request.node, "call_failed", False)


def check_kept(was, now):
    """History, checkpoints and events are all there; and of the job what does not end with its memory."""
    assert [without(h, *NODES) for h in now["history"]] == [without(h, *NODES) for h in was["history"]]
    assert now["checkpoints"] == was["checkpoints"]
    assert now["events"][:len(was["events"])] == was["events"]
    for key in KEPT:
        assert now["job"].get(key) == was["job"].get(key), key


def check_lost(name, was, now):
    check_kept(was, now)
    job = now["job"]
    assert job["state"] == "JOB_STATE_NODE_FAIL"
    assert job["reason"] == f"the job's memory is gone: 0 of {LOST[name]} segments were kept by the service manager"
    # the digest after the newest window is in the history alone
    assert without(job["last"], "params_digest") == without(was["job"]["last"], "params_digest")


def check_all(d, version, but=()):
    jobs = told(version)["jobs"]
    for name in set(LOST) - set(but):  # their ends are written while gaccd serves already
        number = int(jobs[name]["job"]["id"])
        wait_until(f"the end of {name}", lambda n=number: d.state(n) == "NODE_FAIL")
    assert [j.id for j in d.client.jobs.List(all=True).jobs] == sorted((int(j["job"]["id"]) for j in jobs.values()), reverse=True)
    now = {name: told_of(d.client, int(was["job"]["id"])) for name, was in jobs.items()}
    for name in ENDED:
        assert now[name] == jobs[name], name
    for name in set(LOST) - set(but):
        check_lost(name, jobs[name], now[name])
    for name in ("waiting", "paused"):
        check_kept(jobs[name], now[name])
        assert now[name]["job"]["state"] == "JOB_STATE_PENDING"
    assert now["waiting"]["job"]["reason"] == "waits for a rank to register its tensors"
    assert now["paused"]["job"]["reason"] == "paused by root: until Monday"
    for k in (k for job in now.values() for k in job["checkpoints"]):
        assert (d.outside(k["path"]) / "manifest.json").exists()


def test_all_jobs_are_there(d, version):
    node = told(version)["incarnation"]
    assert d.client.node.GetNode().incarnation == node + 1
    check_all(d, version)
    d.kill_gaccd()
    d.start()  # from what this gaccd has made of it
    assert d.client.node.GetNode().incarnation == node + 2
    check_all(d, version)
    assert (d.state_dir / "journal.sqlite.anchor").exists()
    last = max(int(j["job"]["id"]) for j in told(version)["jobs"].values())
    new = d.submit({"ranks": 1, "micro_size": 1, "optimizer": {"type": "client"}})
    assert new == last + 1
    d.cancel(new)


def test_windows_come_from_the_journal_without_the_history(version):
    with golden_daemon(version) as d:
        for file in d.state_dir.glob("history.db*"):
            file.unlink()
        d.start()
        for name, was in told(version)["jobs"].items():
            if name not in LOST:
                continue
            told_before = [without(h["result"], "params_digest") for h in was["history"]]
            results = [plain(h.result) for h in d.client.jobs.History(job=was["job"]["id"], limit=100)]
            assert [without(r, "params_digest") for r in results] == told_before, name


def test_a_job_that_waited_for_its_ranks_goes_on(d, version):
    """With the update that it had been given."""
    d.client.jobs.Resume(job=str(id_of(version, "paused")))
    for name, rates in (("waiting", [0.1, 0.1, 0.5]), ("paused", [0.1, 0.1, 0.1])):
        with Rank(d, id_of(version, name), 0, [("w", [4])]) as r:
            r.start({"w": np.zeros(4, np.float32)})
            results = []
            for _ in rates:
                r.push([np.ones(4, np.float32)])
                results.append(r.wait_step().result)
        assert [s.lr for s in results] == rates and [s.applied_step for s in results] == [1, 2, 3], name


def restore(d, version, of, path):
    """A new job with the old one's specification, as `gaccctl checkpoint restore` submits it."""
    spec = json_format.ParseDict(told(version)["jobs"][of]["job"]["spec"], known_types().JobSpec())
    spec.restore_from = path
    job = GoldenJob(d, ranks=spec.ranks, start=False,
                    submit=lambda _: d.client.jobs.Submit(spec=spec, request_id=os.urandom(16)).job.id)
    return job.attach()


def check_goes_on(d, version, of, checkpoint, windows):
    """The parameters are those of then, and the same gradients give the same windows."""
    was = told(version)["checkpoints"][of][checkpoint]
    job = restore(d, version, of, was["path"])
    assert job.digest() == was["params"]
    before = {int(h["result"].get("window", 0)): h["result"] for h in told(version)["jobs"][of]["history"]}
    for window in windows:
        assert without(plain(job.step(1, job.ranks[0].micro_size)), *TIMES) == without(before[window], *TIMES)
    job.leave()


def test_checkpoints_are_restored(d, version):
    check_goes_on(d, version, "running", "boundary", range(2, 6))
    check_goes_on(d, version, "running", "inside", range(4, 7))
    check_goes_on(d, version, "scaled", "boundary", range(3, 5))


def test_one_job_that_cannot_be_read_is_set_aside():
    """In a journal that has no sums yet; test_aside.py alters newer ones."""
    version, name = "f83b7f6", "scaled"
    was, number = told(version)["jobs"][name]["job"], id_of(version, name)
    with golden_daemon(version) as d:
        d.allow.append(f" SetAside job={number}: ")
        with sqlite3.connect(d.state_dir / "journal.sqlite") as db:
            assert db.execute("UPDATE recent SET data = x'ff' || data WHERE job = ? AND window = 4", [number]).rowcount == 1
        db.close()
        d.start()
        check_all(d, version, but=[name])
        job = told_of(d.client, number)["job"]
        assert job["state"] == "JOB_STATE_FAILED"
        assert job["reason"].startswith("set aside: gaccd ")
        assert "cannot read its record COMMIT in the journal: that of window 4: it has another form" in job["reason"]
        for key in ("id", "uuid", "spec", "user"):
            assert job[key] == was[key]
        d.client.jobs.Cancel(job=str(number))
        assert d.state(number) == "FAILED" and "cancelled by" in d.get_job(number).reason
