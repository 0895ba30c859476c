# SPDX-License-Identifier: Apache-2.0
"""Several gaccds on one machine, each with what is its own; and how operators see them."""
import concurrent.futures
import re
import stat

import numpy as np
import pytest

from cli import Cli, columns, folder, json_names  # noqa: F401 (fixture)
from cluster import Cluster
from harness import Client, Daemon, GaccError, alive, children, wait_until

LINKS = ["NodeSuspect", "NodeDown", "NodeRefused", "Link", "node a", "coordinator", "killed by signal 9"]


@pytest.fixture(scope="module")
def c():
    with Cluster(3, conf={"cluster.lease": "5s"}, allow=LINKS) as cluster:
        yield cluster


def seen(c):
    """{name: node of the answer}"""
    return {n.name: n for n in c.coordinator.client.node.ListNodes().nodes}


def wait_node(c, name, state, timeout=20.0):
    def reached():
        n = seen(c).get(name)
        return n is not None and n.state == state and n
    return wait_until(lambda: f"{name} in state {state}: {seen(c)}", reached, timeout, 0.05)


UP, SUSPECT, DOWN = 1, 2, 3


def test_each_is_itself(c):
    infos = {name: node.client.node.GetNode() for name, node in c.nodes.items()}
    assert {name: i.name for name, i in infos.items()} == {"a": "a", "b": "b", "c": "c"}
    assert len({i.pid for i in infos.values()}) == 3
    for name, node in c.nodes.items():
        conf = {v.key: v.value for v in node.client.node.GetConfig().values}
        assert conf["cluster.coordinator"].strip('"') == ("" if name == "a" else c.address)
        assert stat.S_IMODE((node.dir / "token").stat().st_mode) == 0o600
    # the coordinator serves TCP, with the token that the others have in their files
    token = (c["b"].dir / "token").read_text()
    for authorization, ok in (f"Bearer {token}", True), ("Bearer " + "0" * 64, False):
        client = Client(c.address, metadata=(("authorization", authorization),))
        try:
            assert client.node.GetNode().name == "a" and ok
        except GaccError as e:
            assert not ok and e.code == "UNAUTHENTICATED", e
        finally:
            client.close()


def test_deaths(c):
    incarnation = {name: node.client.node.GetNode().incarnation for name, node in c.nodes.items()}
    others = {name: c[name].pid for name in "ac"}
    c.kill("b")
    assert c["b"].client.node.GetNode().incarnation == incarnation["b"] + 1
    with c.killed("b") as b:
        assert not children(b.supervisor_pid)
    assert b.client.node.GetNode().incarnation == incarnation["b"] + 2
    with c.stopped("b"):
        with pytest.raises(GaccError):
            b.client.node.GetNode(timeout=0.3, retry=False)
    wait_until("b answers", lambda: b.client.node.GetNode())
    assert others == {name: c[name].pid for name in "ac"}
    supervisor = b.supervisor_pid
    c.lose("b")
    assert not alive(supervisor)
    b.start()
    assert b.client.node.GetNode().incarnation == incarnation["b"] + 3


def test_one_alone_lists_itself(folder):
    with Daemon(conf={"node.name": "alone", "node.data_address": "127.0.0.7"}) as d:
        n, = d.client.node.ListNodes().nodes
        info = d.client.node.GetNode()
        assert (n.name, n.state, n.coordinates, n.drained, n.data_address) == ("alone", UP, True, False, "127.0.0.7")
        assert (n.incarnation, n.version, n.kernels, n.cpus) == (info.incarnation, info.version, info.kernels, info.cpus)
        assert n.host_bytes_limit == info.host_bytes_limit and n.state_since_unix_nanos == info.started_unix_nanos
        assert (n.parts, n.host_bytes_used) == (0, 0)
        cli = Cli(folder, d.endpoint)
        table = cli.run("nodes")
        row, = columns(table)
        assert (row["NAME"], row["STATE"], row["ROLE"], row["PARTS"]) == ("alone", "UP", "coordinator", "0")
        assert table.endswith(" 127.0.0.7 -\n") and f" {n.version} " in cli.run("nodes", "-o", "wide")
        assert cli.run("nodes", "-o", "name") == "node/alone\n" and not cli.err
        node, = cli.json("nodes")["nodes"]
        assert set(node) == json_names(n.DESCRIPTOR) and node["state"] == "UP"


def test_what_the_coordinator_lists(c):
    for name in "bc":
        wait_node(c, name, UP)
    nodes = list(c.coordinator.client.node.ListNodes().nodes)
    assert nodes[0].name == "a" and sorted(n.name for n in nodes) == ["a", "b", "c"]
    assert [n.coordinates for n in nodes] == [True, False, False]
    for n in nodes:
        info = c[n.name].client.node.GetNode()
        assert (n.incarnation, n.version, n.kernels, n.cpus) == (info.incarnation, info.version, info.kernels, info.cpus)
        assert n.host_bytes_limit == info.host_bytes_limit and n.silent_ns < 3e9 and n.heard_unix_nanos
    # a node passes the question on
    told = wait_until("b's answer", lambda: c["b"].client.node.ListNodes().nodes)
    assert [(n.name, n.coordinates, n.incarnation) for n in told] == [(n.name, n.coordinates, n.incarnation) for n in nodes]


