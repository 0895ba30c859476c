#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gacc beside PyTorch on one node: AdamW and DistributedDataParallel; C2, C3a, C3b, C3p, C10, C11 of docs/performance.md.

    compare.py [--models S,M,L] [--ranks 2,4] [--quick] [--verdict] [--busy CPUS] [--only update|speed|package|memory|restart] BUILD_DIR

Run it with a Python that has PyTorch. Needs libgacc and gaccd in BUILD_DIR (an optimised build), starts its own gaccd on a socket in a
temporary folder, leaves nothing. What a variant adds is its step minus the bare forward and backward of the same round: wall-clock time, and
CPU time of all processes (gaccd and its engine too). The whole takes some ten minutes on two CPUs. --busy 1 keeps one CPU busy all the
time, for all variants alike: trainers, gaccd and engine share it with a process that does nothing but spin.
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parents[2] / "client/python"
TUNED = {"MALLOC_MMAP_THRESHOLD_": str(8 << 30), "MALLOC_TRIM_THRESHOLD_": str(8 << 30)}
GOALS = {("ddp", 2): 0.15, ("ddp", 4): 0.10, ("ddp_tuned", 2): 0.33, ("ddp_tuned", 4): 0.25}
COPY_GOAL, PACKAGE_GOAL = 0.60, 1.10
VERDICT, DDP_PLAIN = "VERDICT: layers that write", "unequal: DDP plain"
# How far apart variants may be. Parameters: of the way gone; f32 itself is 2e-5 away from f64 (docs/performance.md). Norms: PyTorch's own of 10M elements
# is 1e-4 away from that in f64; a wrong scale would be a factor.
APART = {"parameters": 1e-4, "norms": 1e-3, "losses": 1e-4}
WORK = {"S": (30, 7, 5), "M": (3, 5, 3), "L": (1, 3, 2)}  # steps in a block, rounds, first steps
PACKAGE_ROUNDS = {"S": 21, "M": 11, "L": 5}  # more, as its goal is near 1
GIB_OF_A_RANK = {"L": (8, 5)}  # of all variants together, its share of gaccd's memory included; of those of the verdict
UPDATE_GOALS = {"default": 4.5, "fused": 1.15}
MEMORY_GOALS = {2: 0.9, 4: 0.6, 8: 0.45}


class Daemon:
    """`conf`: settings by their keys; `inside`: words that go before the command."""

    def __init__(self, build, conf=None, inside=()):
        self.build, self.dir = pathlib.Path(build).resolve(), tempfile.TemporaryDirectory(prefix="gacc-bench-")
        self.run = f"{os.getpid()}-{time.monotonic_ns()}"
        self.endpoint = f"unix:{self.dir.name}/gaccd.sock"
        self.log = open(pathlib.Path(self.dir.name) / "log", "w")
        config = pathlib.Path(self.dir.name) / "gaccd.yaml"
        config.write_text(f"runtime_dir: {self.dir.name}\nstate_dir: {self.dir.name}/state\n")
        self.process = subprocess.Popen(
            [*inside, self.build / "bin/gaccd", "--config", config, *(word for key, value in (conf or {}).items() for word in ("--set", f"{key}={value}"))],
            stdout=self.log, stderr=self.log)
        while not os.path.exists(f"{self.dir.name}/gaccd.sock"):
            if self.process.poll() is not None:
                sys.exit(self.said())
            time.sleep(0.05)

    def said(self):
        return pathlib.Path(self.log.name).read_text()

    def environment(self):
        return {"GACC_ENDPOINT": self.endpoint, "GACC_LIBRARY": str(self.build / "lib/libgacc.so"), "GACC_BENCH_RUN": self.run,
                "GACC_BENCH_DAEMON": str(self.process.pid), "OMP_NUM_THREADS": "1", "GACC_PROTOSET": str(self.build / "proto/gacc.protoset"),
                "PYTHONPATH": os.pathsep.join(filter(None, (str(PACKAGE), os.environ.get("PYTHONPATH"))))}

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()
        self.dir.cleanup()


def spin(cpu, parent):
    os.sched_setaffinity(0, {cpu})
    while os.getppid() == parent:  # ends with compare.py, however that ends
        for _ in range(100000):
            pass


