#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two jobs over the same two nodes, with engine.exchanges 1 and 2: what a step takes. Needs root, ip and tc.

    GACC_BUILD_DIR=build exchanges.py [--rate 1gbit] [--elements 4194304] [--rounds 7] [--steps 8] [--compute 0,0.15]

A cluster for each limit, both in the same two network namespaces whose links have the rate, by turns in each round. Each job has a part and a
rank on each node, and no sharding; its trainer sleeps for --compute seconds before each push, as if a device computed. Both jobs begin a
round at the same time. A step's time is the mean over a round's steps of both jobs; the medians of the rounds and their middle half are printed.
"""
import argparse
import pathlib
import signal
import statistics
import subprocess
import sys
import threading
import time

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "system")]
import netns  # noqa: E402
from cluster import MAKE_CERTS, Cluster, Node  # noqa: E402
from training import Team  # noqa: E402


def in_namespace(words):
    class Placed(Node):
        def command(self):
            return [*words, *super().command()]
    return Placed


class Nodes(Cluster):
    def __init__(self, network, limit):
        self.network = network
        kinds = {"ab"[i]: in_namespace(network.inside(i)) for i in range(2)}
        super().__init__(2, kinds=kinds, conf={"engine.exchanges": limit},
                         node_conf={"ab"[i]: {"node.data_address": network.addresses[i]} for i in range(2)})
        for node in self.nodes.values():
            node.conf["cluster.coordinator" if node.coordinator else "listen.tcp"] = f"{network.addresses[0]}:{self.port}"

    def _share_token(self):
        """Certificates instead, as the nodes are not on loopback."""
        certs = self.coordinator.dir / "certs"
        roles = {name: "node" if node.coordinator else "coordinator" for name, node in self.nodes.items()}
        subprocess.run(["sh", MAKE_CERTS, certs, *(f"{role}/{name}={at}" for (name, role), at in zip(roles.items(), self.network.addresses))],
                       check=True, capture_output=True)
        for name, node in self.nodes.items():
            node.conf.update({"tls.cert": certs / f"{roles[name]}-{name}.pem", "tls.key": certs / f"{roles[name]}-{name}.key", "tls.ca": certs / "ca.pem"})


class Job:
    def __init__(self, cluster, elements):
        spec = {"ranks": 2, "parts": 2, "nodes": "a,b", "micro_size": 1, "optimizer": {"type": "sgd", "lr": 0.1}}
        self.team = Team(cluster["a"], spec, [("w", [elements])], place=[cluster["a"], cluster["b"]])
        self.grads = {"w": np.full(elements, 1e-3, np.float32)}

    def steps(self, n, compute_s, out):
        begin = time.monotonic()
        for _ in range(n):
            time.sleep(compute_s)
            for r in self.team.ranks:
                r.push(self.grads)
            for r in self.team.ranks:
                r.wait_step()
        out.append((time.monotonic() - begin) / n)


def run(jobs, n, compute_s):
    """Mean seconds of a step of each job."""
    out = []
    threads = [threading.Thread(target=j.steps, args=(n, compute_s, out)) for j in jobs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(out) == len(jobs), "a job has failed"
    return out


def show(what, values):
    q = statistics.quantiles(values, n=4)
    print(f"  {what:28} {1e3 * statistics.median(values):6.0f} ms  ({1e3 * q[0]:.0f} to {1e3 * q[2]:.0f})", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--rate", default="1gbit")
    p.add_argument("--elements", type=int, default=4 << 20)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--compute", default="0,0.15")
    a = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the namespaces go with the process
    with netns.Network(2, a.rate) as network, Nodes(network, 1) as one, Nodes(network, 2) as two:
        jobs = {limit: [Job(c, a.elements) for _ in range(2)] for limit, c in ((1, one), (2, two))}
        for limit in jobs:
            run(jobs[limit], 2, 0)
        for compute_s in map(float, a.compute.split(",")):
            alone, took, ratios = [], {1: [], 2: []}, []
            for i in range(a.rounds):
                alone += run(jobs[2][:1], a.steps, compute_s)
                for limit in (1, 2) if i % 2 else (2, 1):
                    took[limit].append(statistics.mean(run(jobs[limit], a.steps, compute_s)))
                ratios.append(took[1][-1] / took[2][-1])
            print(f"{a.rate}, {a.elements} elements, {1e3 * compute_s:.0f} ms between steps, {a.rounds} rounds of {a.steps} steps:")
            show("one job alone", alone)
            show("two jobs, engine.exchanges 1", took[1])
            show("two jobs, engine.exchanges 2", took[2])
            q = statistics.quantiles(ratios, n=4)
            print(f"  {'ratio in each round':28} {statistics.median(ratios):6.2f}     ({q[0]:.2f} to {q[2]:.2f})", flush=True)
        for cluster_jobs in jobs.values():
            for j in cluster_jobs:
                for r in j.team.ranks:
                    r.detach()
                for r in j.team.ranks:
                    r.close()


if __name__ == "__main__":
    main()
