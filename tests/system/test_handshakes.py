# SPDX-License-Identifier: Apache-2.0
"""Strangers who connect over TLS, again and again, or with certificates that cost much: others are served meanwhile, from another address."""
import contextlib
import pathlib
import re
import socket
import ssl
import statistics
import subprocess
import time

import pytest

from cluster import Cluster
from harness import wait_until

AT_ONCE = 100  # daemon/rpc/connect_rate.h
LONG = 20  # certificates of a chain that is short enough to be read


@pytest.fixture(scope="module")
def c():
    with Cluster(2, tls=True, allow=["a connection is refused", "a connection from 127.0.0.2 is closed", "handshake", "Handshake", "TLS", "lines were suppressed"]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """Makes a stranger's chain of so many certificates; (certificates, key)."""
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "ca.cnf").write_text("basicConstraints=critical,CA:TRUE\n")

    def openssl(*words):
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=60, cwd=folder)

    def make(n):
        openssl("ecparam", "-name", "secp384r1", "-genkey", "-noout", "-out", "key")
        openssl("req", "-new", "-x509", "-key", "key", "-subj", "/CN=x0", "-out", "0.pem")
        for i in range(1, n):
            openssl("req", "-new", "-key", "key", "-subj", f"/CN=x{i}", "-out", "request")
            openssl("x509", "-req", "-in", "request", "-CA", f"{i - 1}.pem", "-CAkey", "key", "-set_serial", i, "-extfile", "ca.cnf", "-out", f"{i}.pem")
        (folder / f"chain{n}").write_text("".join((folder / f"{i}.pem").read_text() for i in reversed(range(n))))
        return folder / f"chain{n}", folder / "key"
    return make


def shake(c, cert, key, source="127.0.0.1"):
    """Whether the coordinator says anything after the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(cert, key)
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", c.port), timeout=10, source_address=(source, 0)) as plain:
        try:
            with context.wrap_socket(plain) as s:
                return bool(s.recv(100))
        except OSError:
            return False


def of_thread(pid):
    """CPU time of its busiest thread by now, in ms, by thread."""
    spent = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            spent[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e6
    return spent


def cost(c, cert, key, source):
    def one():
        before = of_thread(c["a"].pid)
        shake(c, cert, key, source)
        time.sleep(0.05)
        return max(ms - before.get(name, 0) for name, ms in of_thread(c["a"].pid).items())
    return statistics.median(one() for _ in range(9))


def test_what_a_long_chain_costs(c, chain):
    """Each signature in it would cost as much as a handshake does."""
    ordinary = cost(c, c.certs / "node-b.pem", c.certs / "node-b.key", "127.0.0.3")
    long = cost(c, *chain(LONG), "127.0.0.4")
    too_long = cost(c, *chain(3 * LONG), "127.0.0.5")
    print(f"a handshake takes {ordinary:.1f} ms of a thread; with {LONG} certificates {long:.1f}, with {3 * LONG} {too_long:.1f}")
    assert ordinary < long < 8 * ordinary and too_long < 2 * ordinary


def test_connections_that_come_too_fast(c):
    """Closed before TLS begins; whoever has another address comes in, and is told nothing of it."""
    cert, key = c.certs / "admin-root.pem", c.certs / "admin-root.key"

    def is_closed(source):
        with socket.create_connection(("127.0.0.1", c.port), timeout=10, source_address=(source, 0)) as s:
            s.settimeout(0.02)
            try:
                return s.recv(1) == b""
            except ConnectionResetError:
                return True
            except TimeoutError:
                return False
    began, n = time.monotonic(), 0
    while not is_closed("127.0.0.2"):
        n += 1
        assert n < 4 * AT_ONCE
    assert n >= AT_ONCE and n <= AT_ONCE + 10 * (time.monotonic() - began) + 1
    for _ in range(20):
        is_closed("127.0.0.2")
    assert shake(c, cert, key) and shake(c, cert, key, "127.0.0.6")
    said = re.findall(r"a connection from (\S+) is closed: (.*)", c["a"].log())
    assert said == [("127.0.0.2", "more than 100 at once, or than 10 a second, from one address (0 more since this was said last)")]
    wait_until("its turn", lambda: shake(c, cert, key, "127.0.0.2"), 10)
    assert [n.state for n in c["a"].client.node.ListNodes().nodes] == [1, 1]
