# SPDX-License-Identifier: Apache-2.0
"""The firewall of docs/operations.md: nodes reach the ports of engines, and nobody else does. In two network namespaces, with real nftables."""
import os
import pathlib
import re
import secrets
import shutil
import subprocess
import sys

import pytest

from harness import next_line

OPERATIONS = pathlib.Path(__file__).resolve().parents[2] / "docs/operations.md"
LISTEN = """
import socket, sys
for port in 40000, 17420:
    s = socket.create_server(("10.0.0.2", port)); s.listen(8); globals()[f"s{port}"] = s
print("ready", flush=True); sys.stdin.read()
"""
DIAL = """
import socket, sys
try:
    socket.create_connection(("10.0.0.2", int(sys.argv[2])), timeout=1, source_address=(sys.argv[1], 0)); print("open")
except TimeoutError:
    print("dropped")
"""


def run(*words, **how):
    return subprocess.run(list(map(str, words)), check=True, text=True, capture_output=True, timeout=20, **how).stdout


@pytest.fixture
def spaces():
    """"b", with 10.0.0.2, and one that has the addresses of a node and of a stranger."""
    if os.geteuid() or not shutil.which("nft"):
        pytest.skip("needs root and nft")
    if subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode:
        pytest.skip("no network namespace can be made here")
    names = [f"gacc-fw-{secrets.token_hex(4)}" for _ in range(2)]
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run("ip", "-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for name, *addresses in (names[0], "10.0.0.2"), (names[1], "10.0.0.1", "10.0.0.9"):
            for address in addresses:
                run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def test_the_firewall_of_the_documents(spaces):
    b, others = spaces
    rules = re.search(r"^```nft\n(.*?)^```$", OPERATIONS.read_text(), re.M | re.S)[1]

    def dial(source, port):
        return run("ip", "netns", "exec", others, sys.executable, "-c", DIAL, source, port).strip()
    server = subprocess.Popen(["ip", "netns", "exec", b, sys.executable, "-c", LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert next_line(server) == "ready\n"
        assert dial("10.0.0.9", 40000) == "open"  # before
        run("ip", "netns", "exec", b, "nft", "-f", "-", input=rules)
        assert dial("10.0.0.1", 40000) == "open" and dial("10.0.0.9", 40000) == "dropped"
        assert dial("10.0.0.9", 17420) == "open"  # no engine's: certificates are asked for there
    finally:
        server.stdin.close()
        server.wait(10)