def test_parts_are_counted_where_they_lie(c):
    for name in "bc":
        wait_node(c, name, UP)
    job = c.submit({"ranks": 4, "parts": 4, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 0.1}}, nodes=["c", "a"])
    assert {n.name: n.parts for n in seen(c).values()} == {"a": 2, "b": 0, "c": 2}
    c.coordinator.cancel(job)
    assert not any(n.parts for n in seen(c).values())


def test_parts_and_ranks_have_their_node(c, folder):
    for name in "bc":
        wait_node(c, name, UP)
    job = c.submit({"ranks": 5, "parts": 2, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 0.5}, "reduction": "sum"}, nodes=["c", "a"])
    ranks = [c.rank(job, r, 5, 2, [("w", [3])], nodes=["c", "a"]) for r in range(5)]
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda r: r.start({"w": np.zeros(3, np.float32)}), ranks))
        list(pool.map(lambda r: (r.push([np.ones(3, np.float32)]), r.wait_step()), ranks))
    j = wait_until("the views of both parts", lambda: (lambda j: all(p.engine_pid for p in j.parts) and j)(c.coordinator.get_job(job)))
    assert [(p.number, p.node, p.first_rank, p.n_ranks) for p in j.parts] == [(0, "c", 0, 2), (1, "a", 2, 3)]
    assert [r.node for r in j.ranks] == ["c", "c", "a", "a", "a"]
    assert [p.engine_pid for p in j.parts] == [c[n].engine_pids()[0] for n in "ca"]
    cli = Cli(folder, c.coordinator.endpoint)
    table = cli.run("describe", f"job/{job}").partition("\nParts:\n")[2].partition("\n\n")[0]
    rows = columns(table)
    assert [(r["PART"], r["NODE"], r["RANKS"], int(r["ENGINE"]), r["RESTARTS"], int(r["COMM"])) for r in rows] == \
        [("0", "c", "0-1", j.parts[0].engine_pid, "0", j.parts[0].communicator), ("1", "a", "2-4", j.parts[1].engine_pid, "0", j.parts[1].communicator)]
    assert [r["NODE"] for r in columns(cli.run("status", job).partition("\n")[2])] == ["c", "c", "a", "a", "a"]
    c.coordinator.cancel(job)
    for r in ranks:
        r.close()

    # a job of one part says it when that is elsewhere, and only then
    there, here = c.submit({"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1}}, nodes=["b"]), c.submit(
        {"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1}}, nodes=["a"])
    assert [p.node for p in c.coordinator.get_job(there).parts] == ["b"] and not c.coordinator.get_job(here).parts
    assert "\nParts:" in cli.run("describe", there) and "\nParts:" not in cli.run("describe", here)
    c.coordinator.cancel(there), c.coordinator.cancel(here)


def test_drained(c, folder):
    for name in "bc":
        wait_node(c, name, UP)
    spec = {"ranks": 2, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1}}
    before = c.submit(spec, nodes=["b", "c"])
    cli = Cli(folder, c.coordinator.endpoint)
    row, = columns(cli.run("nodes", "drain", "b"))
    assert (row["NAME"], row["STATE"]) == ("b", "UP,drained")
    assert {n.name: (n.drained, n.state, n.parts) for n in seen(c).values()} == {"a": (False, UP, 0), "b": (True, UP, 1), "c": (False, UP, 1)}
    with pytest.raises(GaccError) as e:
        c.submit(spec, nodes=["c", "b"])
    assert e.value.reason == "INVALID_SPEC" and "node b is drained" in str(e.value)
    after = c.submit(spec, nodes=["c"])
    assert c.coordinator.state(before) == c.coordinator.state(after) == "PENDING"
    assert "no node" in (cli.run("nodes", "drain", "nonesuch", code=2), cli.err)[1]
    assert "cannot be drained" in (cli.run("nodes", "drain", "a", code=2), cli.err)[1]
    for words in ["drain"], ["lose", "b"], ["b"]:
        cli.run("nodes", *words, code=2)
    row, = cli.json("nodes", "undrain", "b")["nodes"]
    assert (row["name"], row["drained"], row["parts"]) == ("b", False, 1) and not seen(c)["b"].drained
    again = c.submit(spec, nodes=["c", "b"])
    for job in before, after, again:
        c.coordinator.cancel(job)


def test_states_of_a_silent_node(c, folder):
    wait_node(c, "b", UP), wait_node(c, "c", UP)
    cli = Cli(folder, c.coordinator.endpoint)
    with c.stopped("b"):
        n = wait_node(c, "b", SUSPECT)
        assert 2.5e9 <= n.silent_ns < 5e9 and seen(c)["c"].state == UP
        row = next(r for r in columns(cli.run("nodes")) if r["NAME"] == "b")
        assert row["STATE"] == "SUSPECT" and row["SILENT"] in ("2s", "3s", "4s") and re.fullmatch("[01]s", row["FOR"])
        n = wait_node(c, "b", DOWN)
        assert n.silent_ns >= 4.5e9 and seen(c)["c"].state == UP
        assert cli.json("nodes")["nodes"][[x.name for x in c.coordinator.client.node.ListNodes().nodes].index("b")]["state"] == "DOWN"
    n = wait_node(c, "b", UP)
    assert n.silent_ns < 3e9
