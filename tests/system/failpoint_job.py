# SPDX-License-Identifier: Apache-2.0
"""The job that fault_trainer trains for test_failpoints.py: its trainers, started by the test or by gaccd, and what its ledger must say; the
socket that arms the points."""
import hashlib
import json
import os
import re
import signal
import socket
import subprocess

import numpy as np

from exact import Exact, Micro
from harness import GaccError, build_dir, wait_until

RANKS, MICRO, STEPS, ELEMENTS = 4, 4, 3, 5000
PARTS = 2  # of a job that is divided
VICTIM = 1
WAYS = ((0, 3), (1, 2), range(RANKS), ())  # which ranks push by RPC, the others through mailboxes
ENDED = (7, 8, 9, 10)  # COMPLETED, FAILED, CANCELLED, NODE_FAIL


class Control:
    """The socket of a gaccd, or of the one that comes after it."""

    def __init__(self, path):
        self.path, self.socket = str(path), None

    def _say(self, line):
        if not self.socket:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(5)
            self.socket.connect(self.path)
        self.socket.sendall(line.encode() + b"\n")
        answer = b""
        while not re.search(rb"(^|\n)(ok|error: [^\n]*)\n$", answer):
            more = self.socket.recv(65536)
            if not more:
                raise ConnectionError("closed")
            answer += more
        return answer.decode().splitlines()

    def say(self, line):
        """The answer's lines, the last of them "ok" or "error: ..."."""
        def once():
            try:
                return self._say(line)
            except OSError:
                self.close()
        return wait_until(f"failpoints: {line}", once, 20)

    def do(self, line):
        answer = self.say(line)
        assert answer[-1] == "ok", (line, answer)
        return answer[:-1]

    def hits(self):
        """name -> (passed, fired)"""
        return {name: (int(hits), int(fired)) for name, hits, fired, _ in (line.split() for line in self.do("hits"))}

    def close(self):
        if self.socket:
            self.socket.close()
        self.socket = None


class Trainers:
    """The job's ranks as fault_trainer processes; those that die are started again. The victim of a client's point is a process of its
    own, and the only one that sees failpoints. Of a job of several parts rank 0 alone gives the parameters: the others' parts take them."""

    def __init__(self, daemon, job, client_optimizer=False, victim=False, by_rpc=WAYS[0], parts=1, place=None, states=False):
        """place: the daemon of each rank's node, if there are several; states: each rank puts one of its own in each window."""
        self.env = {"GACC_TEST_STATES": "1"} if states else {}
        self.daemon, self.job, self.place = daemon, job, place or [daemon] * RANKS
        self.way = ["client"] * client_optimizer or ["first"] * (parts > 1)
        self.out = daemon.dir / f"out.{job}"
        self.by_rpc, self.victim = set(by_rpc), str(VICTIM) if victim else None
        self.logs, self.running, self.codes = {}, {}, []
        groups = {}
        for rank in range(RANKS):
            groups.setdefault((victim and rank == VICTIM, rank in self.by_rpc, self.place[rank].endpoint), []).append(str(rank))
        for ranks in groups.values():
            self.start(",".join(ranks))

    def start(self, ranks):
        first = int(ranks.partition(",")[0])
        node = self.place[first]
        self.logs.setdefault(ranks, node.dir / f"trainer.{self.job}.{ranks}.log")
        env = {**os.environ, **self.env, "GACC_TEST": str(node.dir)}
        if ranks == self.victim:
            env["GACC_FAILPOINTS_FILE"] = str(node.dir / "run/failpoints")
        if first in self.by_rpc:
            env["GACC_MAILBOX"] = "0"
        with open(self.logs[ranks], "ab") as log:
            self.running[ranks] = subprocess.Popen(
                [build_dir() / "bin/fault_trainer", node.endpoint, str(self.job), ranks, str(RANKS), str(STEPS), str(MICRO),
                 str(ELEMENTS), self.out, *self.way], stdout=log, stderr=log, env=env)

    def heard(self):
        return "\n".join(log.read_text() for log in self.logs.values())

    def poll(self, retry):
        """True when all are done. `retry`: a text with which they may fail."""
        for ranks, process in list(self.running.items()):
            code = process.poll()
            if code is None:
                continue
            del self.running[ranks]
            self.codes.append(code)
            if code == -signal.SIGKILL or (retry and code == 1 and re.search(retry, self.heard())):
                self.start(ranks)
            else:
                assert code in (0, 3), f"trainer of ranks {ranks} ended with {code}:\n{self.heard()}"
        return not self.running

    def pids(self):
        return [p.pid for p in self.running.values()]

    def results(self):
        """Of the ranks that saw the end: the bytes of their parameters."""
        found = [self.out.with_name(f"{self.out.name}.{r}") for r in range(RANKS)]
        return [path.read_bytes() for path in found if path.exists()]

    def kill(self):
        for process in self.running.values():
            process.kill()
            process.wait()


