# SPDX-License-Identifier: Apache-2.0
"""deploy/make-certs.sh: what its certificates are good for, and what it leaves alone."""
import re
import stat
import subprocess

import pytest

from cli import Cli, folder  # noqa: F401 (fixture)
from cluster import MAKE_CERTS, Cluster
from harness import wait_until


def make(*words, code=0):
    done = subprocess.run(["sh", MAKE_CERTS, *map(str, words)], text=True, capture_output=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def openssl(*words, code=0):
    done = subprocess.run(["openssl", *map(str, words)], text=True, capture_output=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def names(cert):
    text = openssl("x509", "-in", cert, "-noout", "-ext", "subjectAltName")
    return text.splitlines()[1].strip().split(", ")


@pytest.fixture
def certs(folder):
    make("-c", "lab", folder / "c", "coordinator/a=127.0.0.1,localhost", "node/b=fd00::7", "admin/ana")
    return folder / "c"


def test_names_and_uses(certs):
    assert names(certs / "coordinator-a.pem") == ["URI:spiffe://lab/coordinator/a", "DNS:a", "IP Address:127.0.0.1", "DNS:localhost"]
    assert names(certs / "node-b.pem") == ["URI:spiffe://lab/node/b", "DNS:b", "IP Address:FD00:0:0:0:0:0:0:7"]
    assert names(certs / "admin-ana.pem") == ["URI:spiffe://lab/admin/ana", "DNS:ana"]
    for name in "coordinator-a", "node-b", "admin-ana":
        for purpose in "sslserver", "sslclient":
            openssl("verify", "-purpose", purpose, "-CAfile", certs / "ca.pem", certs / f"{name}.pem")
        assert openssl("pkey", "-in", certs / f"{name}.key", "-pubout") == openssl("x509", "-in", certs / f"{name}.pem", "-noout", "-pubkey")
    # who has a node's certificate cannot make others
    openssl("verify", "-CAfile", certs / "node-b.pem", "-partial_chain", certs / "admin-ana.pem", code=2)
    assert re.search("CA:TRUE, pathlen:0", openssl("x509", "-in", certs / "ca.pem", "-noout", "-ext", "basicConstraints"))
    assert "CA:FALSE" in openssl("x509", "-in", certs / "node-b.pem", "-noout", "-ext", "basicConstraints")


def test_only_the_owner_may_read_them(certs):
    files = sorted(certs.iterdir())
    assert [f.name for f in files] == sorted(f"{n}.{e}" for n in ("ca", "coordinator-a", "node-b", "admin-ana") for e in ("key", "pem"))
    assert {stat.S_IMODE(f.stat().st_mode) for f in files} == {0o600}
    assert stat.S_IMODE(certs.stat().st_mode) == 0o700


def test_what_is_there_stays(certs):
    before = {f.name: f.read_bytes() for f in certs.iterdir()}
    said = make(certs, "coordinator/a=127.0.0.1,localhost", "node/c")
    assert "ca: is there (cluster lab)" in said and "coordinator/a: is there" in said and "node/c: made" in said
    assert names(certs / "node-c.pem")[0] == "URI:spiffe://lab/node/c"
    openssl("verify", "-CAfile", certs / "ca.pem", certs / "node-c.pem")
    assert "is for other names" in make(certs, "node/b=10.0.0.3", code=1)
    assert "is of cluster lab, not den" in make("-c", "den", certs, "node/d", code=1)
    for bad in "node/", "node/a b", "server/a", "b", "node/" + 65 * "x", "node/d=1.2.3.4,a b":
        make(certs, bad, code=1)
    (certs / "node-c.key").unlink()
    assert "there is only one" in make(certs, "node/c", code=1)
    (certs / "ca.key").rename(certs.parent / "ca.key")
    assert "there is only one" in make(certs, "node/d", code=1)
    (certs.parent / "ca.key").rename(certs / "ca.key")
    assert before == {f.name: f.read_bytes() for f in certs.iterdir() if f.name in before}
    assert not (certs / "node-d.pem").exists() and not list(certs.glob(".new*"))
    make(code=2), make(certs, code=2)


def test_revoked(certs):
    b = certs / "node-b.pem"
    old, serial = b.read_bytes(), openssl("x509", "-in", b, "-noout", "-serial").strip().removeprefix("serial=")
    assert f"{serial} is in {certs}/revoked" in make("revoke", certs, "node/b")
    assert (certs / "revoked").read_text() == f"# node/b\n{serial}\n" and stat.S_IMODE((certs / "revoked").stat().st_mode) == 0o600
    assert (certs / f"node-b-{serial}.pem").read_bytes() == old and not b.exists() and not (certs / "node-b.key").exists()
    assert "node/b: made" in make(certs, "node/b=10.0.0.9") and b.read_bytes() != old
    make("revoke", certs, "node/b", "admin/ana")
    assert (certs / "revoked").read_text().count("\n") == 6 and not (certs / "admin-ana.pem").exists()
    make("revoke", certs, "node/x", code=1), make("revoke", certs, code=2), make("revoke", certs.parent / "none", "node/b", code=1)
    assert not (certs.parent / "none").exists()


def test_gaccds_and_administrators_use_them(folder):
    """What it says of the configuration is the configuration of a cluster."""
    with Cluster(2, tls=True, allow=["Link", "NodeSuspect"]) as c:
        def up():
            return [(n.name, n.state) for n in c.coordinator.client.node.ListNodes().nodes] == [("a", 1), ("b", 1)]
        wait_until("the link of b", up)
        said = make(c.certs, "coordinator/a=127.0.0.1", "node/b=127.0.0.1", "admin/root")
        for name, role in ("a", "coordinator"), ("b", "node"):
            block = re.search(rf"^{role}/{name}: is there\n((?:    .*\n)+)", said, re.M)[1]
            conf = dict(line.split() for line in block.splitlines() if not line.endswith(":"))
            assert conf == {"name:": name, **{f"{k}:": str(c[name].conf[f"tls.{k}"]) for k in ("cert", "key", "ca")}}
        cli = Cli(folder, c.address)
        cli.run("health", code=3)  # no certificate: no connection
        cli.env.update(word.split("=") for word in re.search("    (GACC_TLS_CERT=.*) gaccctl", said)[1].split())
        assert "on a," in cli.run("health")
