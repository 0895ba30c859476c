# SPDX-License-Identifier: Apache-2.0
"""The trainers' own states of jobs of several parts, on one node and on two: a checkpoint has those of its window, whose part they are of;
whoever dies, none of another window is in it, and none is missing without a word."""
import concurrent.futures
import os
import time

import pytest

from cluster import Cluster
from harness import Daemon, wait_until
from saving_job import COMPLETE, TENSORS, Job, first_params
from test_trainer_state import MIB, c_trainers, get, leave, noisy_trainer, put, refusal, states_in
from test_trainer_state_kills import complete, complete_ones, partials

ALLOW = [" AttemptFailed ", " StatesMissing "]


class OnNodes(Job):
    """Ranks on these nodes, each at the gaccd of its part; the checkpoints in a directory that both nodes see."""

    def __init__(self, cluster, nodes="ab", parts=2, ranks=4, **spec):
        self.cluster, self.nodes, self.parts, self.folder = cluster, nodes, parts, cluster.shared
        super().__init__(cluster["a"], ranks=ranks, submit=lambda s: cluster.submit(s, nodes=nodes), parts=parts,
                         **{"checkpoint": {"dir": str(cluster.shared)}, **spec})

    def attach(self):
        self.ranks = [self.cluster.rank(self.id, r, self.n, self.parts, TENSORS, self.nodes) for r in range(self.n)]
        with concurrent.futures.ThreadPoolExecutor(self.n) as pool:
            list(pool.map(lambda r: r.start(first_params()), self.ranks))
        return self


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    shared = tmp_path_factory.mktemp("shared")
    with Cluster(2, conf={"checkpoint.allowed_dirs": shared}, allow=[*ALLOW, " RankLost "]) as c:
        c.shared = shared
        yield c


@pytest.fixture
def c(cluster, tmp_path):
    cluster.shared = cluster.shared.parent / cluster.shared.name / tmp_path.name
    cluster.shared.mkdir()
    yield cluster
    cluster.shared = cluster.shared.parent


def mine(job, what):
    return {i: f"{what} of rank {i}".encode() for i in range(job.n)}


def put_all(job, what, but=()):
    states = {i: s for i, s in mine(job, what).items() if i not in but}
    for i, s in states.items():
        put(job.ranks[i], s)
    return states


def events(job, kind):
    return [e for e in job.d.events(kind) if f"job={job.id}" in e]


@pytest.mark.sanitize
@pytest.mark.parametrize("sharding", ["none", "full"])
def test_parts_of_one_node(sharding):
    """Those of all parts are in one file, as of a job of one part; a rank whose part is another one there gets its own."""
    with Daemon() as d:
        job = Job(d, ranks=4, parts=2, sharding=sharding)
        assert [get(r) for r in job.ranks] == [None] * 4
        job.step(1)
        given = put_all(job, "state")
        assert [get(r) for r in job.ranks] == [(1, given[i]) for i in range(4)]
        k = job.save()
        assert (k.state, k.window, states_in(k.path)) == (COMPLETE, 1, given)
        assert k.state_bytes == os.stat(f"{k.path}/states.safetensors").st_size
        assert k.bytes == sum(f.stat().st_size for f in os.scandir(k.path) if f.name != "manifest.json")
        assert "with the state of 4 of 4 trainers" in d.events("CheckpointSaved")[0]
        for parts in 1, 4, 2:
            again = Job(d, ranks=4, parts=parts, name=f"again-{parts}", restore_from=k.path)
            assert [get(r) for r in again.ranks] == [(1, given[i]) for i in range(4)]
            again.leave()
        job.leave()


