# SPDX-License-Identifier: Apache-2.0
"""Jobs whose parts lie on several nodes: real gaccds with a link between them, and engines that exchange their sums over Gloo.

What a job must be, exact.py says; with the same parts it is the same on one node and on several.
"""
import contextlib
import os
import shutil
import signal
import sqlite3
import time

import pytest

from cluster import Cluster
from harness import GaccError, Rank, alive, children, wait_until
from launching import launched
from test_parts import TENSORS, Compared, draws, spec

QUICK = {"coll.stall": "1s"}
ALLOW = ["AttemptFailed", "CommunicatorLost"]


@pytest.fixture(scope="module")
def two():
    with Cluster(2, conf=QUICK, allow=ALLOW) as c:
        yield c


def drawn(c):
    """The micro-batches of the next window, as they are sent."""
    return [[(weight, c.team.as_sent(grads)[0]) for weight, grads in of] for of in draws(c.n, c.ranks)]


def push(c, sent, *ranks):
    for rank in ranks:
        for weight, grads in sent[rank]:
            c.team[rank].push(grads, weight=weight)


def over(cluster, s, nodes=None, at="a"):
    """A job whose parts lie on these nodes (all of them), submitted at the gaccd of `at`."""
    nodes = list(cluster.names if nodes is None else nodes)
    s = {**s, "nodes": ",".join(nodes)}
    place = [cluster.node_of_rank(r, s["ranks"], s["parts"], nodes) for r in range(s["ranks"])]
    return Compared(cluster[at], s, place)


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_bits_are_those_of_the_definition(two, parts):
    c = over(two, spec(ranks=4, parts=parts))
    for window in range(6):
        c.window([None, [2, 1, 0, 2], [0, 0, 2, 2], [0, 0, 0, 1], None, [1] * 4][window])
    c.close()


def test_all_parts_on_another_node(two):
    c = over(two, spec(ranks=2, parts=1), ["b"])
    c.window()
    c.close()


@pytest.fixture
def three():
    with Cluster(3, conf=QUICK, allow=ALLOW) as c:
        for node in c.nodes.values():
            node.engines_killed = True
        yield c


def test_a_gaccd_that_is_killed_costs_no_step(three):
    """Of a node, and of the coordinator; its parts and their engines come back with the memory."""
    c = over(three, spec(ranks=6, parts=3))
    c.window()
    for name in ("b", "a", "c", "a", "b"):
        three.kill(name)
        c.window()
    c.close()


def test_a_coordinator_that_is_away_is_waited_for(three):
    """Pushes are counted on the other nodes meanwhile; the window ends when it is back."""
    c = over(three, spec(ranks=3, parts=3))
    c.window()
    sent = drawn(c)
    with three.killed("a"):
        push(c, sent, 1, 2)
    push(c, sent, 0)
    c.check(sent, [r.wait_step() for r in c.team.ranks][0].result)
    c.window()
    c.close()


def test_a_rank_that_comes_while_the_coordinator_is_away(three):
    """Its node cannot say that there is no such job: it may be one that was to be placed there. The rank is told to come again."""
    b = three["b"]

    def attach(**how):
        b.client.gradient.Attach(job="4711", rank=0, world_size=2, nonce=os.urandom(16), protocol_min=1, protocol_max=1, **how)
    with three.killed("a"):
        wait_until("the link's end", lambda: " LinkLost" in b.log())
        with pytest.raises(GaccError, match="no part of job .4711. is here so far, and there is no link to the coordinator at 127.0.0.1") as e:
            attach(retry=False)
        assert e.value.reason == "ENGINE_DOWN"
    wait_until("the link", lambda: b.log().count("linked to the coordinator") == 2)
    with pytest.raises(GaccError) as e:
        attach()
    assert e.value.reason == "JOB_NOT_FOUND"


