# SPDX-License-Identifier: Apache-2.0
"""What gaccctl shows of jobs over several nodes: it names the node of what it shows, and says the same whichever node is asked."""
import pytest

from cli import Cli, columns
from cluster import Cluster
from harness import wait_until
from test_parts import TENSORS, draws, spec
from training import Team

PARTS, NODES = 4, ["a", "a", "b", "c"]  # the node of each part
ELEMENTS = 40 * 8192  # each of the four shares is of 10 * 8192
WHOLE = [("w", [ELEMENTS])]


@pytest.fixture(scope="module")
def c():
    with Cluster(3, allow=["AttemptFailed", "CommunicatorLost"]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def asked(c):
    """gaccctl at each node."""
    return {name: Cli(node.dir, node.endpoint) for name, node in c.nodes.items()}


def team(c, tensors=TENSORS, **more):
    return Team(c["a"], spec(ranks=PARTS, parts=PARTS, nodes="a,b,c", **more), tensors, place=[c[name] for name in NODES])


def memory(rows, name):
    return {kind: sum(int(r["bytes"]) for r in rows if (r["node"], r["kind"]) == (name, kind)) for kind in {r["kind"] for r in rows}}


def used(c):
    return {name: node.client.node.GetNode().host_bytes_used for name, node in c.nodes.items()}


def test_memory_of_each_node(c, asked):
    """What each node really holds; with the optimizer state shared by four parts, each has a quarter of it and all of the rest."""
    rows = {}
    for sharding in "none", "full":
        with team(c, WHOLE, sharding=sharding) as t:
            wait_until("the views of all", lambda: all(p.host_bytes for p in c["a"].get_job(t.job).parts))
            rows[sharding] = asked["b"].json("buffers", t.job)["buffers"]
            assert sorted({(r["part"], r["node"]) for r in rows[sharding]}) == list(enumerate(NODES))
            told = wait_until("the nodes' beats", lambda: (m := asked["c"].json("buffers")) and {n["name"]: int(n["host_bytes_used"]) for n in m["nodes"]} == used(c) and m)
            for name in c.names:
                assert asked[name].json("buffers", t.job)["buffers"] == rows[sharding]
                assert sum(memory(rows[sharding], name).values()) == used(c)[name] > 0
            assert all(n["heard"] and n["user_bytes_used"] == n["host_bytes_used"] for n in told["nodes"])
            lines = asked["b"].run("buffers", t.job).splitlines()
            assert lines[0].split() == ["JOB", "NODE", "PART", "KIND", "SEGMENTS", "TENSORS", "BYTES", "CLIENTS"]
            assert [line.split()[1:4] for line in lines if " parameters " in line] == [[n, str(i), "parameters"] for i, n in enumerate(NODES)]
            assert [line.split(":")[0] for line in lines[-3:]] == ["node a", "node b", "node c"]
            assert asked["c"].run("buffers", "-o", "name").count(f"job/{t.job}/slots\n") == 1
    for name, parts in {"a": 2, "b": 1, "c": 1}.items():
        whole, shared = (memory(rows[s], name) for s in ("none", "full"))
        saved = {kind: n - shared[kind] for kind, n in whole.items() if n != shared[kind]}
        assert saved == {"optimizer state": parts * 2 * 4 * ELEMENTS * 3 // 4}, (name, whole, shared)


def test_a_jobs_memory_alone_names_its_nodes_alone(c, asked):
    with Team(c["a"], spec(ranks=1, parts=1, nodes="b"), TENSORS, place=[c["b"]]) as t:
        shown = wait_until("its memory", lambda: (m := asked["c"].json("buffers", t.job))["buffers"] and m)
        assert [n["name"] for n in shown["nodes"]] == ["b"] and {r["node"] for r in shown["buffers"]} == {"b"}
        with c.killed("b"):
            c.kill("a")
            assert asked["a"].run("buffers", t.job) == "node b: not heard yet\n"
        wait_until("node b", lambda: [n["host_bytes_used"] for n in asked["a"].json("buffers", t.job)["nodes"]] == [used(c)["b"]])


def test_jobs_and_their_nodes(c, asked):
    """Also of a job that has ended, and of one on a single node, which has no list of parts."""
    one = c["a"].submit(spec(ranks=1, parts=1, name="one"))
    with team(c, name="spread") as t:
        t.window(draws(0, PARTS))
        lines = {name: cli.run("describe", f"job/{t.job}").splitlines() for name, cli in asked.items()}
        for name, cli in asked.items():
            seen = {row["NAME"]: row["NODES"] for row in columns(cli.run("jobs").replace("WAIT%", "WAIT"))}
            assert (seen["one"], seen["spread"]) == ("a", "a,b,c")
            assert {j["id"]: j["nodes"] for j in cli.json("jobs")["jobs"]} == {one: ["a"], t.job: ["a", "b", "c"]}
            last, = [line for line in lines[name] if line.startswith("Last rank in:")]
            assert last.split()[4:6] == ["on", NODES[int(last.split()[3])] + ","]
            assert [row["NODE"] for row in columns(cli.run("comms", t.job).replace("CANNOT REACH", "UNREACHED"))] == NODES
            assert [p["node"] for p in cli.json("comms", t.job)["parts"]] == NODES
    c["a"].cancel(one)
    wait_until("the end of both", lambda: not asked["b"].json("jobs")["jobs"])
    assert {j["id"]: j["nodes"] for j in asked["c"].json("jobs", "-a")["jobs"] if j["id"] in (one, t.job)} == {one: ["a"], t.job: ["a", "b", "c"]}


def test_history_and_its_nodes(c, asked):
    """Of the last rank, of those that gave too little, and of each micro-batch; also when the job has ended, and after a restart of the coordinator."""
    def check(job):
        for cli in asked.values():
            window, = cli.json("history", job, "--micros")["windows"]
            assert window["blocks"] == [{"node": "a", "first_rank": 0, "n_ranks": 2}, {"node": "b", "first_rank": 2, "n_ranks": 1}, {"node": "c", "first_rank": 3, "n_ranks": 1}]
            assert (window["result"]["last_rank"], window["last_node"], window["short_ranks"]) == (2, "b", [0, 1, 3])
            row = cli.run("history", job).splitlines()[1].split()
            assert row[8:10] == ["2", "b"] and row[12:16] == ["0,1", "(a),", "3", "(c)"]
            rows = columns(cli.run("history", job, "--micros").replace("LATE BY", "BY").replace(" ms", ""))
            assert [(x["RANK"], x["NODE"]) for x in rows] == [("0", "a"), ("1", "a"), ("2", "b"), ("2", "b"), ("3", "c")]
    with team(c, name="past") as t:
        work = draws(0, PARTS, [1, 1, 2, 1])
        sent = [[(weight, t.as_sent(grads)[0]) for weight, grads in of] for of in work]
        for rank in (0, 1, 3, 2):
            for weight, grads in sent[rank]:
                t[rank].push(grads, weight=weight)
            if rank != 2:
                t[rank].flush()
        for r in t.ranks:
            r.wait_step()
        wait_until("the window", lambda: asked["b"].json("history", t.job)["windows"])
        check(t.job)
    wait_until("the end", lambda: c["a"].state(t.job) == "COMPLETED")
    c.kill("a")
    wait_until("the links", lambda: all(n["state"] == "UP" for n in asked["a"].json("nodes")["nodes"]))
    check(t.job)
