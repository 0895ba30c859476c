# SPDX-License-Identifier: Apache-2.0
"""New certificates in a running cluster, of another authority: connections that are open stay, and new ones need the new certificates."""
import os
import pathlib
import shutil
import signal
import subprocess
import threading

import grpc
import numpy as np
import pytest

from cluster import MAKE_CERTS, Cluster
from gacc_client import CHUNK
from harness import Client, GaccError, Rank, wait_until

W = [("w", [CHUNK // 4 + 1000])]  # two messages


@pytest.fixture
def c(tmp_path):
    revoked = tmp_path / "revoked"
    revoked.write_text("")
    with Cluster(2, tls=True, conf={"coll.stall": "5s", "tls.revoked": revoked}, allow=[" Link", "handshake", "TLS"]) as cluster:
        cluster.revoked = revoked
        yield cluster


def client(c, certs):
    files = [(certs / name).read_bytes() for name in ("ca.pem", "admin-root.key", "admin-root.pem")]
    return Client(c.address, credentials=grpc.ssl_channel_credentials(*files))


def connections(c):
    """(local port, inode) of those to the coordinator's port that are established."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in pathlib.Path("/proc/net", name).read_text().splitlines()[1:]]
    return {(r[1], r[9]) for r in rows if int(r[2].split(":")[1], 16) == c.port and r[3] == "01"}


def replace(c, new):
    """By certificates for the same names, as an administrator would copy them."""
    subprocess.run(["sh", MAKE_CERTS, new, "coordinator/a=127.0.0.1", "node/b=127.0.0.1", "admin/root"], check=True, capture_output=True, timeout=60)
    for file in new.glob("*.*"):
        shutil.copy(file, c.certs / f".{file.name}")
        os.replace(c.certs / f".{file.name}", c.certs / file.name)


class Held:
    """A push whose second message waits."""

    def __init__(self, rank, values):
        self.go_on = threading.Event()
        message, header = rank.client.types.PushInlineRequest, rank.push_request(weight=2.0)
        data = values.tobytes().ljust(rank.registered.slot_bytes, bytes(1))

        def messages():
            yield message(header=header, offset=0, data=data[:CHUNK])
            self.go_on.wait(60)
            yield message(offset=CHUNK, data=data[CHUNK:])
        self.answer = rank.pool.submit(rank.gacc.PushInline, messages, retry=False)


def test_open_connections_stay(c, tmp_path):
    """A trainer's push over TLS goes on where it was, in the middle of a window; SIGHUP ends none of those whose certificates are not revoked."""
    old = tmp_path / "old"
    shutil.copytree(c.certs, old)
    job = c.submit({"ranks": 2, "micro_size": 2, "parts": 2, "optimizer": {"type": "sgd", "lr": 1.0}})
    trainer = client(c, old)
    ranks = [Rank(c["a"], job, 0, W, 2, client=trainer, inline=True, mailbox=False), Rank(c["b"], job, 1, W, 2)]
    starts = [threading.Thread(target=r.start, args=({"w": np.zeros(W[0][1], np.float32)},)) for r in ranks]
    for t in starts:
        t.start()
    for t in starts:
        t.join()
    values = np.arange(W[0][1][0], dtype=np.float32) + 1
    held = Held(ranks[0], values)
    before, links = connections(c), c["b"].log().count("linked to the coordinator")
    assert len(before) == 2, before  # the node's link, and the trainer's

    replace(c, tmp_path / "new")

    def is_taken():
        newcomer = client(c, tmp_path / "new")
        try:
            return newcomer.node.GetNode(timeout=1, retry=False)
        except GaccError:
            return None
        finally:
            newcomer.close()
    wait_until("the new certificates", is_taken, 10)
    c.revoked.write_text("4711\n")
    for node in c.nodes.values():
        os.kill(node.pid, signal.SIGHUP)
    wait_until("the new list", lambda: all("tls.revoked has been read" in node.log() for node in c.nodes.values()))
    stranger = client(c, old)
    with pytest.raises(GaccError) as e:
        stranger.node.GetNode(timeout=2, retry=False)
    assert e.value.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
    stranger.close()

    held.go_on.set()
    assert held.answer.result(20).result == 1
    ranks[0].micro += 1
    ranks[0].push({"w": values}, weight=2.0)
    for _ in range(2):
        ranks[1].push({"w": values}, weight=2.0)
    assert [r.wait_step().result.outcome for r in ranks] == [1, 1]
    assert ranks[0].params()["w"].tobytes() == (-values).tobytes()
    assert before <= connections(c) and c["b"].log().count("linked to the coordinator") == links
    for r in ranks:
        r.detach()
        r.close()
    trainer.close()
