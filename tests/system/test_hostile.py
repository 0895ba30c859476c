# SPDX-License-Identifier: Apache-2.0
"""Users whose clients speak HTTP/2 to harm (hostile.py), beside one who trains: gaccd's memory and descriptors, and his steps."""
import os
import pathlib
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from harness import Daemon, Rank, descriptors, free_port, resident, sanitized, wait_until

pytestmark = pytest.mark.sanitize
MIB = 1 << 20
FIRST_UID = 64000
ENOUGH_S = 0.8
STEP_S = 16 if sanitized() else 8  # none may take longer; without the limits some took as long as the attack
SLOW = ["silent", "half-a-preface", "half-a-frame"]
SLOW_CONNECTIONS = 15
KEPT = 60 * MIB

# Connections, MiB that gaccd may come to besides what it has at rest, what the GOAWAY says.
HEADERS, EARLY, CALLS, MEMORY, IDLE = ("headers of more than 32 KiB", "100 calls, or 16 KiB", "more calls at a time", "than a user may have",
                                       "no call and no data")
KINDS = {
    "continuations": (2, 60, HEADERS),
    "endless-value": (2, 60, HEADERS),
    "calls": (2, 150, CALLS),
    "calls-unacknowledged": (2, 60, EARLY),
    "large-calls-unacknowledged": (2, 60, EARLY),
    "bombs-unacknowledged": (2, 100, EARLY),
    "1000-calls": (40, 420, MEMORY),
    "rapid-reset": (2, 150, IDLE),
    "pings": (2, 150, IDLE + "|too_many_pings"),
    "settings": (2, 60, IDLE),
    "many-settings": (2, 60, IDLE),
    "window-updates": (2, 60, IDLE),
    "empty-data": (2, 60, IDLE),
    "small-data": (2, 250, None),
    "whole-calls": (4, 250, None),
    "connects": (4, 60, None),
    "bad-words": (1, 150, None),
}


def attack(address, uid, kind, connections, seconds, closed):
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    return subprocess.Popen([*user, sys.executable, pathlib.Path(__file__).with_name("hostile.py"), str(address), kind, str(connections),
                             str(seconds), str(int(closed))], stdout=subprocess.PIPE, text=True, env={**os.environ, "HOME": "/"})


class Stage:
    def __init__(self, daemon, rank):
        self.daemon, self.rank, self.steps = daemon, rank, 0
        self.quiet, self.descriptors = resident(daemon.pid), descriptors(daemon.pid)
        self.began = time.monotonic()
        self.slow = [attack(daemon.socket, FIRST_UID - 1 - i, kind, SLOW_CONNECTIONS, 0, SLOW_CONNECTIONS) for i, kind in enumerate(SLOW)]

    def step(self):
        self.rank.push([np.ones(3000, np.float32)])
        self.rank.wait_step()
        self.steps += 1

    def wait_for_memory(self):
        """What came has gone."""
        if sanitized():
            return
        wait_until(lambda: f"{resident(self.daemon.pid) / MIB:.0f} MiB, {self.quiet / MIB:.0f} at rest",
                   lambda: resident(self.daemon.pid) < self.quiet + KEPT)

    def close(self):
        for p in self.slow:
            p.kill()
            p.wait()


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    token = tmp_path_factory.mktemp("tcp") / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o600)
    conf = {"listen.mode": "0666", "listen.tcp": f"127.0.0.1:{free_port()}", "listen.token_file": token}
    with Daemon(conf=conf, allow=["a connection of (uid 6[34].*|a caller over TCP) is closed: ", "gaccd NOTICE: gRPC, .*forged$"]) as d:
        d.dir.chmod(0o755)
        job = d.submit({"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1}})
        with Rank(d, job, 0, [("w", [3000])], 1, inline=True) as rank:
            rank.start({"w": np.zeros(3000, np.float32)})
            s = Stage(d, rank)
            s.step()
            yield s
            s.close()


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@as_root
@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_client_costs_its_user_alone(stage, kind):
    connections, most_mib, why = KINDS[kind]
    d, most, slowest, before = stage.daemon, 0, 0, stage.steps
    logged = len(d.log())
    stage.wait_for_memory()
    client = attack(d.socket, FIRST_UID + list(KINDS).index(kind), kind, connections, ENOUGH_S, why is not None)
    while client.poll() is None:
        began = time.monotonic()
        stage.step()
        slowest, most = max(slowest, time.monotonic() - began), max(most, resident(d.pid))
    sent, closed, said = client.communicate()[0].split(maxsplit=2)
    assert client.returncode == 0
    assert sanitized() or most < stage.quiet + most_mib * MIB, f"{most / MIB:.0f} MiB, {stage.quiet / MIB:.0f} at rest"
    assert stage.steps > before and slowest < STEP_S, (stage.steps - before, slowest)
    assert len(d.log()) - logged < 20000
    if why:
        assert int(closed) > 0 and re.search(why, said), (sent, closed, said)
        assert re.search(f"uid {FIRST_UID + list(KINDS).index(kind)} .* is closed: ", d.log()[logged:]) or "too_many_pings" in said


@as_root
def test_nobody_writes_lines_into_the_log(stage):
    assert "ERROR: forged" in stage.daemon.log()
    assert not re.search("^2026-01-01.*forged", stage.daemon.log(), re.M)


@as_root
def test_a_caller_without_the_token(stage):
    """He may ask for health only, but whatever he sends is read."""
    client = attack(stage.daemon.conf["listen.tcp"], FIRST_UID + len(KINDS), "endless-value", 2, ENOUGH_S, 1)
    while client.poll() is None:
        stage.step()
    assert HEADERS in client.communicate()[0]
    assert "a connection of a caller over TCP is closed: " + HEADERS in stage.daemon.log()


@as_root
def test_who_says_nothing_goes(stage):
    """What does not answer pings is closed, and all is forgotten."""
    for kind, p in zip(SLOW, stage.slow):
        sent, closed, _ = p.communicate()[0].split(maxsplit=2)
        assert int(closed) >= SLOW_CONNECTIONS, kind
    stage.step()
    assert (stage.rank.params()["w"] == -stage.steps).all()
    wait_until(lambda: f"{descriptors(stage.daemon.pid)} descriptors, {stage.descriptors} at rest",
               lambda: descriptors(stage.daemon.pid) <= stage.descriptors)
    stage.wait_for_memory()
