# SPDX-License-Identifier: Apache-2.0
"""FIFOs where the configuration names files: gaccd says which, and waits for nobody to write to them."""
import os
import re
import signal
import subprocess

import pytest

from cluster import MAKE_CERTS, Cluster
from harness import build_dir, wait_until


@pytest.fixture
def files(tmp_path):
    """What each key may name, and what makes gaccd read it."""
    subprocess.run(["sh", MAKE_CERTS, tmp_path / "certs", "coordinator/a=127.0.0.1"], check=True, capture_output=True, timeout=60)
    (tmp_path / "revoked").write_text("")
    (tmp_path / "token").write_text("f00d" * 8)
    (tmp_path / "token").chmod(0o600)
    tls = {f"tls.{key}": tmp_path / "certs" / name for key, name in (("cert", "coordinator-a.pem"), ("key", "coordinator-a.key"), ("ca", "ca.pem"))}
    tls.update({"listen.tcp": "127.0.0.1:0", "tls.revoked": tmp_path / "revoked"})
    return {**{key: tls for key in ("tls.cert", "tls.key", "tls.ca", "tls.revoked")},
            "listen.token_file": {"listen.tcp": "127.0.0.1:0", "listen.token_file": tmp_path / "token"},
            "cluster.token_file": {"cluster.coordinator": "127.0.0.1:1", "cluster.token_file": tmp_path / "token"}}


def gaccd(folder, conf, *words):
    """It has the node name of the certificate. Ends by itself, or the test fails."""
    conf = {"node.name": "a", "runtime_dir": folder / "run", "state_dir": folder / "state", **conf}
    settings = [w for key, value in conf.items() for w in ("--set", f"{key}={value}")]
    done = subprocess.run([build_dir() / "bin/gaccd", *words, "--config", folder / "gaccd.yaml", *settings], capture_output=True, text=True, timeout=20)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("key", ["tls.cert", "tls.key", "tls.ca", "tls.revoked", "listen.token_file", "cluster.token_file"])
def test_at_the_start(tmp_path, files, key):
    (tmp_path / "gaccd.yaml").write_text("")
    conf, pipe = files[key], tmp_path / "pipe"
    assert gaccd(tmp_path, conf, "--check-config") == (0, "ok\n") or key.startswith("tls.")  # a note: expires
    os.mkfifo(pipe, 0o600)
    code, said = gaccd(tmp_path, {**conf, key: pipe}, "--check-config")
    assert code == 2 and re.search(rf"gaccd: (tls|{key}): {pipe} is not a regular file", said), said
    code, said = gaccd(tmp_path, {**conf, key: pipe})
    assert code in (1, 2) and re.search(rf"{pipe}: not a regular file", said), said


def test_the_configuration_itself(tmp_path):
    os.mkfifo(tmp_path / "gaccd.yaml")
    code, said = gaccd(tmp_path, {}, "--check-config")
    assert code == 2 and f"{tmp_path}/gaccd.yaml: Invalid argument" in said


def test_while_it_runs(tmp_path):
    """One that comes in the place of a file that gaccd reads itself holds up neither the loop nor the end of gaccd, and is told."""
    revoked = tmp_path / "revoked"
    revoked.write_text("4711\n")
    with Cluster(1, tls=True, node_conf={"a": {"tls.revoked": revoked}}, allow=[" ERROR: tls.revoked: cannot read"]) as c:
        a = c["a"]
        revoked.rename(tmp_path / "kept")
        os.mkfifo(revoked, 0o600)
        os.kill(a.pid, signal.SIGHUP)
        wait_until("its word", lambda: f"tls.revoked: cannot read {revoked}: not a regular file" in a.log())
        assert a.client.node.GetNode(timeout=5).pid == a.pid
        os.replace(tmp_path / "kept", revoked)
