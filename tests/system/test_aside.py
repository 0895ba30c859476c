# SPDX-License-Identifier: Apache-2.0
"""One job whose records gaccd cannot read is set aside and costs no other job anything: it is shown as FAILED with the record and what to do, its
rows and its memory are kept, and it goes on when they can be read again, or ends when it is given up."""
import sqlite3
import time

import numpy as np
import pytest

from harness import Daemon, Rank, known_types, wait_until
from test_journal_lost import accept_loss, kill_and, train

SPEC = {"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1}}


def start_rank(daemon, job):
    rank = Rank(daemon, job, 0, [("w", [4])])
    rank.start({"w": np.zeros(4, np.float32)})
    return rank


def change(daemon, *statements):
    """Alters rows, and the sums with them: meta's `sealed` 0 has them made anew, as after a step of the schema."""
    with sqlite3.connect(daemon.dir / "state/journal.sqlite") as db:
        for statement, values in statements:
            assert db.execute(statement, values).rowcount > 0, statement
        db.execute("UPDATE meta SET value = 0 WHERE key = 'sealed'")
    db.close()
    done = accept_loss(daemon)
    assert done.returncode == 0 and "it ends" not in done.stdout, done


def read(daemon, statement, *values):
    db = sqlite3.connect(daemon.dir / "state/journal.sqlite")
    try:
        return db.execute(statement, values).fetchone()[0]
    finally:
        db.close()


def long_pattern(spec):
    """As a gaccd before the limit of 255 bytes has taken it."""
    s = known_types().JobSpec.FromString(spec)
    s.param_groups.add(pattern="w" * 300, lr_scale=1)
    return s.SerializeToString()


def another_outcome(record):
    """Commit.outcome, field 7, is 1 where both windows were applied."""
    where = record.index(b"\x30\x02\x38\x01")  # applied_step 2, outcome 1
    return record[:where + 3] + b"\x09" + record[where + 4:]


def more_values(record):
    """UpdateRecord{update}: a field 9 in it, as a newer gaccd may write it. record[5] is the update's length."""
    return record[:5] + bytes([record[5] + 2]) + record[6:] + b"\x48\x01"


# name: record, what is to be read of the reason, how its row is altered
CASES = {
    "garbage": ("JOB", "", "specs", "spec", "job", lambda old: b"\xff" * len(old)),
    "pattern": ("JOB", "255", "specs", "spec", "job", long_pattern),
    "tensors": ("TENSORS", "no tensor set", "specs", "tensors", "job", lambda old: b"\xff" * len(old)),
    "commit": ("COMMIT", "that of window 1: it has another form", "recent", "data", "job", lambda old: b"\xff" + old[1:]),
    "commit_cut": ("COMMIT", "that of window 1: gacc.internal.v1.CommitRecord", "recent", "data", "job", lambda old: old[:-3]),
    "commit_value": ("COMMIT", "that of window 1: Commit.outcome is 9, and must be 1 to 4", "recent", "data", "job", another_outcome),
    "update": ("UPDATE", "that of window 5: it has another form", "updates", "data", "job", lambda old: b"\xff" + old[1:]),
    "update_new": ("UPDATE", "that of window 5: Update has a value that this gaccd does not know (field 9)", "updates", "data", "job", more_values),
    "base": ("RESTORED", "another form", "jobs", "base", "id", lambda old: b"\xff"),
}


@pytest.fixture
def daemon():
    with Daemon(supervise=True, conf={"limits.jobs_per_user": 20}, allow=[" SetAside ", " journal .*: ", " Rank(Lost|Late) ", "LauncherReplaced"]) as d:
        yield d


def test_a_job_that_cannot_be_read_is_set_aside(daemon):
    jobs = {name: daemon.submit({**SPEC, "name": name}) for name in CASES}
    good = daemon.submit({**SPEC, "name": "good"})
    ranks = {name: start_rank(daemon, job) for name, job in {**jobs, "good": good}.items()}
    for rank in ranks.values():
        train(rank, 2)
    for name in ("update", "update_new"):
        daemon.client.jobs.Update(job=str(jobs[name]), window=5, values=daemon.client.types.JobValues(lr=0.5))
    old = {}

    def alter():
        for name, (_, _, table, column, key, how) in CASES.items():
            where = f" WHERE {key} = {jobs[name]}" + (" AND window = 1" if table == "recent" else "")
            old[name] = f"UPDATE {table} SET {column} = ?{where}", read(daemon, f"SELECT {column} FROM {table}{where}")
        change(daemon, *((old[name][0], (CASES[name][5](old[name][1]),)) for name in CASES))
    kill_and(daemon, alter)
    daemon.wait_ready(60)

    assert train(ranks["good"], 1) == 3
    for name, (record, why, *_) in CASES.items():
        job = daemon.get_job(jobs[name])
        assert daemon.state(jobs[name]) == "FAILED"
        assert job.reason.startswith("set aside: gaccd ")
        assert f" cannot read its record {record} in the journal: " in job.reason and why in job.reason, (name, job.reason)
        assert f"gaccctl cancel {jobs[name]}" in job.reason
        assert job.host_bytes, name
        if name != "garbage":
            assert job.spec.name == name
    assert {j.id for j in daemon.client.jobs.List(all=True).jobs} == {good, *jobs.values()}

    # the gaccd that can read them comes back: all go on where they were
    kill_and(daemon, lambda: change(daemon, *((statement, (value,)) for statement, value in old.values())))
    daemon.wait_ready(60)
    for name, rank in ranks.items():
        assert daemon.state({**jobs, "good": good}[name]) == "RUNNING", name
        assert train(rank, 1) == (4 if name == "good" else 3), name
    for name, rank in ranks.items():
        rank.close()
        daemon.cancel({**jobs, "good": good}[name])


def test_a_job_that_is_set_aside_can_be_given_up(daemon):
    job, other = daemon.submit({**SPEC, "name": "bad"}), daemon.submit({**SPEC, "name": "good"})
    rank, good = start_rank(daemon, job), start_rank(daemon, other)
    train(rank, 2)
    train(good, 1)
    bad = b"\xff" * 40
    kill_and(daemon, lambda: change(daemon, ("UPDATE specs SET spec = ? WHERE job = ?", (bad, job))))
    daemon.wait_ready(60)
    assert daemon.get_job(job).host_bytes
    kill_and(daemon, lambda: None)  # kept, however often gaccd starts
    daemon.wait_ready(60)
    assert daemon.get_job(job).host_bytes
    answer = daemon.client.jobs.Cancel(job=str(job))
    assert answer.job.id == job
    wait_until("its memory to go", lambda: not daemon.get_job(job).host_bytes)
    kept = []
    kill_and(daemon, lambda: kept.append(read(daemon, "SELECT spec FROM specs WHERE job = ?", job)))
    assert kept == [bad]
    daemon.wait_ready(60)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:  # first as it was restored, then as the journal has it
        about = daemon.get_job(job)
        assert daemon.state(job) == "FAILED" and "cancelled by" in about.reason and not about.host_bytes
    assert train(good, 1) == 2
    rank.close()
    good.close()
    daemon.cancel(other)