def test_a_rank_that_comes_before_its_jobs_turn():
    """The job waits in the coordinator's queue, so nothing of it is on its node: the node asks, and the rank hears what it would hear there."""
    gib = 1 << 30

    def attach(node, job, rank=1):
        with pytest.raises(GaccError) as e:
            c[node].client.gradient.Attach(job=str(job), rank=rank, world_size=2, nonce=os.urandom(16), protocol_min=1, protocol_max=1, retry=False)
        return e.value.reason, e.value.text
    with Cluster(2, conf={**QUICK, "limits.host_memory": "4GiB"}, allow=[*ALLOW, " Ended job=", " RankExited job="]) as c:
        first = c.submit(launched("sleep", 1000, ranks=1, host_memory=3 * gib), nodes=["a"])
        wait_until("its rank", lambda: c["a"].get_job(first).ranks[0].pid)
        job = c.submit(launched("sleep", 1000, host_memory=4 * gib))
        wait_until("its place", lambda: c["a"].get_job(job).queue_position == 1)
        for node in "ab":
            reason, text = attach(node, job)
            assert reason == "NOT_READY" and f"job {job} waits in the queue: needs " in text, (node, text)
        assert attach("b", job, rank=2) == ("INVALID_ARGUMENT", f"rank is 2, and job {job} has 2 ranks")
        assert attach("b", first, rank=0) == ("WRONG_NODE", f"rank 0 of job {first} is on node a: attach at the gaccd there")
        reason, text = attach("b", 4711)
        assert reason == "JOB_NOT_FOUND" and '"4711"' in text
        for ended in (job, first):
            c["a"].cancel(ended)
        assert attach("b", job)[0] == "JOB_ENDED"
        wait_until("the launchers' end", lambda: not c["a"].launchers())


def test_a_node_that_has_lost_its_memory_ends_the_job(three):
    """It knows by its record that the part has counted; it does not come back with an empty one."""
    c = over(three, spec(ranks=3, parts=3))
    c.window()
    job = c.team.job
    three["a"].allow.append(" Ended .*the job's memory is gone")
    three["c"].allow.append(" RankLost job=")  # the rank closes when a says NODE_FAIL, and c may not have heard it yet
    three.lose("b")
    three["b"].start()
    wait_until("the end", lambda: three["a"].state(job) == "NODE_FAIL")
    assert "part 1: the job's memory is gone: 0 of" in three["a"].get_job(job).reason
    for r in c.team.ranks:
        r.close()


def test_a_rank_on_the_wrong_node_hears_which_is_right(two):
    c = over(two, spec(ranks=2, parts=2))
    for name, rank, right in (("a", 1, "b"), ("b", 0, "a")):
        with pytest.raises(GaccError, match=f"which is on node {right}: attach at the gaccd there") as e:
            Rank(two[name], c.team.job, rank, TENSORS, ranks=2)
        assert e.value.reason == "WRONG_NODE"
    c.window()
    c.close()


def test_the_job_service_answers_on_every_node(two):
    """By the coordinator, whichever gaccd is asked: submission, state, history, events, a watch, the end."""
    b = two["b"]
    c = over(two, spec(ranks=2, parts=2), at="b")
    job = c.team.job
    c.window()
    wait_until("the digest", lambda: b.get_job(job).last.params_digest)
    assert str(b.get_job(job).last) == str(two["a"].get_job(job).last)
    assert [w.result.window for w in b.client.jobs.History(job=str(job), limit=5)] == [0]
    assert any(e.reason == "Submitted" for e in b.get_job(job).events)
    assert [node.client.node.GetNode().name for node in two.nodes.values()] == ["a", "b"]
    with pytest.raises(GaccError) as e:
        b.get_job(12345)
    assert e.value.reason == "JOB_NOT_FOUND"
    two["a"].allow.append(r" Ended job=\d+ .*cancelled by")
    b.cancel(job)
    assert two["a"].state(job) == "CANCELLED"
    for r in c.team.ranks:
        r.close()


