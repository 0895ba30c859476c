# SPDX-License-Identifier: Apache-2.0
"""Certificates in a running cluster: one that is revoked, and new ones in the place of the old."""
import os
import re
import signal
import subprocess
import time

import pytest

from cluster import Cluster
from harness import GaccError, build_dir, wait_until


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


def reason(c):
    return next(n.reason for n in c.coordinator.client.node.ListNodes().nodes if n.name == "b")


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
    wait_until("the reason", lambda: "its link has ended: its certificate (serial " in reason(c) and "is revoked" in reason(c))
    wait_until("the event", lambda: re.search(r"NodeSuspect.* node b: its link has ended: its certificate \(serial \w+\) is revoked", a.log()))
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


def test_reasons_of_silence(c):
    """What is seen of a node that is dead, and of one that says nothing."""
    assert reason(c) == ""
    with c.killed("b"):
        wait_until("the reason", lambda: reason(c) == "its link has ended: its gaccd has ended, or the connection was lost")
    wait_until("the link", lambda: reason(c) == "")
    with c.stopped("b"):
        wait_until("the reason", lambda: re.fullmatch("no word for [345] s", reason(c)))
    wait_until("the link", lambda: reason(c) == "")


def renew(c, name, role, days):
    """Another certificate for the key of a node, which gaccd reads by itself."""
    cert, ext = c.certs / f"{role}-{name}.pem", c.certs / "ext"
    ext.write_text(f"subjectAltName=URI:spiffe://gacc/{role}/{name},IP:127.0.0.1\n")
    for words in (["req", "-new", "-key", cert.with_suffix(".key"), "-subj", f"/CN={name}", "-out", c.certs / "csr"],
                  ["x509", "-req", "-in", c.certs / "csr", "-CA", c.certs / "ca.pem", "-CAkey", c.certs / "ca.key", "-CAcreateserial", "-days", str(days),
                   "-extfile", ext, "-out", c.certs / "new"]):
        subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=20)
    (c.certs / "new").rename(cert)


def health(node):
    done = subprocess.run([build_dir() / "bin/gaccctl", "health", "--endpoint", node.endpoint], capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout + done.stderr


def check_config(node):
    settings = [w for key, value in node.conf.items() for w in ("--set", f"{key}={value}")]
    done = subprocess.run([build_dir() / "bin/gaccd", "--check-config", "--config", node.dir / "gaccd.yaml", *settings], capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout + done.stderr


def test_a_node_whose_certificate_has_expired(c):
    """Both logs name it, and what to do; a new one is taken without a restart."""
    a, b = c["a"], c["b"]
    a.allow.append("a connection is refused"), b.allow.append(" Certificate")
    expired = 'certificate "b" (role node/b, serial '
    assert health(b)[0] == 0 and check_config(b) == (0, "ok\n")
    renew(c, "b", "node", -1)
    before = links(b)
    c.kill("b")
    wait_until("b's word", lambda: re.search(r"LinkLost: .*; the cause may be here: certificate \"b\" \(role node/b, serial \w+\) has expired, on 20.* UTC: have the authority", b.log()))
    wait_until("a's word", lambda: f"a connection is refused: {expired}" in a.log())
    wait_until("the event", lambda: f" others refuse this gaccd: {expired}" in b.log())
    code, said = health(b)
    assert code == 8 and f"other gaccds refuse this one: {expired}" in said and "has expired" in said
    code, said = check_config(b)
    assert code == 2 and f"gaccd: tls: {expired}" in said
    renew(c, "b", "node", 3)
    wait_until("the link", lambda: links(b) > before, timeout=30)
    assert a.log().count(f"a connection is refused: {expired}") == 1
    code, said = check_config(b)
    assert code == 0 and re.search(r'gaccd: warning: tls: certificate "b" .* expires on', said) and said.startswith("ok\n")


def test_a_coordinator_whose_certificate_has_expired(c):
    """Its nodes see it themselves."""
    a, b = c["a"], c["b"]
    a.allow.append(" Certificate")
    renew(c, "a", "coordinator", -1)
    before = links(b)
    c.kill("a")
    wait_until("b's word", lambda: re.search(r'LinkLost: .*certificate "a" \(role coordinator/a, serial \w+\) has expired, on', b.log()))
    time.sleep(2.5)  # it dials each second
    told = re.findall(r'LinkLost: .*certificate "a".*', b.log())
    assert len(told) == 1 and "this node's certificate" not in told[0]
    renew(c, "a", "coordinator", 30)
    wait_until("the link", lambda: links(b) > before, timeout=30)


def test_calls_for_users(c):
    """A node may not speak for root, which these tests may be."""
    if os.getuid():
        assert not c["b"].client.jobs.List(all=True).jobs
        return
    with pytest.raises(GaccError) as e:
        c["b"].client.jobs.List(all=True, timeout=5, retry=False)
    assert e.value.code == "PERMISSION_DENIED" and "uid 0 is below cluster.relay_min_uid" in str(e.value)
