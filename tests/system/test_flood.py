# SPDX-License-Identifier: Apache-2.0
"""Users who fill gaccd's memory with requests that are never whole, beside one who trains."""
import os
import pathlib
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from harness import Client, Daemon, Rank, resident, wait_until

MIB = 1 << 20
REQUESTS = 128 * MIB
# Over limits.request_memory: gaccd at rest, and what its allocator has of memory that was taken and given back.
BESIDES = 330 * MIB
KEPT = 90 * MIB  # of that, afterwards
STEP_S = 10  # none takes longer; the floods may go on for 20 s
FLOODERS = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"], ["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups"]


def flood(daemon, user, enough, connections, streams):
    return subprocess.Popen([*user, sys.executable, pathlib.Path(__file__).with_name("flood.py"), daemon.socket,
                             str(enough), str(connections), str(streams)], stdout=subprocess.PIPE, text=True, env={**os.environ, "HOME": "/"})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("enough,connections,streams", [(6 * REQUESTS, 4, 4), (REQUESTS // 2, 4, 300)], ids=["few-streams", "many-streams"])
def test_unread_requests_are_bounded_and_cost_their_user_alone(enough, connections, streams):
    with Daemon(conf={"limits.request_memory": REQUESTS, "listen.mode": "0666"}, allow=[f"requests of uid {uid} .* limits.request_memory" for uid in (65534, 65533)]) as d:
        d.dir.chmod(0o755)
        quiet = resident(d.pid)
        job = d.submit({"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1}})
        with Rank(d, job, 0, [("w", [300000])], 1, inline=True) as rank:
            rank.start({"w": np.zeros(300000, np.float32)})
            floods = [flood(d, user, enough, connections, streams) for user in FLOODERS]
            most, slowest, steps = 0, 0, 0
            while any(f.poll() is None for f in floods):
                began = time.monotonic()
                rank.push([np.ones(300000, np.float32)])
                rank.wait_step()
                new = Client(d.endpoint)
                for client in (d.client, new):
                    client.node.GetNode(timeout=STEP_S, retry=False)
                new.close()
                slowest, most, steps = max(slowest, time.monotonic() - began), max(most, resident(d.pid)), steps + 1
            assert (rank.params()["w"] == -steps).all()
        for f in floods:
            taken, ended = (int(n) for n in f.communicate(timeout=60)[0].split())
            assert f.returncode == 0 and taken >= enough and ended >= 100, (taken, ended)
        for uid in 65534, 65533:
            assert len(re.findall(f"requests of uid {uid} .* limits.request_memory", d.log())) == 1
        assert most < REQUESTS + BESIDES, f"{most / MIB:.0f} MiB"
        assert steps > 2 and slowest < STEP_S, (steps, slowest)
        wait_until(lambda: f"{resident(d.pid) / MIB:.0f} MiB", lambda: resident(d.pid) < quiet + KEPT)
