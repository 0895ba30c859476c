#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gacc on several nodes beside PyTorch's DistributedDataParallel over Gloo: D1 of docs/performance.md.

    nodes.py [--nodes 2,4] [--ranks 1,2] [--models S,M,L] [--rivals ddp,ddp_tuned] [--quick] [--netns RATE] BUILD_DIR

Run it with a Python that has PyTorch. As compare.py, whose tables and variants these are, but the job has a part on each of 2 or 4 gaccds that are one
cluster, with --ranks ranks on each. Over loopback, or with --netns (root alone) each node in a network namespace whose link has that rate
(10gbit; see tests/bench/netns.py); DDP and gacc's engines then use the same links. All nodes share the CPUs of this machine: each engine has its share of
them, one at least.
"""
import argparse
import contextlib
import os
import pathlib
import secrets
import signal
import string
import subprocess
import sys
import tempfile
import time

from compare import DDP_PLAIN, TUNED, VERDICT, WORK, Daemon, arguments, free_port, pairings, run_ranks, show_rows

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import netns  # noqa: E402

MAKE_CERTS = HERE.parents[2] / "deploy/make-certs.sh"
GOALS = {1: (1.0, 0.8), 2: (0.6, 0.8)}  # by ranks on a node: added wall-clock time and CPU time, of plain DDP's
GIB_OF_A_RANK = {"L": (5.2, 3.7)}  # its share of gaccds' memory included; for all rows, and for the verdict's
PATIENCE_S = 20


class Loopback:
    link = "lo"

    def __init__(self, n):
        self.addresses = ["127.0.0.1"] * n

    def inside(self, i):
        return []


class Nodes:
    """Gaccds "a", "b", ... that are one cluster; the first coordinates."""

    def __init__(self, build, network):
        self.network, self.names = network, string.ascii_lowercase[:len(network.addresses)]
        self.dir = tempfile.TemporaryDirectory(prefix="gacc-bench-")
        self.address = f"{network.addresses[0]}:{free_port()}"
        self.daemons = []
        secure = self._token() if isinstance(network, Loopback) else self._certificates()
        try:
            for i, name in enumerate(self.names):
                conf = {"node.name": name, "node.data_address": network.addresses[i], "engine.threads": max(1, os.cpu_count() // len(self.names)),
                        "listen.tcp" if i == 0 else "cluster.coordinator": self.address, **secure(i)}
                self.daemons.append(Daemon(build, conf, network.inside(i)))
            end = time.monotonic() + PATIENCE_S
            while not all("linked to the coordinator" in d.said() for d in self.daemons[1:]):
                if time.monotonic() > end:
                    sys.exit(f"the nodes do not become a cluster:\n{self.said()}")
                time.sleep(0.05)
        except BaseException:
            self.close()
            raise

    def _token(self):
        token = pathlib.Path(self.dir.name) / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        return lambda i: {"listen.token_file" if i == 0 else "cluster.token_file": token}

    def _certificates(self):
        """Needed where nodes reach each other over anything but loopback."""
        files = [f"{'node' if i else 'coordinator'}/{name}" for i, name in enumerate(self.names)]
        subprocess.run(["sh", MAKE_CERTS, self.dir.name, *(f"{f}={at}" for f, at in zip(files, self.network.addresses))], check=True,
                       stdout=subprocess.DEVNULL)
        path = [f"{self.dir.name}/{f.replace('/', '-')}" for f in files]
        return lambda i: {"tls.cert": f"{path[i]}.pem", "tls.key": f"{path[i]}.key", "tls.ca": f"{self.dir.name}/ca.pem"}

    def said(self):
        return "\n".join(f"--- {name}\n{d.said()}" for name, d in zip(self.names, self.daemons))

    def run(self, args, ranks, extra=None):
        """What rank 0 prints, with so many ranks on each node."""
        at = [i for i in range(len(self.names)) for _ in range(ranks)]
        all_nodes = {"MASTER_ADDR": self.network.addresses[0], "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": self.network.link,
                     "GACC_BENCH_RUN": self.daemons[0].run, "GACC_BENCH_NODES": ",".join(self.names), **(extra or {})}
        pids = ",".join(str(d.process.pid) for d in self.daemons)
        environments = [{**self.daemons[i].environment(), **all_nodes, "GACC_BENCH_DAEMON": pids} for i in at]
        return run_ranks(args, environments, [self.network.inside(i) for i in at]) or sys.exit(f"a rank failed\n{self.said()}")

    def close(self):
        for d in reversed(self.daemons):
            d.close()
        self.dir.cleanup()


def free_gib():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    return float("inf")


def rows_for(model, rival, n, ranks):
    """Those for which there is memory: all, the verdict's, or none. Goals are against plain DDP."""
    goal = GOALS[ranks] if rival == "ddp" else None
    rows = [r for r in pairings("D1", model, rival, goal) if r[0] in (VERDICT, DDP_PLAIN)]
    need = [gib * n * ranks for gib in GIB_OF_A_RANK.get(model, (0, 0))]
    return rows if need[0] <= free_gib() else [r for r in rows if r[0] == VERDICT] if need[1] <= free_gib() else []


def show(a, n, ranks, model, rival):
    steps, rounds, first = WORK[model] if not a.quick else (WORK[model][0] // 2 or 1, 3, 2)
    rounds, what, rows = max(rounds, a.rounds), f"D1 {model} {n}x{ranks}{' tuned' if rival == 'ddp_tuned' else '      '}", rows_for(model, rival, n, ranks)
    if not rows:
        print(f"{what} left out: not enough free memory, {free_gib():.0f} GiB", flush=True)
        return
    with contextlib.ExitStack() as stack:
        nodes = Nodes(a.build, stack.enter_context(netns.Network(n, a.netns)) if a.netns else Loopback(n))
        stack.callback(nodes.close)
        result = nodes.run(arguments(model, rows, rounds, steps, first), ranks, TUNED if rival == "ddp_tuned" else None)
    show_rows(what, rows, result)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("build")
    p.add_argument("--nodes", default="2,4")
    p.add_argument("--ranks", default="1,2", help="on each node")
    p.add_argument("--models", default="S,M,L")
    p.add_argument("--rivals", default="ddp,ddp_tuned")
    p.add_argument("--rounds", type=int, default=0, help="at least so many")
    p.add_argument("--quick", action="store_true")
    p.add_argument("--netns", metavar="RATE", help="each node in a network namespace with a link of this rate, such as 10gbit")
    a = p.parse_args()
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # nothing is left then either
    print(f"Nodes x ranks on each, {'links of ' + a.netns if a.netns else 'loopback'}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}. What a step adds to forward and "
          f"backward, ms: of gacc, median [middle half], and of DDP, median.\n"
          f"{'':43s} {'gacc, wall':>26s} {'gacc, cpu':>26s} {'DDP wall':>8s} {'DDP cpu':>8s} {'wall':>6s} {'cpu':>6s}  {'goals':>9s} met")
    for model in a.models.split(","):
        for n in map(int, a.nodes.split(",")):
            for ranks in map(int, a.ranks.split(",")):
                for rival in a.rivals.split(","):
                    show(a, n, ranks, model, rival)
    print(f"\n{time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
