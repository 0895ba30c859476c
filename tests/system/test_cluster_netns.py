# SPDX-License-Identifier: Apache-2.0
"""gaccctl cluster up --netns: gaccds in network namespaces, a job over two of them, and that nothing is left of them or done to others."""
import contextlib
import os
import pathlib
import signal
import subprocess
import types

import pytest

from cli import Cli, folder  # noqa: F401 (fixture)
from failpoint_job import PARTS, RANKS, Trainers, exact_result, spec
from harness import Client, Daemon, alive, build_dir, children, wait_until

NODES = ("--nodes", 2, "--netns")


def ip(*words):
    return subprocess.run(["ip", *words], check=True, text=True, capture_output=True, timeout=20).stdout


def ours(what="netns"):
    """Namespaces and interfaces of this machine that gaccctl may have made."""
    words = {"netns": ("netns", "list"), "link": ("-o", "link")}[what]
    return {line.split()[0 if what == "netns" else 1] for line in ip(*words).splitlines() if "gacc" in line or what == "link"}


@pytest.fixture
def cli(folder):
    if os.geteuid():
        pytest.skip("only root may make network namespaces")
    if subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode:
        pytest.skip("no network namespace can be made here, as in a container without CAP_SYS_ADMIN")
    user, before = Cli(folder), (ours(), ours("link"))
    yield user
    if list(folder.glob("gacc-cluster-*")):
        user.run("cluster", "down")
    assert (ours(), ours("link")) == before


def train(job, out, place):
    """The parameters of all ranks at the end."""
    trainers = Trainers(types.SimpleNamespace(dir=out, endpoint=place[0].endpoint), job, by_rpc=(0, 2), parts=PARTS, place=place)
    try:
        wait_until(trainers.heard, lambda: trainers.poll(None), 60)
    finally:
        trainers.kill()
    return trainers.results()


