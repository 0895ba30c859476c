# SPDX-License-Identifier: Apache-2.0
"""gaccctl cluster up --netns: gaccds in network namespaces, a job over two of them, and that nothing is left of them or done to others."""
import contextlib
import os
import pathlib
import shutil
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


def links():
    return ip("-o", "link")


class Watched(Cli):
    """gaccctl with an ip(8) that notes what it is told, so that this machine's other namespaces need not be looked at."""

    def __init__(self, folder):
        super().__init__(folder)
        self.said, wrapper = folder / "ip.log", folder / "bin/ip"
        wrapper.parent.mkdir()
        wrapper.write_text(f'#!/bin/sh\necho "$*" >> {self.said}\n[ ! -e {folder}/broken ] || case $* in $(cat {folder}/broken)) echo no room >&2; exit 1;; esac\n'
                           f'exec {shutil.which("ip")} "$@"\n')
        wrapper.chmod(0o755)
        self.env["PATH"] = f"{wrapper.parent}:{self.env['PATH']}"

    def made(self):
        """Names of the namespaces that it has ever made."""
        words = self.said.read_text().split("\n") if self.said.exists() else []
        return {w.split()[2] for w in words if w.startswith("netns add ")}

    def left(self):
        return {name for name in self.made() if pathlib.Path("/run/netns", name).exists()}


@pytest.fixture
def cli(folder):
    if os.geteuid():
        pytest.skip("only root may make network namespaces")
    if subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode:
        pytest.skip("no network namespace can be made here, as in a container without CAP_SYS_ADMIN")
    user = Watched(folder)
    yield user
    if list(folder.glob("gacc-cluster-*")):
        user.run("cluster", "down")
    left = user.left()
    for name in left:
        ip("netns", "delete", name)
    assert not left


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
    before = links()
    cli.run("cluster", "up", *NODES)
    said, up = cli.err, cli.json("cluster", "status")
    cli.env["GACC_ENDPOINT"] = up["endpoint"]
    assert len(cli.left()) == 3 and {n["netns"] for n in up["nodes"]} < cli.left() and links() == before
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
    assert not cli.left() and links() == before and not list(folder.glob("gacc-cluster-*")) and not any(alive(n["pid"]) for n in up["nodes"])


def test_a_start_that_fails_leaves_no_namespace(cli, folder):
    program = folder / "gaccd"
    program.write_text(f"#!/bin/sh\ncase $* in *node-1*) echo this one fails; exit 3;; esac\nexec {build_dir()}/bin/gaccd \"$@\"\n")
    program.chmod(0o755)
    cli.run("cluster", "up", *NODES, "--gaccd", program, code=1)
    assert "node1 ended at once" in cli.err and "this one fails" in cli.err
    assert len(cli.made()) == 3 and not cli.left() and not list(folder.glob("gacc-cluster-*"))


def test_what_ip_cannot_make_is_taken_back(cli, folder):
    """The second namespace; the certificates and the first one are there by then."""
    (folder / "broken").write_text("netns add *-1")
    cli.run("cluster", "up", *NODES, code=1)
    assert "no room" in cli.err and "the network namespaces cannot be made; nothing of them is left" in cli.err
    assert len(cli.made()) == 3 and not cli.left() and not list(folder.glob("gacc-cluster-*"))


@pytest.mark.parametrize("then", ["down", "up"])
def test_namespaces_of_gaccds_that_died(cli, folder, then):
    """Also a namespace that somebody has removed meanwhile."""
    cli.run("cluster", "up", *NODES)
    first, up = cli.left(), cli.json("cluster", "status")
    for n in up["nodes"]:
        for pid in (n["pid"], *children(n["pid"])):
            os.kill(pid, signal.SIGKILL)
    wait_until("their death", lambda: not any(alive(n["pid"]) for n in up["nodes"]))
    ip("netns", "delete", up["nodes"][1]["netns"])
    cli.run("cluster", then, *(NODES if then == "up" else ()))
    assert len(first) == 3 and not cli.left() & first
    if then == "up":
        assert len(cli.left()) == 3
        cli.run("cluster", "down")


def test_a_namespace_of_that_name_is_not_touched(cli, folder):
    """cluster.json says which are ours; what is not six hexadecimal digits is nobody's."""
    (folder / "gacc-cluster-0").mkdir(mode=0o700)
    name = f"gacc-x{os.getpid()}-0"
    ip("netns", "add", name)
    try:
        (folder / "gacc-cluster-0/cluster.json").write_text('{"nodes": [{"pid": 0, "start": 0}, {"pid": 0, "start": 0}], "net": "x%d"}' % os.getpid())
        cli.run("cluster", "down")
        assert pathlib.Path("/run/netns", name).exists()
    finally:
        ip("netns", "delete", name)


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