class Launched:
    """The ranks as gaccd's launcher starts them, and starts them again. The same face as Trainers."""

    def __init__(self, daemon, job, out):
        self.daemon, self.job, self.out, self.codes = daemon, job, out, []

    @staticmethod
    def spec(daemon, out, by_rpc=WAYS[0]):
        command = [build_dir() / "bin/fault_trainer", daemon.endpoint, "$GACC_JOB_ID", "-", RANKS, STEPS, MICRO, ELEMENTS, out]
        way = f"case {'.'.join(map(str, by_rpc))} in *$GACC_RANK*) export GACC_MAILBOX=0;; esac; "
        return {"launch": "daemon", "launch_command": {
            "command": ["sh", "-c", way + "exec " + " ".join(map(str, command))], "max_restarts": 3, "grace_ms": 500,
            "environment": [{"key": "GACC_TEST", "value": str(daemon.dir)}]}}

    def pids(self):
        return self.daemon.launchers()

    def heard(self):
        return "\n".join(log.read_text() for log in (self.daemon.dir / "state/logs").glob(f"{self.job}-*/*.log"))

    def poll(self, retry):
        """True when the job has ended and no launcher is left."""
        try:
            job = self.daemon.client.jobs.Get(job=str(self.job), retry=False, timeout=1).job
        except GaccError:
            return False
        return job.state in ENDED and not self.daemon.launchers()

    def results(self):
        found = [self.out.with_name(f"{self.out.name}.{r}") for r in range(RANKS)]
        return [path.read_bytes() for path in found if path.exists()]

    def kill(self):
        pass


def check_ledger(data, client_optimizer):
    """Micro-batch g is in it once, with its weight (what momentum makes of it is exact)."""
    values = np.frombuffer(data, np.float32, offset=8)
    for window in range(STEPS):
        factor = 1 if client_optimizer else sum(0.5 ** i for i in range(STEPS - window))
        for micro in range(MICRO):
            for rank in range(RANKS):
                weight = 0.5 + 0.25 * ((5 * window + 3 * micro + 7 * rank) % 12)
                g = (window * MICRO + micro) * RANKS + rank
                assert values[g] == -weight * factor, (window, micro, rank, float(values[g]), -weight * factor)


def spec(client_optimizer, parts=1):
    optimizer = {"type": "client"} if client_optimizer else {"type": "sgd", "lr": 1, "momentum": 0.5}
    return {"ranks": RANKS, "micro_size": MICRO, "steps": STEPS, "slots_per_rank": 1, "reduction": "sum", "parts": parts,
            "sharding": "full" if parts > 1 else "none", "optimizer": optimizer}


def exact_result(parts):
    """What a rank writes at the end (support/work.c), as tests/system/exact.py defines the steps."""
    elements = np.arange(ELEMENTS, dtype=np.uint64)

    def noise(g):
        mixed = np.array([g], np.uint64) * np.uint64(0x9e3779b97f4a7c15) ^ elements * np.uint64(0xc2b2ae3d27d4eb4f)
        return ((mixed * np.uint64(0x9e3779b97f4a7c15)) >> np.uint64(32)).astype(np.uint32).view(np.int32).astype(np.float32) * np.float32(2.0 ** -41)

    n_ledger = STEPS * MICRO * RANKS
    job = Exact(spec(False, parts), [("ledger", [n_ledger]), ("body", [ELEMENTS])])
    job.set_params({"ledger": np.zeros(n_ledger, np.float32), "body": np.float32(1024) * noise(0)})
    for window in range(STEPS):
        micros = []
        for micro in range(MICRO):
            for rank in range(RANKS):
                g = (window * MICRO + micro) * RANKS + rank
                ledger = np.zeros(n_ledger, np.float32)
                ledger[g] = 1
                weight = 0.5 + 0.25 * ((5 * window + 3 * micro + 7 * rank) % 12)
                micros.append(Micro(rank, micro, weight, 0, {"ledger": ledger, "body": noise(g) + np.float32(2.0 ** -10) * job.p["body"]}))
        job.close(micros, 0)
    return bytes(8) + b"".join(job.params()[name].tobytes() for name in ("ledger", "body"))


def read_manifest(folder):
    """Of a checkpoint whose files have the sums that it says."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for file in manifest["files"]:
        assert hashlib.sha256((folder / file["name"]).read_bytes()).hexdigest() == file["sha256"], (folder, file)
    return manifest
