# SPDX-License-Identifier: Apache-2.0
"""Nodes that are upgraded one after the other while a job trains: they are restarted in the middle of windows, and for a while one of them has an
older build, which hello_relay.py plays; tests/long.sh upgrade OLD_BUILD has a real one. What a job must be, exact.py says."""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import time

import pytest

from cli import Cli
from cluster import Cluster
from harness import build_dir, wait_until
from hello_relay import HelloRelay
from test_nodes import ALLOW, QUICK, drawn, over, push
from test_parts import spec

# what this build's engines speak; the tests need not change when it grows
COLL = re.search(r'define NODE_COLL "(.+?)"', (pathlib.Path(__file__).parents[2] / "daemon/edge/node_facts.h").read_text())[1]
OLDER = {"version": b"0.0.9"}
UNLIKE = {"collectives": ({"coll": b"gloo/1"}, f"node b has gloo/1 between engines, and node a, which has part 0, {COLL}: upgrade the older"),
          "kernels": ({"kernels_revision": 2}, "node b has kernels of revision 2, and node a, which has part 0, of 1: upgrade the older")}


@contextlib.contextmanager
def nodes(n, **how):
    """A cluster and the relay before its node b."""
    cluster = Cluster(n, conf=QUICK, allow=[*ALLOW, "StallAbort"], **how)
    with HelloRelay(cluster, "b") as relay:
        relay.change = dict(OLDER)
        with cluster:
            yield cluster, relay


def restart(cluster, relay, name, **build):
    """As an upgrade does: SIGTERM, another build, and its service manager, which has kept the memory, starts it."""
    links = cluster[name].log().count("linked to the coordinator")
    if name == "b":
        relay.change = build
    cluster[name].kill_gaccd(signal.SIGTERM)
    cluster[name].wait_ready()
    if name != "a":
        wait_until("its link", lambda: cluster[name].log().count("linked to the coordinator") > links)


def versions(cluster):
    return {n.name: n.version for n in cluster["a"].client.node.ListNodes().nodes}


def half(sent, which):
    return [of[:1] if which == 0 else of[1:] for of in sent]


def test_a_rolling_restart_costs_no_step():
    """Each node, the coordinator last, in the middle of a window; an older one among them trains with the others."""
    with nodes(3, systemd_ms=20000) as (cluster, relay):
        c = over(cluster, spec(ranks=6, parts=3))
        c.window()
        assert versions(cluster)["b"] == "0.0.9" != versions(cluster)["a"] and relay.changed
        for name in ("c", "b", "a"):
            sent = drawn(c)
            push(c, half(sent, 0), *range(6))
            begin = time.monotonic()
            restart(cluster, relay, name)
            push(c, half(sent, 1), *range(6))
            c.check(sent, [r.wait_step() for r in c.team.ranks][0].result)
            print(f"{name}: the step was done {time.monotonic() - begin:.1f} s after the restart began")
            c.window()
        assert len(set(versions(cluster).values())) == 1
        assert not any(node.events("Ended") for node in cluster.nodes.values())
        c.close()


def running(node):
    """Which program gaccd is."""
    return pathlib.Path(f"/proc/{node.pid}/exe").stat().st_ino


def install(node, program):
    """As a package does: a new file in the place of the old one, which runs on."""
    new = node.program.with_suffix(".new")
    shutil.copy(program, new)
    new.rename(node.program)


@pytest.mark.skipif("GACC_OLD_BUILD" not in os.environ, reason="needs another build: tests/long.sh upgrade OLD_BUILD")
@pytest.mark.parametrize("sharding", ["none", "full"])
def test_an_upgrade_from_another_build(sharding):
    """All nodes have an older gaccd, and get this tree's one after the other, the coordinator last, each in the middle of a window."""
    old, new = pathlib.Path(os.environ["GACC_OLD_BUILD"]) / "bin/gaccd", build_dir() / "bin/gaccd"
    cluster = Cluster(3, conf=QUICK, allow=[*ALLOW, "StallAbort"], systemd_ms=20000)
    for node in cluster.nodes.values():
        node.program = node.dir / "gaccd"
        install(node, old)
    with cluster:
        c = over(cluster, spec(ranks=6, parts=3, sharding=sharding))
        c.window()
        for name in ("c", "b", "a"):
            before, sent = running(cluster[name]), drawn(c)
            push(c, half(sent, 0), *range(6))
            install(cluster[name], new)
            begin = time.monotonic()
            links = cluster[name].log().count("linked to the coordinator")
            cluster[name].kill_gaccd(signal.SIGTERM)
            cluster[name].wait_ready()
            assert running(cluster[name]) != before
            if name != "a":
                wait_until("its link", lambda: cluster[name].log().count("linked to the coordinator") > links)
            push(c, half(sent, 1), *range(6))
            c.check(sent, [r.wait_step() for r in c.team.ranks][0].result)
            print(f"{name}: the step was done {time.monotonic() - begin:.1f} s after the restart began")
            c.window()
        assert not any(node.events("Ended") for node in cluster.nodes.values())
        c.close()


