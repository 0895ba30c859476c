# SPDX-License-Identifier: Apache-2.0
"""Jobs whose checkpoints are looked at, with all ranks in this process, and a reader of safetensors that is not ours."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shutil

import numpy as np
import pytest

from harness import Daemon, GaccError, Rank, to_bf16

COMPLETE, FAILED = 2, 3
SHAPES = {"w": [37, 5], "b": [], "half": [33], "brain": [41]}
TENSORS = [("w", SHAPES["w"]), ("b", []), ("half", [33], "f16"), ("brain", [41], "bf16"), ("tied", SHAPES["w"], "f32", "w")]
OPTIMIZERS = {
    "sgd": {"type": "sgd", "lr": 0.05, "weight_decay": 0.1},
    "lamb": {"type": "lamb", "lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.1},
    "momentum": {"type": "sgd", "lr": 0.05, "momentum": 0.9},
    "adamw": {"type": "adamw", "lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1},
}


@pytest.fixture
def d():
    with Daemon() as daemon:
        yield daemon


def gradients(step, rank, micro, scale=1.0):
    rng = np.random.default_rng([step, rank, micro])
    return {n: (rng.standard_normal(s) * scale).astype(np.float32) for n, s in SHAPES.items()}


def first_params():
    rng = np.random.default_rng(7)
    p = {n: rng.standard_normal(s).astype(np.float32) for n, s in SHAPES.items()}
    p["brain"] = to_bf16(p["brain"])
    return p


class Job:
    """A job and its ranks; all ranks in this process."""

    def __init__(self, daemon, ranks=2, start=True, submit=None, **spec):
        self.d, self.n, self.ranks = daemon, ranks, []
        self.spec = {"ranks": ranks, "micro_size": 2, "optimizer": OPTIMIZERS["adamw"], **spec}
        self.id = (submit or daemon.submit)(self.spec)
        if start:
            self.attach()

    def attach(self):
        self.ranks = [Rank(self.d, self.id, r, TENSORS, self.n) for r in range(self.n)]
        with concurrent.futures.ThreadPoolExecutor(self.n) as pool:  # parts start together
            list(pool.map(lambda r: r.start(first_params()), self.ranks))
        return self

    def push(self, rank, micro, scale=1.0):
        r = self.ranks[rank]
        return r.push(gradients(r.window, rank, micro, scale), weight=1 + rank + micro, loss=0.5 * micro)

    def step(self, windows=1, micros=2):
        for _ in range(windows):
            for micro in range(micros):
                for rank in range(self.n):
                    if micro in self.ranks[rank].missing:
                        self.push(rank, micro)
            last = [r.wait_step() for r in self.ranks]
        return last[0].result

    def params(self):
        return {n: a.tobytes() for n, a in self.ranks[0].params().items()}

    def save(self, wait=True, **fields):
        return self.d.client.jobs.SaveCheckpoint(job=str(self.id), wait=wait, **{"request_id": os.urandom(16), **fields}).checkpoint

    def saved(self):
        return list(self.d.client.jobs.ListCheckpoints(job=str(self.id)).checkpoints)

    def leave(self):
        for r in self.ranks:
            with contextlib.suppress(GaccError):
                r.detach()
            r.close()
        self.ranks = []


def delete_checkpoint(path):
    """As `rm -r` does. A sweep of gaccd that meets it half deleted deletes the rest, so that a file may be gone before it is unlinked here."""
    shutil.rmtree(path, ignore_errors=True)
    assert not pathlib.Path(path).exists()


def read_safetensors(path):
    """An independent reader: name -> (dtype, shape, bytes)."""
    data = pathlib.Path(path).read_bytes()
    n = int.from_bytes(data[:8], "little")
    assert n % 8 == 0 and data[8:9] == b"{"
    head, body, at, out = json.loads(data[8:8 + n]), data[8 + n:], 0, {}
    head.pop("__metadata__", None)
    for name, t in sorted(head.items(), key=lambda i: i[1]["data_offsets"]):
        begin, end = t["data_offsets"]
        assert begin == at, name
        at = end
        out[name] = (t["dtype"], t["shape"], body[begin:end])
    assert at == len(body)
    return out


BIG = [("w", [1 << 22])]


def whole_state(files):
    """name -> (dtype, shape, bytes) of the optimizer's state in these files, given as file's name -> its tensors; of shares, put together as
    docs/operations.md says, the shape is that of the flat tensor."""
    whole = {}
    for file, tensors in sorted(files.items()):
        if not file.startswith("optimizer"):
            continue
        for name, (dtype, shape, data) in tensors.items():
            cut = re.fullmatch(r"(.*)\[(\d+):(\d+)\]", name)
            if cut:
                name, begin, end = cut[1], int(cut[2]), int(cut[3])
                before = whole.get(name, (dtype, [0], b""))[2]
                assert dtype == "F32" and shape == [end - begin] and len(before) == 4 * begin, (file, name)
                whole[name] = (dtype, [end], before + data)
                continue
            assert name not in whole
            whole[name] = (dtype, shape, data)
    return whole


class BigJob(Job):
    """One rank, 16 MiB of parameters, as much of each state."""

    def attach(self):
        self.ranks = [Rank(self.d, self.id, 0, BIG, 1)]
        self.ranks[0].start({"w": np.zeros(1 << 22, np.float32)})

    def push(self, rank, micro, scale=1.0):
        r = self.ranks[0]
        return r.push({"w": np.full(1 << 22, 1 + r.window + micro, np.float32)})


def start_big(d, **spec):
    return BigJob(d, **{"ranks": 1, "optimizer": OPTIMIZERS["momentum"], "micro_size": 1, **spec})
