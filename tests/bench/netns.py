#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Network namespaces in the place of machines: each has one link of a given rate to a switch. Needs root, ip and tc (iproute2).

    netns.py [--rate 10gbit] NODES COMMAND ...

runs the command when NODES namespaces are there, and removes them when it has ended. "{}" in its words is replaced by what the namespaces' names
begin with: they are {}0, {}1 and so on, with the addresses 10.77.0.1, 10.77.0.2. For example
    netns.py --rate 1gbit 4 build/bin/bench_coll -N {}
"""
import argparse
import contextlib
import os
import signal
import subprocess
import sys

LINK = "eth0"  # of each node, in its namespace
BURST, LATENCY = "1mb", "20ms"  # a token bucket's: what may be sent at once, and how long a packet may wait before it is dropped


def ip(*words):
    subprocess.run(["ip", *words], check=True)


class Network:
    """`n` namespaces and one for the switch between them; nothing is left of them after the `with`, and nothing of it is seen in the namespace of
    whoever makes them. `rate` as tc knows it holds for each direction of each link."""

    link = LINK

    def __init__(self, n, rate):
        self.n, self.rate, self.prefix = n, rate, f"gacc{os.getpid()}-"
        self.names = [f"{self.prefix}{i}" for i in range(n)]
        self.addresses = [f"10.77.0.{i + 1}" for i in range(n)]

    def inside(self, i):
        """Words that go before a command that shall run on node i; the command has the process id of the whole."""
        return ["ip", "netns", "exec", self.names[i]]

    def _add(self, name):
        ip("netns", "add", name)
        self._stack.callback(ip, "netns", "del", name)
        ip("-n", name, "link", "set", "lo", "up")

    def _limit(self, name, link):
        subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", link, "root", "tbf", "rate", self.rate, "burst", BURST, "latency", LATENCY],
                       check=True)

    def __enter__(self):
        with contextlib.ExitStack() as self._stack:
            switch = self.prefix + "switch"
            self._add(switch)
            ip("-n", switch, "link", "add", "switch", "type", "bridge")
            ip("-n", switch, "link", "set", "switch", "up")
            for i, (name, address) in enumerate(zip(self.names, self.addresses)):
                self._add(name)
                ip("-n", name, "link", "add", LINK, "type", "veth", "peer", "name", f"port{i}", "netns", switch)
                ip("-n", name, "addr", "add", f"{address}/24", "dev", LINK)
                ip("-n", name, "link", "set", LINK, "up")
                ip("-n", switch, "link", "set", f"port{i}", "master", "switch", "up")
                self._limit(name, LINK)
                self._limit(switch, f"port{i}")
            self._ends = self._stack.pop_all()
        return self

    def __exit__(self, *failure):
        return self._ends.__exit__(*failure)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--rate", default="10gbit")
    p.add_argument("nodes", type=int)
    p.add_argument("command", nargs=argparse.REMAINDER)
    a = p.parse_args()
    if not a.command:
        p.error("no command")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Network(a.nodes, a.rate) as network:
        process = subprocess.Popen([w.replace("{}", network.prefix) for w in a.command])
        try:
            sys.exit(process.wait())
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
