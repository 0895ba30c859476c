# SPDX-License-Identifier: Apache-2.0
"""Jobs with a large tensor set after a restart of gaccd: the set is read when gaccd serves already, and counts against its user."""
import numpy as np
import pytest

from harness import Daemon, GaccError, Rank, wait_until
from test_aside import change, read
from test_journal_lost import kill_and

SPEC = {"ranks": 1, "micro_size": 1, "init": [{"pattern": "*", "type": 2}], "optimizer": {"type": "sgd", "lr": 0.5}}
MANY = [(f"model.layers.{i}.bias", [1]) for i in range(5000)]


@pytest.fixture
def daemon():
    with Daemon(supervise=True, allow=[" SetAside ", " journal .*: ", " Rank(Lost|Late) ", " Ended job="]) as d:
        yield d


def start(daemon, tensors=MANY):
    r = Rank(daemon, daemon.submit(SPEC), 0, tensors)
    r.start()
    return r


def train(r):
    r.push([np.ones(1, np.float32)] * len(r.tensors))
    r.wait_step()
    return {float(p[0]) for p in r.params().values()}


def order(log, *words):
    """Whether the last of these come in this order."""
    at = [log.rindex(w) for w in words]
    return at == sorted(at)


def test_gaccd_serves_before_it_has_read_the_set(daemon):
    r, small = start(daemon), start(daemon, [("w", [1])])
    assert train(r) == train(small) == {0.5}
    for n in (2, 3):
        daemon.kill_gaccd()
        daemon.wait_ready(60)
        assert train(small) == train(r) == {1 - n * 0.5}
        job = daemon.get_job(r.job)
        assert job.tensors == len(MANY) and job.host_bytes and job.window == n
        assert order(daemon.log(), "gaccd NOTICE Ready", "TensorsRead")
        assert daemon.log().count("TensorsRead") == n - 1  # the small one's was read before
    with r, small:
        daemon.cancel(r.job)
        daemon.cancel(small.job)


def test_a_job_that_is_cancelled_before_its_set_is_read(daemon):
    with start(daemon) as r:
        train(r)
        daemon.kill_gaccd()
        daemon.wait_ready(60)
        daemon.cancel(r.job)
        r.session = None  # it has ended with its job
        wait_until("its memory is given back", lambda: not daemon.client.node.GetNode().host_bytes_used, 90)


def test_a_large_set_that_cannot_be_read_sets_its_job_aside(daemon):
    r, small = start(daemon), start(daemon, [("w", [1])])
    train(r)
    where = f"WHERE job = {r.job}"
    set_to = f"UPDATE specs SET tensors = ? {where}"
    old = []

    def spoil():
        old.append(read(daemon, f"SELECT tensors FROM specs {where}"))
        change(daemon, (set_to, (b"\xff" * len(old[0]),)))
    kill_and(daemon, spoil)
    daemon.wait_ready(60)
    assert train(small) == {0.5}
    wait_until("it is set aside", lambda: daemon.state(r.job) == "FAILED", 30)
    assert "cannot read its record TENSORS in the journal: it is no tensor set" in daemon.get_job(r.job).reason
    assert daemon.get_job(r.job).host_bytes
    kill_and(daemon, lambda: change(daemon, (set_to, (old[0],))))
    daemon.wait_ready(60)
    assert train(r) == {0.0}
    with r, small:
        daemon.cancel(r.job)
        daemon.cancel(small.job)


def test_memory_ahead_of_the_journal_is_noticed_before_the_set_is_read(daemon):
    r = start(daemon)
    train(r)
    train(r)
    kill_and(daemon, lambda: change(daemon, ("DELETE FROM recent WHERE job = ? AND window = 1", (r.job,)),
                                    ("UPDATE jobs SET next_window = 1 WHERE id = ?", (r.job,))))
    daemon.wait_ready(60)
    wait_until("it ends", lambda: daemon.state(r.job) in ("NODE_FAIL", "FAILED"), 60)
    assert "the job's memory is at window 2, and the journal at window 1" in daemon.get_job(r.job).reason
    r.close()


def test_a_set_that_has_been_read_again_counts_against_its_user():
    with Daemon(supervise=True, conf={"limits.request_memory": "64MiB"}) as d:  # 32 MiB for portions, so 16 MiB for one user
        long = [(f"{i:0200x}", [1]) for i in range(17000)]

        def give(r, first=0, n=17000):
            return r.gacc.RegisterTensors(session=r.session, tensors=r.tensors[first:first + n], first=first, total=17001, layout_limit=1)
        job, other = d.submit(SPEC), d.submit(SPEC)
        a = Rank(d, job, 0, [*long, ("last", [1])])
        give(a)
        give(a, 17000, 1)
        d.kill_gaccd()
        d.wait_ready(60)
        wait_until("it has been read", lambda: "TensorsRead" in d.log(), 30)
        b = Rank(d, other, 0, [*long, ("last", [1])])
        with pytest.raises(GaccError, match="tensors that this user's jobs register in portions"):
            give(b)
            give(b, 17000, 1)
        d.cancel(job)

        def goes():
            try:
                return give(b, 0 if not b.gacc.RegisterTensors(session=b.session, total=17001).received else 17000) is not None
            except GaccError:
                return False
        wait_until("the memory is given back", goes, 90)
        a.close()
        b.close()
