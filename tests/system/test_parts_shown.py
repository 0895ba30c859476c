# SPDX-License-Identifier: Apache-2.0
"""Jobs of several parts as operators and trainers meet them: what is shown of the parts together, who belongs to which, memory, restarts."""
import threading

import numpy as np
import pytest

from harness import Daemon, GaccError, Rank, wait_until
from launching import launched, wait_state

SGD = {"type": "sgd", "lr": 0.5}
TENSORS = [("w", [3]), ("v", [2, 2])]
RESTARTS = ["EngineLost", "EngineExited", "gaccd-supervise WARN", "RankLost"]


@pytest.fixture
def d():
    with Daemon(supervise=True, allow=RESTARTS) as daemon:
        yield daemon


def spec(ranks=5, parts=2, **more):
    return {"name": "parts", "ranks": ranks, "parts": parts, "micro_size": 2, "optimizer": SGD, "reduction": "sum", **more}


def all_at_once(ranks, what):
    errors = []

    def one(r):
        try:
            what(r)
        except Exception as e:  # told by the caller
            errors.append(e)
    threads = [threading.Thread(target=one, args=(r,)) for r in ranks]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


def team(d, job, n, tensors=TENSORS):
    ranks = [Rank(d, job, r, tensors, ranks=n) for r in range(n)]
    all_at_once(ranks, lambda r: r.start({k: np.zeros(s, np.float32) for k, s in tensors}))
    return ranks


def step(ranks, value=1.0):
    def one(r):
        for _ in range(r.micro_size):
            r.push([np.full(s, value, np.float32) for _, s in TENSORS])
        r.wait_step()
    all_at_once(ranks, one)


def ones():
    return [np.ones(s, np.float32) for _, s in TENSORS]


def check_params(ranks, value):
    for r in ranks:
        for a in r.params().values():
            assert (a == np.float32(value)).all(), (r.rank, a, value)


def test_what_is_shown_of_them(d):
    job = d.submit(spec())
    ranks = team(d, job, 5)
    step(ranks)
    check_params(ranks, -5)
    j = wait_until("the views of both parts", lambda: (lambda j: len(j.parts) == 2 and all(p.host_bytes and p.engine_pid for p in j.parts) and j)(d.get_job(job)))
    assert [(p.number, p.first_rank, p.n_ranks) for p in j.parts] == [(0, 0, 2), (1, 2, 3)]
    assert j.engine_pid == j.parts[0].engine_pid != j.parts[1].engine_pid and {p.engine_pid for p in j.parts} == set(d.engine_pids())
    assert all(p.communicator for p in j.parts) and len({p.communicator for p in j.parts}) == 1
    assert j.host_bytes == sum(p.host_bytes for p in j.parts)
    assert (j.tensors, j.parameters) == (2, 7)
    b = d.client.node.ListBuffers(job=str(job))
    assert sum(x.bytes for x in b.buffers) == j.host_bytes == b.host_bytes_used
    assert len({(x.part, x.kind) for x in b.buffers}) == len(b.buffers)
    assert [sum(x.bytes for x in b.buffers if x.part == p.number) for p in j.parts] == [p.host_bytes for p in j.parts]
    assert [x.segments for x in b.buffers if x.kind == "slots"] == [(2 + 1) * 2, (3 + 1) * 2]
    history = list(d.client.jobs.History(job=str(job), micros=True))
    assert sorted((m.rank, m.micro) for m in history[0].micros) == [(r, m) for r in range(5) for m in range(2)]
    answer = []
    asking = threading.Thread(target=lambda: answer.append(d.client.jobs.TensorNorms(job=str(job))))
    asking.start()
    while asking.is_alive():
        step(ranks)
    asking.join()
    assert {n.name: n.grad_norm for n in answer[0].norms} == {"w": pytest.approx(10 * 3 ** 0.5), "v": pytest.approx(10 * 4 ** 0.5)}
    one = d.submit({**spec(2, 1), "name": "whole"})
    assert not d.get_job(one).parts
    for r in ranks:
        r.detach()
    wait_until("the end", lambda: d.state(job) == "COMPLETED")
    wait_until("its memory", lambda: not d.get_job(job).host_bytes)
    d.cancel(one)


def test_each_rank_is_in_its_part_also_after_restarts(d):
    job = d.submit(spec(6, 3))
    ranks = team(d, job, 6)
    step(ranks)
    ranks[4].push(ones())  # the first of its part
    d.wait_counted(job, 4, 1)
    memory = d.get_job(job).host_bytes
    d.kill_gaccd()
    wait_until("all parts again", lambda: len([p for p in d.get_job(job).parts if p.engine_pid]) == 3)
    assert d.get_job(job).host_bytes == memory
    all_at_once(ranks, lambda r: [r.push(ones()) for _ in range(1 if r.rank == 4 else 2)] and r.wait_step())
    check_params(ranks, -12)
    pid = d.get_job(job).parts[2].engine_pid
    d.kill_engine(job, pid)
    step(ranks)
    check_params(ranks, -18)
    j = d.get_job(job)
    assert [p.engine_restarts for p in j.parts] == [0, 0, 1] and j.engine_restarts == 1
    texts = [e.message for e in d.client.jobs.ListEvents(job=str(job)).events if e.reason == "EngineExited"]
    assert len(texts) == 1 and texts[0].startswith("part 2: ")
    with pytest.raises(GaccError) as e:
        Rank(d, job, 6, TENSORS, ranks=6)
    assert e.value.reason == "RANK_OUT_OF_RANGE"
    for r in ranks:
        r.detach()
    wait_until("the end", lambda: d.state(job) == "COMPLETED")


def registers(rank):
    try:
        return rank.register() or True
    except GaccError as e:
        assert e.reason == "LAYOUT_MISMATCH"
        return False


def test_their_tensors_are_the_same(d):
    d.allow += ["AllocationFailed", " Ended job="]
    job = d.submit(spec(4))
    ranks = [Rank(d, job, r, TENSORS if r < 2 else [("w", [3]), ("v", [4])], ranks=4) for r in range(4)]
    ranks[0].register()
    with pytest.raises(GaccError) as e:
        ranks[2].register()
    assert "another part of the job has registered other tensors" in e.value.text
    assert e.value.reason == "LAYOUT_MISMATCH" and "all ranks must register the same tensors" in str(e.value)
    right = Rank(d, job, 2, TENSORS, ranks=4)
    wait_until("the wrong ones are forgotten", lambda: registers(right))
    d.cancel(job)


def test_all_parts_fit_or_none():
    with Daemon(supervise=True, conf={"limits.host_memory": "2MiB"}) as d:
        tensors = [{"name": "w", "shape": [30000], "dtype": "f32"}]
        for parts, fits in ((1, True), (4, False)):
            try:
                d.cancel(d.submit({**spec(4, parts, slots_per_rank=1), "name": f"p{parts}", "tensors": tensors}))
                assert fits
            except GaccError as e:
                assert not fits and e.reason == "RESOURCE_EXHAUSTED" and "can never run here" in e.text
        wait_until("all memory", lambda: not d.client.node.ListBuffers().host_bytes_used)


def test_launched_ranks(d):
    d.allow += [" Ended job=", " RankExited job="]
    job = d.submit(launched("true", ranks=3, parts=3))
    j = wait_state(d, job, "FAILED")
    assert "ended with code 0 and had never attached" in j.reason