@pytest.mark.parametrize("what", UNLIKE)
def test_a_job_waits_for_nodes_of_another_build(what):
    """Their engines would not understand each other, or compute other bits. Micro-batches are counted meanwhile, and nothing ends the job."""
    change, words = UNLIKE[what]
    with nodes(2, systemd_ms=20000) as (cluster, relay):
        c = over(cluster, spec(ranks=2, parts=2, stall_warn_ms=500, stall_abort_ms=3000))
        a, job = cluster["a"], c.team.job
        c.window()
        restart(cluster, relay, "b", **change)
        sent = drawn(c)
        push(c, sent, 0, 1)
        wait_until(lambda: f"the reason: {a.get_job(job).reason}", lambda: a.get_job(job).reason == f"part 1: {words}")
        time.sleep(4)  # longer than stall_abort
        assert a.state(job) == "STALLED" and a.get_job(job).reason == f"part 1: {words}" and a.get_job(job).applied_step == 1
        assert any("NodeAwaited" in line and words in line for line in a.log().splitlines())
        rows = {n.name: (n.collectives, n.kernels_revision) for n in a.client.node.ListNodes().nodes}
        assert rows["b"] != rows["a"] == (COLL, 1)
        restart(cluster, relay, "b")
        c.check(sent, [r.wait_step() for r in c.team.ranks][0].result)
        assert len(re.findall(f"/1 +{COLL} ", Cli(a.dir, a.endpoint).run("nodes", "-o", "wide"))) == 2
        c.window()
        c.close()


def test_a_job_does_not_begin_on_nodes_of_different_builds():
    change, words = UNLIKE["collectives"]
    with nodes(2) as (cluster, relay):
        relay.change = change
        cluster.kill("b")
        a = cluster["a"]
        wait_until("the other build", lambda: {n.collectives for n in a.client.node.ListNodes().nodes} == {"gloo/1", COLL})
        job = a.submit({**spec(ranks=2, parts=2), "nodes": "a,b", "tensors": [{"name": "w", "dtype": 1, "shape": [3]}], "init": [{"pattern": "*", "type": 1}]})
        wait_until(lambda: f"the reason: {a.get_job(job).reason}", lambda: a.get_job(job).reason == f"part 1: {words}")
        whole = a.submit({**spec(ranks=2, parts=1, name="whole"), "nodes": "b", "tensors": [{"name": "w", "dtype": 1, "shape": [3]}],
                          "init": [{"pattern": "*", "type": 1}]})
        wait_until("one that needs nobody else", lambda: a.state(whole) == "RUNNING")
        a.cancel(job), a.cancel(whole)


@pytest.mark.parametrize("speaks, links", [((1, 3), True), ((3, 3), False)], ids=["also the older one", "only a newer one"])
def test_protocols(speaks, links):
    """A node of the next release speaks ours, too; later ones need not."""
    with nodes(2) as (cluster, relay):
        a, b = cluster["a"], cluster["b"]
        a.allow.append(" NodeRefused: ")
        before = b.log().count("linked to the coordinator")
        relay.change = {"protocol_min": speaks[0], "protocol_max": speaks[1]}
        b.kill_gaccd()
        if links:
            wait_until("the link", lambda: b.log().count("linked to the coordinator") > before)
            c = over(cluster, spec(ranks=2, parts=2))
            c.window()
            c.close()
        else:
            wait_until("its refusal", lambda: "node b speaks protocol 3 to 3, and coordinator a 1 to 2: update the older" in b.log())
            assert b.log().count("linked to the coordinator") == before
