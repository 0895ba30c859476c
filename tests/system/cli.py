# SPDX-License-Identifier: Apache-2.0
"""gaccctl as its users type it, against the gaccd of `gaccctl cluster up`: for the tests of its commands and of what it prints."""
import json
import os
import pathlib
import re
import subprocess
import tempfile

import numpy as np
import pytest

from harness import Rank, build_dir

GACCCTL = build_dir() / "bin/gaccctl"
LINEAR = build_dir() / "bin/linear"
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "client/examples"
SGD = ("--set", "optimizer.type=sgd", "--set", "optimizer.lr=0.1")


class Cli:
    """gaccctl with the environment of one user."""

    def __init__(self, folder, endpoint=None):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("GACC_", "XDG_", "RANK", "WORLD_SIZE"))}
        self.folder = folder
        self.env = {**clean, "TMPDIR": str(folder), "XDG_STATE_HOME": str(folder / "state"), "OMP_NUM_THREADS": "1"}
        if endpoint:
            self.env["GACC_ENDPOINT"] = endpoint

    def start(self, *words, **how):
        return subprocess.Popen([str(w) for w in (GACCCTL, *words)], env=self.env, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, **how)

    def run(self, *words, code=0, stdin=None, timeout=60):
        """What it printed; the exit status must be `code`."""
        done = subprocess.run([str(w) for w in (GACCCTL, *words)], env=self.env, text=True, capture_output=True, input=stdin,
                              timeout=timeout)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        self.err = done.stderr
        return done.stdout

    def json(self, *words, code=0):
        return json.loads(self.run(*words, "-o", "json", code=code))

    def submit(self, *words, ranks=1, micro_size=1, name="cli"):
        return int(self.run("submit", *SGD, "-n", ranks, "--set", f"micro_size={micro_size}", "--name", name, *words))

    def state(self, job):
        return self.json("describe", f"job/{job}")["state"]


@pytest.fixture(scope="module")
def cluster():
    with tempfile.TemporaryDirectory(prefix="gacc-") as folder:
        cli = Cli(pathlib.Path(folder))
        line = cli.run("cluster", "up").strip()
        assert re.fullmatch(r"export GACC_ENDPOINT=unix:/\S+", line)
        cli.env["GACC_ENDPOINT"] = cli.endpoint = line.partition("=")[2]
        yield cli
        log = (pathlib.Path(cli.endpoint[5:]).parent / "log").read_text()
        cli.run("cluster", "down")
        bad = [x for x in log.splitlines() if re.search(" ERROR |Sanitizer|runtime error:", x)]
        assert not bad, "\n".join(bad)


@pytest.fixture
def folder():
    """Shorter than tmp_path: sockets have little room for theirs."""
    with tempfile.TemporaryDirectory(prefix="gacc-") as path:
        yield pathlib.Path(path)


def json_names(descriptor):
    return {f.name.removesuffix("unix_nanos") + "time" if f.name.endswith("unix_nanos") else f.name for f in descriptor.fields}


def one_rank(cluster, job, shape=(3,), **how):
    r = Rank(cluster.endpoint, job, 0, [("w", list(shape))], **how)
    r.start({"w": np.zeros(shape, np.float32)})
    return r


def step(rank, value, weight=1.0, loss=0.0, micros=1):
    for _ in range(micros):
        rank.push([np.full(3, value, np.float32)], weight=weight, loss=loss)
    return rank.wait_step().result


def columns(table):
    """Rows of a table as dicts; headers are single words, cells have no spaces."""
    head, *rows = [line.split() for line in table.splitlines()]
    return [dict(zip(head, row)) for row in rows]
