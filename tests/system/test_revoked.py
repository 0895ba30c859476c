# SPDX-License-Identifier: Apache-2.0
"""Certificates in a running cluster: one that is revoked, and new ones in the place of the old."""
import os
import signal
import subprocess

import pytest

from cluster import Cluster
from harness import GaccError, wait_until


@pytest.fixture
def c(tmp_path):
    revoked = tmp_path / "revoked"
    revoked.write_text("# none yet\n")
    with Cluster(2, tls=True, conf={"tls.revoked": revoked}, node_conf={"a": {"cluster.relay_min_uid": 1}}, allow=["Link"]) as cluster:
        cluster.revoked = revoked
        yield cluster


def serial(cert):
    return subprocess.run(["openssl", "x509", "-noout", "-serial", "-in", cert], check=True, text=True, capture_output=True).stdout


def hang_up(node):
    os.kill(node.pid, signal.SIGHUP)


def links(node):
    return node.log().count("linked to the coordinator")


def test_a_node_whose_certificate_is_revoked(c):
    """Its link ends, and it gets none any longer; with another certificate it is back."""
    a, b = c["a"], c["b"]
    b.allow.append("revoked")
    a.allow.append("revoked")
    cert = c.certs / "node-b.pem"
    c.revoked.write_text(serial(cert))
    before = links(b)
    hang_up(a)
    wait_until("the link's end", lambda: 'certificate "b" (serial ' in b.log())
    with pytest.raises(GaccError) as e:
        b.client.jobs.List(timeout=5, retry=False)
    assert e.value.code == "UNAUTHENTICATED" and "is revoked" in str(e.value)
    assert links(b) == before
    c.revoked.write_text("")
    hang_up(a)
    wait_until("the link", lambda: links(b) > before)


def test_a_coordinator_whose_certificate_is_revoked(c):
    """Its node hangs up, although a connection is there, and says why to those who ask it."""
    b = c["b"]
    c.revoked.write_text(serial(c.certs / "coordinator-a.pem"))
    before = links(b)
    hang_up(b)
    wait_until("the link's end", lambda: "LinkLost" in b.log() and "its certificate (serial " in b.log())
    with pytest.raises(GaccError) as e:
        b.client.jobs.List(timeout=5, retry=False)
    assert e.value.code in ("UNAVAILABLE", "PERMISSION_DENIED") and "is revoked" in str(e.value)
    assert links(b) == before
    c.revoked.write_text("")
    hang_up(b)
    wait_until("the link", lambda: links(b) > before)


def test_calls_for_users(c):
    """A node may not speak for root, which these tests may be."""
    if os.getuid():
        assert not c["b"].client.jobs.List(all=True).jobs
        return
    with pytest.raises(GaccError) as e:
        c["b"].client.jobs.List(all=True, timeout=5, retry=False)
    assert e.value.code == "PERMISSION_DENIED" and "uid 0 is below cluster.relay_min_uid" in str(e.value)
