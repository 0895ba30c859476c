#!/usr/bin/env python3
"""gacc beside PyTorch's DistributedDataParallel on one node: C3a, C3b, C10, C11 of docs/performance.md.

    compare.py [--models S,M,L] [--ranks 2,4] [--rounds 5] [--quick] BUILD_DIR

Run it with a Python that has PyTorch. Needs libgacc and gaccd in BUILD_DIR (an optimised build), starts its own gaccd on a socket in a
temporary folder, leaves nothing. What a variant adds is its step minus the bare forward and backward of the same round: wall-clock time, and
CPU time of all processes (gaccd and its engine too). Shown are medians over the rounds, the middle half in brackets.
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TUNED = {"MALLOC_MMAP_THRESHOLD_": str(8 << 30), "MALLOC_TRIM_THRESHOLD_": str(8 << 30)}
GOALS = {("ddp", 2): 0.15, ("ddp", 4): 0.10, ("ddp_tuned", 2): 0.33, ("ddp_tuned", 4): 0.25}
COPY_GOAL = 0.60
MEMORY_GOALS = {2: 0.9, 4: 0.6, 8: 0.45}


class Daemon:
    def __init__(self, build):
        self.build, self.dir = pathlib.Path(build).resolve(), tempfile.TemporaryDirectory(prefix="gacc-bench-")
        self.run = f"{os.getpid()}-{time.monotonic_ns()}"
        self.endpoint = f"unix:{self.dir.name}/gaccd.sock"
        self.log = open(pathlib.Path(self.dir.name) / "log", "w")
        config = pathlib.Path(self.dir.name) / "gaccd.yaml"
        config.write_text(f"runtime_dir: {self.dir.name}\nstate_dir: {self.dir.name}/state\n")
        self.process = subprocess.Popen(
            [self.build / "bin/gaccd", "--config", config],
            env={**os.environ, "GACC_BENCH_DAEMON": self.run}, stdout=self.log, stderr=self.log)
        while not os.path.exists(f"{self.dir.name}/gaccd.sock"):
            if self.process.poll() is not None:
                sys.exit(pathlib.Path(self.log.name).read_text())
            time.sleep(0.05)

    def environment(self):
        return {"GACC_ENDPOINT": self.endpoint, "GACC_LIBRARY": str(self.build / "lib/libgacc.so"), "GACC_BENCH_RUN": self.run, "OMP_NUM_THREADS": "1"}

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()
        self.dir.cleanup()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ranks(build, n, arguments, extra=None):
    """What rank 0 prints."""
    daemon = Daemon(build)
    try:
        env = {**os.environ, **daemon.environment(), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(n),
               **(extra or {})}
        all_ranks = [subprocess.Popen([sys.executable, HERE / "rank.py", *arguments], env={**env, "RANK": str(r), "LOCAL_RANK": str(r)},
                                      stdout=subprocess.PIPE if r == 0 else subprocess.DEVNULL) for r in range(n)]
        out = all_ranks[0].communicate()[0]
        if any(p.wait() for p in all_ranks):
            sys.exit(f"a rank failed; gaccd's log:\n{pathlib.Path(daemon.log.name).read_text()}")
        return json.loads(out)
    finally:
        daemon.close()


def spread(values):
    q = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return f"{statistics.median(values):8.3f} [{q[0]:7.3f} {q[2]:7.3f}]"


def added(rounds, name, what):
    """What the variant adds to the bare step, round by round; what: 0 wall, 1 CPU."""
    return [v[what] - b[what] for v, b in zip(rounds[name], rounds["bare"])]


def show_speed(build, model, n, rival, tuned, a):
    variants = ["bare", rival, "gacc"] + (["gacc_copy"] if tuned else [])
    steps = {"S": 40, "M": 5, "L": 1}[model] if not a.quick else {"S": 20, "M": 2, "L": 1}[model]
    result = ranks(build, n, ["compare", model, ",".join(variants), "--rounds", str(a.rounds), "--steps", str(steps)], TUNED if tuned else None)
    rounds = result["rounds"]
    far = max(result["apart"].values())
    for name in variants[1:]:
        base_wall, base_cpu = (statistics.median(added(rounds, rival, w)) for w in (0, 1))
        wall, cpu = added(rounds, name, 0), added(rounds, name, 1)
        ratios = f"{statistics.median(wall) / base_wall:6.2f} {statistics.median(cpu) / base_cpu:6.2f}"
        goal = "" if name == rival else f"{COPY_GOAL if name == 'gacc_copy' else GOALS[rival, n]:.2f}"
        print(f"{'C3b' if tuned else 'C3a'} {model} {n}r  {name:10s} wall ms {spread([1e3 * w for w in wall])}  cpu ms {spread([1e3 * w for w in cpu])}"
              f"  ratio wall, cpu {ratios}  {goal and 'goal ' + goal}", flush=True)
    bare = [1e3 * b[0] for b in rounds["bare"]]
    print(f"            bare step {spread(bare)} ms; parameters of the variants are {far:.1e} apart (relative 2-norm)", flush=True)
    if far > 1e-3:
        sys.exit("the variants have not trained the same model")


def show_memory(build, model, n):
    used = {v: ranks(build, n, ["memory", model, v])["pss"] for v in ("ddp_tuned", "gacc")}
    print(f"C10 {model} {n}r  PSS of all processes, MiB: DDP with bucket view {used['ddp_tuned'] / 2**20:.0f}, gacc {used['gacc'] / 2**20:.0f}  "
          f"ratio {used['gacc'] / used['ddp_tuned']:.2f}  goal {MEMORY_GOALS[n]:.2f}", flush=True)


def show_restart(build, model, rounds):
    found = []
    for _ in range(rounds):
        daemon = Daemon(build)
        try:
            lines = []
            for which in ("first", "again"):
                env = {**os.environ, **daemon.environment(), "GACC_BENCH_STARTED": str(time.monotonic())}
                p = subprocess.run([sys.executable, HERE / "restart.py", which, model], env=env, stdout=subprocess.PIPE, check=False)
                lines.append(json.loads(p.stdout))
            assert (lines[1]["micro"], lines[1]["pushed"]) == (2, 2), lines  # nothing that was acknowledged is sent again
            found.append(lines[1])
        finally:
            daemon.close()
    attach, start = [1e3 * f["attach"] for f in found], [1e3 * f["start"] for f in found]
    print(f"C11 {model}  restarted trainer: attach to ready {spread(attach)} ms; its own start {spread(start)} ms  goal 100", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("build")
    p.add_argument("--models", default="S,M,L")
    p.add_argument("--ranks", default="2,4")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--quick", action="store_true")
    p.add_argument("--only", choices=("speed", "memory", "restart"))
    a = p.parse_args()
    models = a.models.split(",")
    if a.only in (None, "speed"):
        for model in models:
            for n in map(int, a.ranks.split(",")):
                show_speed(a.build, model, n, "ddp", False, a)
                show_speed(a.build, model, n, "ddp_tuned", True, a)
    if a.only in (None, "memory"):
        for n in (2, 4, 8):
            show_memory(a.build, "M" if a.quick else models[-1], n)
    if a.only in (None, "restart"):
        for model in models:
            show_restart(a.build, model, a.rounds)


if __name__ == "__main__":
    main()