def test_nodes_that_a_job_cannot_have(two):
    for nodes, words in (("a,z", "the cluster has no node z; it has a, b"), ("a,b,a", "nodes names a twice"), ("a,b:1", "nodes gives b 1 ranks")):
        with pytest.raises(GaccError) as e:
            two["a"].submit({**spec(ranks=4, parts=4), "nodes": nodes})
        assert e.value.reason == "INVALID_SPEC" and words in str(e.value)
    lost = two["a"].log().count("NodeSuspect: node b")
    with two.killed("b"), pytest.raises(GaccError, match="node b is not linked to this gaccd now"):
        wait_until("the link's end", lambda: two["a"].log().count("NodeSuspect: node b") > lost)
        two["a"].client.jobs.Submit(two["a"].client.types.SubmitRequest(
            spec=two["a"].client.types.spec(name="away", **spec(ranks=2, parts=2), nodes="a,b"), request_id=bytes(16)), retry=False)


def test_a_node_starts_again_without_its_coordinator(three):
    """Its record says what part it has: the ranks there go on with the open window, and a push that was counted stays counted."""
    c = over(three, spec(ranks=3, parts=3))
    c.window()
    sent = drawn(c)
    with three.killed("a"):
        for rank in (1, 2):
            weight, grads = sent[rank][0]
            c.team[rank].push(grads, weight=weight)
        three.kill("b")
        for rank in (1, 2):
            for weight, grads in sent[rank][1:]:
                c.team[rank].push(grads, weight=weight)
        three.kill("c")
    push(c, sent, 0)
    c.check(sent, [r.wait_step() for r in c.team.ranks][0].result)
    c.window()
    c.close()


@pytest.mark.parametrize("also_the_node", [False, True])
def test_a_coordinator_with_an_older_journal_is_not_followed(also_the_node):
    """Else it would drop the parts of jobs that it does not know. The node remembers the highest term, after a restart by its parts."""
    with Cluster(2, conf=QUICK, allow=[*ALLOW, " NodeAhead"]) as cluster:
        a, b = cluster["a"], cluster["b"]
        cluster.kill("a")
        wait_until("its second term", lambda: "(term 2)" in b.log())
        c = over(cluster, spec(ranks=2, parts=2))
        c.window()
        parts = [p.engine_pid for p in c.parts()]
        with cluster.killed("b") if also_the_node else contextlib.nullcontext():
            cluster.lose("a")
            for path in (a.dir / "state").glob("journal*"):
                path.unlink()
            a.start()
        wait_until("the node is refused", lambda: a.log().count("node b has seen term 2 of a coordinator, and this one, a, has 1"))
        time.sleep(1)
        assert "NodeUp: node b" not in a.log().rpartition("Ready:")[2]
        assert also_the_node or alive(parts[1])
        assert len(b.engine_pids()) == 1
        for r in c.team.ranks:
            r.close()


def test_a_tensor_set_that_has_changed_on_a_nodes_disk():
    """That gaccd does not start, and says which job's records are wrong; the job names the node. With the right files it goes on."""
    with Cluster(2, conf=QUICK, allow=[*ALLOW, " journal .*: ", "gaccd does not start with it", "cannot start: its journal", "keeps the jobs' memory",
                                       "exited with 74; starting it again"]) as cluster:
        a, b = cluster["a"], cluster["b"]
        c = over(cluster, spec(ranks=2, parts=2))
        c.window()
        sent = drawn(c)
        push(c, sent, 0)
        state, aside = b.dir / "state", b.dir / "aside"
        aside.mkdir()
        with cluster.dead("b"):
            for path in state.glob("journal*"):
                shutil.copy(path, aside)
            with contextlib.closing(sqlite3.connect(state / "journal.sqlite", isolation_level=None)) as db:
                assert db.execute("UPDATE parts SET tensors = X'ff' WHERE job = ?", (c.team.job,)).rowcount == 1
        wait_until("the refusal", lambda: "exited with 74" in b.log(), 30)
        assert f"records of job {c.team.job} have been altered" in b.log() and "Bring the newest files of" in b.log()
        wait_until("the reason", lambda: "part 1: node b is silent" in a.get_job(c.team.job).reason, 20)
        os.kill(b.supervisor_pid, signal.SIGSTOP)
        wait_until("the last attempt's end", lambda: not children(b.supervisor_pid))
        for path in aside.iterdir():
            shutil.copy(path, state)
        os.kill(b.supervisor_pid, signal.SIGCONT)
        b.wait_ready(60)
        push(c, sent, 1)
        c.check(sent, [r.wait_step() for r in c.team.ranks][0].result)
        c.close()


