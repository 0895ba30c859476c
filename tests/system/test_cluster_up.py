# SPDX-License-Identifier: Apache-2.0
"""gaccctl cluster with several gaccds: what it starts, shows, ends, and leaves."""
import os
import pathlib
import re
import signal
import stat

import pytest

from cli import Cli, folder  # noqa: F401 (fixture)
from harness import Client, alive, build_dir, children, wait_until


@pytest.fixture
def cli(folder):
    """Whatever a test that fails has started is ended."""
    user = Cli(folder)
    yield user
    if list(folder.glob("gacc-cluster-*")):
        user.run("cluster", "down")


def conf_of(endpoint):
    client = Client(endpoint)
    try:
        return {v.key: v.value.strip('"') for v in client.node.GetConfig().values}
    finally:
        client.close()


def test_three_nodes_live_and_die(cli, folder):
    line = cli.run("cluster", "up", "--nodes", 3)
    root, = folder.glob("gacc-cluster-*")
    assert "node0" in cli.err and "node2" in cli.err and "3 gaccds run in" in cli.err
    up = cli.json("cluster", "status")
    assert [n["name"] for n in up["nodes"]] == ["node0", "node1", "node2"]
    assert line == f"export GACC_ENDPOINT={up['nodes'][0]['endpoint']}\n" and up["endpoint"] == up["nodes"][0]["endpoint"]
    assert cli.run("cluster", "up", "-o", "name").split() == [n["endpoint"] for n in up["nodes"]]
    assert len({n["pid"] for n in up["nodes"]}) == 3 and all(alive(n["pid"]) for n in up["nodes"])
    assert [x.split()[:2] for x in cli.run("cluster", "status").splitlines()] == [[f"node{i}", "up:"] for i in range(3)]

    # the first listens on loopback, the others dial it and have its token, which is nobody else's
    token = root / "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600 and re.fullmatch("[0-9a-f]{64}", token.read_text())
    confs = [conf_of(n["endpoint"]) for n in up["nodes"]]
    assert [c["node.name"] for c in confs] == ["node0", "node1", "node2"]
    address = confs[0]["listen.tcp"]
    assert re.fullmatch(r"127\.0\.0\.1:\d+", address) and confs[0]["listen.token_file"] == str(token)
    assert confs[0]["cluster.coordinator"] == ""
    for c in confs[1:]:
        assert (c["cluster.coordinator"], c["cluster.token_file"], c["listen.tcp"]) == (address, str(token), "")
    tcp = Client(address, metadata=(("authorization", f"Bearer {token.read_text()}"),))
    assert tcp.node.GetNode().name == "node0"
    tcp.close()

    # those that run are not started twice
    assert cli.run("cluster", "up") == line and "run already" in cli.err
    assert cli.json("cluster", "up", "--nodes", 3) == up
    assert "3 of 3 gaccds run" in (cli.run("cluster", "up", "--nodes", 2, code=1), cli.err)[1]
    for n in 0, 33, "x":
        assert "from 1 to 32" in (cli.run("cluster", "up", "--nodes", n, code=2), cli.err)[1]

    cli.env["GACC_ENDPOINT"] = up["endpoint"]
    cli.submit()
    assert cli.run("cluster", "down") == "" and not root.exists() and "3 gaccds have ended" in cli.err
    assert not any(alive(n["pid"]) for n in up["nodes"])


def test_a_dead_one_is_named(cli, folder):
    cli.run("cluster", "up", "--nodes", 3)
    root, = folder.glob("gacc-cluster-*")
    up = cli.json("cluster", "status")
    dead = up["nodes"][1]["pid"]
    for pid in (dead, *children(dead)):
        os.kill(pid, signal.SIGKILL)
    wait_until("death", lambda: not alive(dead))
    out = cli.run("cluster", "status", code=8)
    assert [x.split()[0] for x in out.splitlines()] == ["node0", "node2"] and f"node1 (pid {dead})" in cli.err and "has died" in cli.err
    assert cli.json("cluster", "status", code=8)["error"]["reason"] == "CLUSTER"
    assert "2 of 3 gaccds run" in (cli.run("cluster", "up", "--nodes", 3, code=1), cli.err)[1]
    cli.run("cluster", "down")
    assert not root.exists() and not any(alive(n["pid"]) for n in up["nodes"])


def test_one_that_does_not_start_ends_the_others(cli, folder):
    program, pids = folder / "gaccd", folder / "pids"
    program.write_text("#!/bin/sh\ncase $* in *node-1*) echo this one fails; exit 3;; esac\n"
                       f"echo $$ >> {pids}; exec {build_dir()}/bin/gaccd \"$@\"\n")
    program.chmod(0o755)
    cli.run("cluster", "up", "--nodes", 3, "--gaccd", program, code=1)
    assert "node1 ended at once" in cli.err and "this one fails" in cli.err
    started = [int(p) for p in pathlib.Path(pids).read_text().split()]
    assert len(started) == 1 and not any(map(alive, started))
    assert not list(folder.glob("gacc-cluster-*"))