def test_parts_of_two_nodes(c):
    """Every step is saved as its window opens; inside a window, and with states of the other node's ranks alone, too."""
    job = OnNodes(c, checkpoint={"dir": str(c.shared), "every_steps": 1})
    for window in range(3):
        given = put_all(job, f"window {window}")
        if window:
            wait_until("saved", lambda: len(complete_ones(job)) == window, 30)
            assert (job.saved()[-1].window, states_in(job.saved()[-1].path)) == (window, given)
        job.step(1)
    given = put_all(job, "window 3", but=[0, 1])
    [job.push(rank, micro) for micro in (0, 1) for rank in (0, 1)]  # without, so they are not waited for
    wait_until("saved", lambda: len(complete_ones(job)) == 3, 30)
    assert states_in(job.saved()[-1].path) == given
    [job.push(rank, micro) for micro in (0, 1) for rank in (2, 3)]
    [r.wait_step() for r in job.ranks]
    assert "no trainers' states of part 0, and the one before had 2" in c["a"].events("StatesMissing")[-1]
    put_all(job, "begin")
    job.push(0, 0), job.push(2, 0)
    k = job.save(inside_window=True)
    assert k.carried_micros == 2 and states_in(k.path) == mine(job, "begin")
    assert partials(job) == []
    before = next(x for x in job.saved() if x.window == 2)
    for (nodes, parts), k, what in (("ba", 2), k, "begin"), (("a", 1), before, "window 2"), (("b", 1), before, "window 2"), (("ab", 4), before, "window 2"):
        again = OnNodes(c, nodes, parts, name="again", restore_from=k.path)
        assert [get(r) for r in again.ranks] == [(k.window, s) for s in mine(job, what).values()]
        again.leave()
    job.leave()


# ---- the clients ----