def test_a_job_waits_for_a_silent_node_for_longer_than_stall_abort(three):
    """Its memory is there when it comes back; nothing is lost."""
    c = over(three, spec(ranks=3, parts=3, stall_warn_ms=4000, stall_abort_ms=5000))
    c.window()
    sent = drawn(c)
    push(c, sent, 0, 2)
    with three.killed("b"):
        wait_until("the reason", lambda: "part 1: node b is silent" in three["a"].get_job(c.team.job).reason, 20)
        time.sleep(3)
        assert three["a"].state(c.team.job) == "STALLED"
    push(c, sent, 1)
    c.check(sent, [r.wait_step() for r in c.team.ranks][0].result)
    c.window()
    c.close()


def test_the_end_is_heard_on_a_node_that_was_away(three):
    """Also if the coordinator has started anew meanwhile."""
    c = over(three, spec(ranks=3, parts=3))
    c.window()
    with three.killed("b"):
        three["a"].cancel(c.team.job)
        three.kill("a")
    with pytest.raises(GaccError) as e:
        c.team[1].wait_step()
    assert e.value.reason == "JOB_ENDED" and "cancelled by" in str(e.value)
    for r in c.team.ranks:
        r.close()


def test_a_node_without_its_state_is_heard(three):
    """It counts its starts from 1 again, and what it says is not taken for old."""
    c = over(three, spec(ranks=3, parts=3))
    c.window()
    three.kill("b")
    three.kill("b")
    c.window()
    three["a"].allow.append(" Ended .*the job's memory is gone")
    three.lose("b")
    shutil.rmtree(three["b"].dir / "state")
    three["b"].start()
    wait_until("the end", lambda: three["a"].state(c.team.job) == "NODE_FAIL")
    for r in c.team.ranks:
        r.close()


def test_what_trainers_do_on_a_node_that_does_not_coordinate(two):
    """They may name the job with its specification, and watch their session."""
    b, s = two["b"], spec(ranks=2, parts=2)
    c = over(two, s, ["b", "a"])
    c.window()
    job = b.get_job(c.team.job)
    with pytest.raises(GaccError) as e:
        b.client.gradient.WatchSession(session=c.team[0].session, timeout=1, retry=False)
    assert e.value.code == "DEADLINE_EXCEEDED"
    again = Rank(b, job.spec.name, 0, TENSORS, ranks=2, create_if_missing=b.client.types.spec(name=job.spec.name, **s))
    assert again.attached.job_id == job.id
    again.start()
    c.team.ranks[0].close()
    c.team.ranks[0] = again
    c.window()
    c.close()


def test_a_submitter_hears_which_node_does_not_answer(two):
    """Before the deadline says no more than that it is over; the job goes on."""
    with two.stopped("b"):
        s = {**spec(ranks=2, parts=1, name="late"), "nodes": "b", "tensors": [{"name": "w", "dtype": 1, "shape": [3]}], "init": [{"pattern": "*", "type": 1}]}
        with pytest.raises(GaccError) as e:
            two["a"].client.jobs.Submit(request_id=os.urandom(16), spec=two["a"].client.types.spec(**s), timeout=3, retry=False)
        assert e.value.reason == "DEADLINE" and "is submitted and goes on, but node b has not answered its placement for 2 s: see gaccctl status" in str(e.value)
        job = next(j.id for j in two["a"].client.jobs.List().jobs if j.spec.name == "late")
    wait_until("it runs", lambda: two["a"].state(job) == "RUNNING")
    two["a"].cancel(job)