class Busy:
    """The last `n` CPUs of those that this program may use have something else to do, each from the start to the end."""

    def __init__(self, n):
        cpus = sorted(os.sched_getaffinity(0))
        if n > len(cpus):
            sys.exit(f"--busy {n}: there are {len(cpus)} CPUs")
        self.cpus, self.began = cpus[len(cpus) - n:], time.monotonic()
        self.processes = [multiprocessing.Process(target=spin, args=(cpu, os.getpid()), daemon=True) for cpu in self.cpus]
        for p in self.processes:
            p.start()

    def cpu(self):
        """Seconds that the processes have had."""
        fields = [pathlib.Path(f"/proc/{p.pid}/stat").read_text().rsplit(")", 1)[1].split() for p in self.processes]
        return sum(int(f[11]) + int(f[12]) for f in fields) / os.sysconf("SC_CLK_TCK")

    def check(self):
        """A measurement beside fewer of them would be another one."""
        if not all(p.is_alive() for p in self.processes):
            sys.exit("--busy: a process that keeps a CPU busy has ended")

    def end(self):
        self.check()
        share = self.cpu() / (time.monotonic() - self.began)
        for p in self.processes:
            p.kill()
            p.join()
        return share


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_ranks(arguments, environments, inside=None):
    """What rank 0 prints; None: a rank has failed, and all are ended. Of each rank, what it has in its environment and what goes before its command."""
    n = len(environments)
    all_ranks = [subprocess.Popen([*(inside[r] if inside else ()), sys.executable, HERE / "rank.py", *arguments],
                                  env={**os.environ, "WORLD_SIZE": str(n), "RANK": str(r), "LOCAL_RANK": str(r), **environments[r]},
                                  stdout=subprocess.PIPE if r == 0 else subprocess.DEVNULL) for r in range(n)]
    try:
        while any(p.poll() is None for p in all_ranks[1:]) and not any(p.poll() for p in all_ranks):
            time.sleep(0.05)
        if any(p.poll() for p in all_ranks):
            return None  # the others would wait for it
        out = all_ranks[0].communicate()[0]
        return None if all_ranks[0].returncode else json.loads(out)
    finally:
        for p in all_ranks:
            p.kill()
            p.wait()


def ranks(build, n, arguments, extra=None):
    """The same of one node."""
    daemon = Daemon(build)
    try:
        env = {**daemon.environment(), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **(extra or {})}
        return run_ranks(arguments, [env] * n) or sys.exit(f"a rank failed; gaccd's log:\n{daemon.said()}")
    finally:
        daemon.close()


def spread(values):
    q = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return f"{statistics.median(values):8.3f} [{q[0]:7.3f} {q[2]:7.3f}]"


def added(rounds, name, bare, what):
    """What the variant adds to the bare step, round by round; what: 0 wall, 1 CPU. Without a bare step the whole of it."""
    return [v[what] - b[what] for v, b in zip(rounds[name], rounds[bare])] if bare else [v[what] for v in rounds[name]]


def verdict(ratio, goal):
    return f"{goal:5.2f} {'yes' if ratio <= goal else 'no':3s}" if goal else " " * 9


def judged(wall, cpu, goal):
    """`goal`: of both ratios, or of each (wall-clock time, CPU time)."""
    if not isinstance(goal, tuple):
        return verdict(max(wall, cpu), goal)
    return f"{goal[0]:4.2f} {goal[1]:4.2f} {'yes' if wall <= goal[0] and cpu <= goal[1] else 'no'}"


def pairings(what, model, rival, goal):
    """(name, (gacc's variant, the bare step that is taken away), (DDP's, its bare step), goal). Each bare step is the forward and backward of
    its variant, except in the last. The first is the verdict: the same forward and backward, line by line, on both sides. DDP copies once
    more with these layers, so the verdict counts only if gacc also meets the goal against DDP with PyTorch's own layers (`DDP plain`)."""
    direct, plain = (rival + "_direct", "bare_direct"), (rival, "bare")
    equal = [(VERDICT, ("gacc_direct", "bare_direct"), direct, goal)]
    if model == "S":
        equal.append(("the same, one slot", ("gacc_direct_1slot", "bare_direct"), direct, None))
    equal.append(("plain layers, adding", ("gacc", "bare"), plain, None))
    if what == "C3b":
        equal.append(("plain layers, copying", ("gacc_copy", "bare"), plain, COPY_GOAL))
    return equal + [(DDP_PLAIN, ("gacc_direct", "bare_direct"), plain, goal),
                    ("unequal: bare, DDP plain", ("gacc_direct", "bare"), plain, None)]


def fits(model, n, verdict_alone):
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return GIB_OF_A_RANK.get(model, (0, 0))[verdict_alone] * n * 2**20 <= int(line.split()[1])
    return True