def test_a_job_over_two_namespaces(cli, folder):
    """Its parameters have the bits of one gaccd with two parts; links and engines use the addresses of the namespaces, links with certificates."""
    before, links = ours(), ours("link")
    cli.run("cluster", "up", *NODES)
    said, up = cli.err, cli.json("cluster", "status")
    cli.env["GACC_ENDPOINT"] = up["endpoint"]
    made = ours() - before
    assert len(made) == 3 and {n["netns"] for n in up["nodes"]} < made and ours("link") == links
    assert all(n["netns"] in said for n in up["nodes"])
    nodes = cli.json("nodes")["nodes"]
    assert [(n["name"], n["state"], n["data_address"]) for n in nodes] == [("node0", "UP", "10.71.0.1"), ("node1", "UP", "10.71.0.2")]
    for n, namespace in zip(up["nodes"], [n["netns"] for n in up["nodes"]]):
        pid, = children(n["pid"])
        assert os.readlink(f"/proc/{pid}/ns/net") == f"net:[{os.stat(f'/run/netns/{namespace}').st_ino}]" != os.readlink("/proc/self/ns/net")
    place = [types.SimpleNamespace(endpoint=n["endpoint"], dir=folder) for n in up["nodes"] for _ in range(RANKS // PARTS)]
    with contextlib.closing(Client(up["endpoint"])) as client:
        request = client.types.SubmitRequest(spec=client.types.spec(name="over", **spec(False, PARTS), nodes="node0,node1"), request_id=os.urandom(16))
        over = train(client.jobs.Submit(request).job.id, folder, place)
    log = (pathlib.Path(up["nodes"][1]["directory"]) / "log").read_text()
    assert "linked to the coordinator, node node0 at 10.71.0.1:17420" in log and not [x for x in log.splitlines() if " WARN" in x or " ERROR" in x]
    with Daemon() as d:
        one = train(d.submit({**spec(False, PARTS), "name": "one"}), d.dir, [d] * RANKS)
    assert len(over) == RANKS and set(over) == set(one) == {exact_result(PARTS)}
    cli.run("cluster", "down")
    assert ours() == before and not list(folder.glob("gacc-cluster-*")) and not any(alive(n["pid"]) for n in up["nodes"])


def test_a_start_that_fails_leaves_no_namespace(cli, folder):
    program = folder / "gaccd"
    program.write_text(f"#!/bin/sh\ncase $* in *node-1*) echo this one fails; exit 3;; esac\nexec {build_dir()}/bin/gaccd \"$@\"\n")
    program.chmod(0o755)
    before = ours()
    cli.run("cluster", "up", *NODES, "--gaccd", program, code=1)
    assert "node1 ended at once" in cli.err and "this one fails" in cli.err
    assert ours() == before and not list(folder.glob("gacc-cluster-*"))


def test_what_ip_cannot_make_is_taken_back(cli, folder):
    """The second namespace, by a program that stands for ip; the certificates are made before."""
    wrapper, before = folder / "bin/ip", ours()
    wrapper.parent.mkdir()
    real = subprocess.run(["sh", "-c", "command -v ip"], text=True, capture_output=True).stdout.strip()
    wrapper.write_text(f"#!/bin/sh\ncase $* in 'netns add '*-1) echo no room >&2; exit 1;; esac\nexec {real} \"$@\"\n")
    wrapper.chmod(0o755)
    cli.env["PATH"] = f"{wrapper.parent}:{cli.env['PATH']}"
    cli.run("cluster", "up", *NODES, code=1)
    assert "no room" in cli.err and "the network namespaces cannot be made; nothing of them is left" in cli.err
    assert ours() == before and not list(folder.glob("gacc-cluster-*"))


@pytest.mark.parametrize("then", ["down", "up"])
def test_namespaces_of_gaccds_that_died(cli, folder, then):
    """Also a namespace that somebody has removed meanwhile."""
    before = ours()
    cli.run("cluster", "up", *NODES)
    first = ours() - before
    up = cli.json("cluster", "status")
    for n in up["nodes"]:
        for pid in (n["pid"], *children(n["pid"])):
            os.kill(pid, signal.SIGKILL)
    wait_until("their death", lambda: not any(alive(n["pid"]) for n in up["nodes"]))
    ip("netns", "delete", up["nodes"][1]["netns"])
    cli.run("cluster", then, *(NODES if then == "up" else ()))
    assert not ours() & first
    if then == "up":
        assert len(ours() - before) == 3
        cli.run("cluster", "down")


def test_a_namespace_of_that_name_is_not_touched(cli, folder):
    """cluster.json says which are ours; what is not six hexadecimal digits is nobody's."""
    (folder / "gacc-cluster-0").mkdir(mode=0o700)
    ip("netns", "add", "gacc-x-0")
    try:
        (folder / "gacc-cluster-0/cluster.json").write_text('{"nodes": [{"pid": 0, "start": 0}, {"pid": 0, "start": 0}], "net": "x"}')
        cli.run("cluster", "down")
        assert "gacc-x-0" in ours()
    finally:
        ip("netns", "delete", "gacc-x-0")


def test_what_is_refused(folder):
    user = Cli(folder)
    user.run("cluster", "up", "--netns", code=2)
    assert "--netns needs --nodes 2 or more" in user.err
    if os.geteuid() == 0:
        as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", build_dir() / "bin/gaccctl", "cluster", "up", "--nodes", "2", "--netns"]
        folder.chmod(0o777)
        done = subprocess.run(as_nobody, env=user.env, text=True, capture_output=True, timeout=20)
        code, err = done.returncode, done.stderr
    else:
        user.run("cluster", "up", *NODES, code=1)
        code, err = 1, user.err
    assert code == 1 and "--netns makes network namespaces, which only root may do" in err and "the nodes share loopback" in err
    if os.geteuid() == 0:
        user.env["PATH"] = str(folder)
        user.run("cluster", "up", *NODES, code=1)
        assert "--netns needs the program ip, which cannot be run" in user.err and "install the package iproute2" in user.err
    assert not list(folder.glob("gacc-cluster-*"))