SPEC = {"ranks": 2, "micro_size": 3, "optimizer": {"type": "adamw", "lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}}


def python_ranks(c, nodes, steps, **spec):
    """noisy_trainer, a rank on each node; the job's id and the parameters, which are the same."""
    job = c.submit({**SPEC, "steps": steps, "checkpoint": {"dir": str(c.shared), "at_end": True}, **spec}, nodes=nodes)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda rank: noisy_trainer(c[nodes[rank]], job, steps, rank, 2), range(2))
    assert first == second
    wait_until("completed", lambda: c["a"].state(job) == "COMPLETED")
    return job, first


def test_python_trainers_resume_on_other_nodes(c):
    """Steps in one go, and half of them, a checkpoint at the end, and a job from there whose ranks are each at the other's node."""
    whole = python_ranks(c, "ab", 6)[1]
    job, half = python_ranks(c, "ab", 3, name="first")
    [k] = c["a"].client.jobs.ListCheckpoints(job=str(job)).checkpoints
    assert len(states_in(k.path)) == 2
    assert python_ranks(c, "ba", 6, name="second", restore_from=k.path)[1] == whole != half


def test_c_trainers_resume_on_other_nodes(c):
    def trained(nodes, windows, **spec):
        job = c.submit({**SPEC, **spec}, nodes=nodes)
        return job, *c_trainers([c[n] for n in nodes], job, windows, MIB)

    _, trainers, begun, whole = trained("ab", 4)
    assert begun == ["new", "new"] and whole[0] == whole[1] and whole[0].startswith("ready ")
    leave(trainers)
    job, trainers, _, half = trained("ab", 2, name="first", checkpoint={"dir": str(c.shared)})
    k = c["a"].client.jobs.SaveCheckpoint(job=str(job), wait=True, request_id=os.urandom(16)).checkpoint
    assert k.window == 2 and [len(s) for s in states_in(k.path).values()] == [MIB + 8] * 2
    leave(trainers)
    _, trainers, begun, end = trained("ba", 2, name="second", restore_from=k.path)
    assert begun == ["2", "2"] and end == whole != half
    leave(trainers)


# ---- deaths, while a checkpoint waits for the state of rank 3, which is at node b ----


def waiting(job, saved=0):
    """All but rank 3 have put the state of the window; what part 0's engine has to write is written."""
    put_all(job, "before")
    job.step(1)
    given = put_all(job, "state", but=[3])
    job.save(wait=False)
    wait_until("its engine has written", lambda: partials(job))
    assert len(complete_ones(job)) == saved
    return given


def test_what_is_too_much_for_a_part():
    """64 MiB of all ranks: an equal part for each part. What a checkpoint of fewer parts has more stays."""
    with Daemon() as d:
        job = Job(d, ranks=4, parts=1)
        for r in job.ranks[:2]:
            put(r, bytes(4 * MIB))
        k = job.save()
        job.leave()
        job = Job(d, ranks=16, parts=16, micro_size=1, name="many")
        put(job.ranks[15], bytes(4 * MIB))
        job.leave()
        job = Job(d, ranks=26, parts=2, micro_size=1, name="two")
        for r in job.ranks[13:21]:
            put(r, bytes(4 * MIB))
        reason, text = refusal(put, job.ranks[25], b"x")
        assert reason == "RESOURCE_EXHAUSTED" and "of this part's ranks would have 33554433 bytes with the 1 of rank 25, and may have 33554432" in text
        put(job.ranks[0], b"x")
        assert sorted(states_in(job.save().path)) == [0, *range(13, 21)]
        job.leave()
        again = Job(d, ranks=4, parts=2, name="again", restore_from=k.path)
        assert [get(r) for r in again.ranks] == [(0, bytes(4 * MIB))] * 2 + [None] * 2
        again.leave()


def test_another_number_of_ranks():
    with Daemon() as d:
        job = Job(d, ranks=4, parts=2)
        put(job.ranks[3], b"three")
        k = job.save()
        fewer = Job(d, ranks=2, parts=2, name="fewer", restore_from=k.path)
        for r in fewer.ranks:
            reason, text = refusal(get, r)
            assert reason == "NOT_SUPPORTED" and "of 4 ranks, and this job has 2" in text
        job.leave(), fewer.leave()


def test_the_last_states_of_a_job(c):
    job = OnNodes(c, steps=2, checkpoint={"dir": str(c.shared), "at_end": True})
    put_all(job, "begin")
    job.step(2)
    given = put_all(job, "end")
    job.leave()
    wait_until("completed", lambda: c["a"].state(job.id) == "COMPLETED")
    assert states_in(job.saved()[-1].path) == given


@pytest.mark.parametrize("part", [0, 1])
def test_an_engine_dies(c, part):
    """That of part 0 has written nothing that counts; that of part 1 has no part in the checkpoint. The states stay."""
    job = OnNodes(c)
    given = waiting(job)
    node = c["ab"[part]]
    [engine] = node.engine_pids()
    c["a"].engines_killed = True  # it tells of all parts
    node.kill_engine(job.id, engine)
    put(job.ranks[3], b"late")
    complete(job, {**given, 3: b"late"})
    job.leave()


def test_a_rank_dies(c):
    """Nobody waits for it any more, and what the others have put is saved."""
    job = OnNodes(c)
    given = waiting(job)
    begun = time.monotonic()
    job.ranks.pop().close()
    complete(job, given)
    assert time.monotonic() - begun < 8
    job.leave()


def test_the_gaccd_of_a_part_dies(c):
    """What was put to it is gone, which is told; it is tried again, and has what ranks put to the next one."""
    job = OnNodes(c)
    given = waiting(job)
    c.kill("b")
    complete(job, {i: s for i, s in given.items() if i < 2})
    assert "no trainers' states of part 1: its gaccd has been restarted" in c["a"].events("StatesMissing")[-1]
    put(job.ranks[3], b"late")
    k = job.save()
    assert states_in(k.path) == {0: given[0], 1: given[1], 3: b"late"}
    job.leave()


def test_the_coordinator_dies(c):
    """The checkpoint is gone, and what was put to that gaccd; what was put to the other one is there. It is told whose are missing."""
    job = OnNodes(c)
    given = waiting(job)
    c.kill("a")
    put(job.ranks[3], b"late")
    assert get(job.ranks[0]) is None and get(job.ranks[2]) == (1, given[2])
    job.save()
    complete(job, {2: given[2], 3: b"late"})
    assert "no trainers' states of part 0" in c["a"].events("StatesMissing")[-1]
    job.leave()


@pytest.mark.campaign  # 30 s
def test_a_node_that_is_away_does_not_keep_the_checkpoint(c):
    """30 s after the engines' files it goes on without the states of that node, and says so. What the node does when it is back harms nothing."""
    job = OnNodes(c)
    given = waiting(job)
    with c.dead("b"):
        wait_until("it goes on", lambda: complete_ones(job), 60)
        complete(job, {i: s for i, s in given.items() if i < 2})
        assert "without the trainers' states of part 1, if it has any: its node has not answered for 30 s" in c["a"].events("StatesMissing")[-1]
    c["b"].wait_ready()
    given = put_all(job, "again")
    assert states_in(job.save().path) == given
    job.step(1)
    job.leave()