def show_speed(build, model, n, rival, tuned, a, verdict_alone):
    """The verdict alone has the rows that it depends on, and needs fewer variants."""
    what = "C3b" if tuned else "C3a"
    rows = [r for r in pairings(what, model, rival, GOALS[rival, n]) if not verdict_alone or r[0] in (VERDICT, DDP_PLAIN)]
    steps, rounds, first = WORK[model] if not a.quick else (WORK[model][0] // 2 or 1, 3, 2)
    show_rows(f"{what} {model} {n}r", rows, ranks(build, n, arguments(model, rows, rounds, steps, first), TUNED if tuned else None))


def show_package(build, model, n, a):
    """C3p: the package's loop beside the same calls of libgacc written by hand (both copy gradients in hooks, and have two slots) and beside DDP. All
    have malloc tuned, as in C3b."""
    package, by_hand, tuned = ("gacc_package", "bare"), ("gacc_copy", "bare"), ("ddp_tuned", "bare")
    rows = [("by hand, what is added", package, by_hand, PACKAGE_GOAL),
            ("by hand, the whole step", ("gacc_package", None), ("gacc_copy", None), PACKAGE_GOAL),
            ("views too: what is added", ("gacc_package_view", "bare"), by_hand, PACKAGE_GOAL),
            ("views too: the whole step", ("gacc_package_view", None), ("gacc_copy", None), PACKAGE_GOAL),
            ("fused: what is added", ("gacc_package_fused", "bare"), by_hand, PACKAGE_GOAL),
            ("fused: the whole step", ("gacc_package_fused", None), ("gacc_copy", None), PACKAGE_GOAL),
            ("fused, views: what is added", ("gacc_package_both", "bare"), by_hand, PACKAGE_GOAL),
            ("fused, views: the whole step", ("gacc_package_both", None), ("gacc_copy", None), PACKAGE_GOAL),
            ("by hand, parameters copied", package, ("gacc_copy_both", "bare"), None),
            ("the same, the whole step", ("gacc_package", None), ("gacc_copy_both", None), None),
            ("DDP tuned, what is added", package, tuned, None),
            ("DDP tuned, the whole step", ("gacc_package", None), ("ddp_tuned", None), None),
            ("DDP, what is added", package, ("ddp", "bare"), None),
            ("(by hand and DDP tuned)", by_hand, tuned, None)]
    steps, _, first = WORK[model]
    rounds = 5 if a.quick else PACKAGE_ROUNDS[model]
    show_rows(f"C3p {model} {n}r", rows, ranks(build, n, arguments(model, rows, rounds, steps, first), TUNED))


def arguments(model, rows, rounds, steps, first):
    """Of rank.py, to measure what the rows need. The first variant that trains is what the others are compared with."""
    variants = dict.fromkeys(variant for row in rows for side in row[1:3] for variant in reversed(side) if variant)
    return ["compare", model, ",".join(variants), "--rounds", str(rounds), "--steps", str(steps), "--first", str(first)]


def show_rows(label, rows, result):
    """Nothing, but the end of the program, if the variants have not trained the same."""
    if any(result["apart"][k] > most for k, most in APART.items()):
        sys.exit(f"{label}: the variants do not train the same model: after the first steps apart by {result['apart']}, allowed: {APART}")
    for name, ours, theirs, goal in rows:
        (wall, cpu), rival_added = ([[1e3 * x for x in added(result["rounds"], *side, w)] for w in (0, 1)] for side in (ours, theirs))
        base = [statistics.median(x) for x in rival_added]
        ratio = [statistics.median(x) / y for x, y in zip((wall, cpu), base)]
        print(f"{label} {name:27s} {spread(wall)} {spread(cpu)} {base[0]:8.2f} {base[1]:8.2f} {ratio[0]:6.2f} {ratio[1]:6.2f}  "
              f"{judged(*ratio, goal) if min(base) > 0 else 'no verdict: the machine was too busy'}", flush=True)


def show_update(build, rounds):
    """64 Mi elements on all CPUs; ours also scales the gradient for clipping, which PyTorch does in a pass of its own."""
    ours, torch = [], []
    for _ in range(rounds):
        table = subprocess.run([pathlib.Path(build) / "bin/bench_kernels", "-m", "270", "-r", "5", "scaling"], stdout=subprocess.PIPE,
                               check=True, text=True).stdout
        ours.append(float([line for line in table.splitlines() if line.startswith("adamw")][-1].split()[2]))
        out = subprocess.run([sys.executable, HERE / "update.py", str(1 << 26), "5"], stdout=subprocess.PIPE, check=True).stdout
        torch.append(json.loads(out))
    for name, goal in UPDATE_GOALS.items():
        ratio = [t[name] / o for t, o in zip(torch, ours)]
        met = "yes" if statistics.median(ratio) >= goal else "no"
        print(f"C2 AdamW {name:8s} {statistics.median(ours):8.3f} {spread([t[name] for t in torch])} {spread(ratio)}  {goal:5.2f} {met}", flush=True)


def show_memory(build, model, n):
    used = {v: ranks(build, n, ["memory", model, v])["pss"] / 2**20 for v in ("ddp_tuned", "gacc_1slot", "gacc")}
    for name, slots, goal in (("gacc_1slot", 1, MEMORY_GOALS[n]), ("gacc", 2, None)):
        ratio = used[name] / used["ddp_tuned"]
        print(f"C10 {model} {n}r {slots} slot{'s' if slots > 1 else ' '}   {used['ddp_tuned']:10.0f} {used[name]:10.0f} {ratio:6.2f}  "
              f"{verdict(ratio, goal)}", flush=True)


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
    print(f"C11 {model}  {spread(attach)} {spread(start)}  {verdict(statistics.median(attach), 100)}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("build")
    p.add_argument("--models", default="S,M,L")
    p.add_argument("--ranks", default="2,4")
    p.add_argument("--quick", action="store_true")
    p.add_argument("--verdict", action="store_true", help="speed: the rows on which the verdict depends, and no others")
    p.add_argument("--busy", type=int, default=0, metavar="CPUS", help="how many CPUs something else keeps busy")
    p.add_argument("--only", choices=("update", "speed", "package", "memory", "restart"))
    a = p.parse_args()
    models, began = a.models.split(","), time.monotonic()
    busy = Busy(a.busy)
    if a.busy:
        print(f"Kept busy by another process: CPU {', '.join(map(str, busy.cpus))} of {os.cpu_count()}.\n", flush=True)
    if a.only in (None, "update"):
        print(f"AdamW of 64 Mi elements, ns per element, all CPUs; ratio: PyTorch / gacc.\n"
              f"{'':17s} {'gacc':>8s} {'PyTorch':>26s} {'ratio':>26s}  {'goal':>5s} met")
        show_update(a.build, 3 if a.quick else 5)
    if a.only in (None, "speed"):
        print("\nWhat a step adds to forward and backward, ms: of gacc, median [middle half], and of DDP, median. Both ratios must meet the goal.\n"
              f"{'':37s} {'gacc, wall':>26s} {'gacc, cpu':>26s} {'DDP wall':>8s} {'DDP cpu':>8s} {'wall':>6s} {'cpu':>6s}  {'goal':>5s} met")
        for model in models:
            for n in map(int, a.ranks.split(",")):
                verdict_alone = a.verdict or not fits(model, n, False)
                if verdict_alone and not fits(model, n, True):
                    print(f"C3  {model} {n}r left out: it needs {GIB_OF_A_RANK[model][1] * n} GiB of free memory", flush=True)
                    continue
                if verdict_alone and not a.verdict:
                    print(f"C3  {model} {n}r the verdict alone: the rest needs {GIB_OF_A_RANK[model][0] * n} GiB of free memory", flush=True)
                show_speed(a.build, model, n, "ddp", False, a, verdict_alone)
                show_speed(a.build, model, n, "ddp_tuned", True, a, verdict_alone)
                busy.check()
    if a.only in (None, "package"):
        print("\nThe package gacc.torch, ms of a step: median [middle half], and of the other side, median.\n"
              f"{'':37s} {'package, wall':>26s} {'package, cpu':>26s} {'its wall':>8s} {'its cpu':>8s} {'wall':>6s} {'cpu':>6s}  {'goal':>5s} met")
        for model in models:
            for n in map(int, a.ranks.split(",")):
                if fits(model, n, False):
                    show_package(a.build, model, n, a)
    if a.only in (None, "memory"):
        print(f"\nPSS of all processes, MiB.\n{'':18s} {'DDP':>10s} {'gacc':>10s} {'ratio':>6s}  {'goal':>5s} met")
        for n in (2, 4, 8):
            show_memory(a.build, "M" if a.quick else models[-1], n)
    if a.only in (None, "restart"):
        print(f"\nA restarted trainer, ms.\n{'':6s} {'attach to ready':>26s} {'its own start':>26s}  {'goal':>5s} met")
        for model in sorted({models[0], models[-1]}):
            show_restart(a.build, model, 3)
    share = busy.end()
    if a.busy:
        print(f"\nThe processes that kept CPUs busy had {share:.2f} CPUs.")
    print(f"\n{time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
