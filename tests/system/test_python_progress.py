# SPDX-License-Identifier: Apache-2.0
"""gacc.attach(progress=True): the line on a terminal, with tqdm and without, and nothing elsewhere."""
import re
import subprocess
import sys

from python_package import environment
from terminal import lines_shown, on_terminal

SCRIPT = """
import sys, threading
if sys.argv[1] == "plain":
    sys.modules["tqdm"] = None  # as where it is not installed
import numpy as np, gacc
spec = {"name": "runs", "ranks": 2, "micro_size": 2, "steps": 4, "optimizer": {"type": "sgd", "lr": 0.5}}
def rank(r):
    with gacc.attach(None, r, 2, spec=spec, progress=True) as s:
        s.register({"w": ("f32", (4,))})
        s.upload([np.zeros(4)])
        while s.window < 4:
            for _ in s.missing:
                s.fill([np.ones(4)])
                s.push(weight=8, loss=s.window + 1)
            if s.wait().job_done:
                return
other = threading.Thread(target=rank, args=(1,))
other.start(), rank(0), other.join()
"""


def shown(daemon, how, columns=200):
    text, out, status = on_terminal([sys.executable, "-c", SCRIPT, how], environment(daemon), columns)
    assert (out, status) == ("", 0), text
    return lines_shown(text)


def test_the_line(daemon):
    lines = shown(daemon, "plain")
    last = lines[-1]
    assert sum(line.startswith("runs: 4/4") for line in lines) == 1, "rank 0 alone shows it"
    assert re.fullmatch(r"runs: 4/4, [\d.e+]+ steps/s, 0:00 left, loss 4, batch 32, last: rank [01] \(\+\d+ ms\) *", last), last


def test_a_narrow_terminal(daemon):
    lines = shown(daemon, "plain", 30)
    assert any(line.startswith("runs: 4/4") for line in lines) and all(len(line) < 30 for line in lines), lines


def test_tqdm(daemon):
    last = shown(daemon, "tqdm")[-1]
    assert re.search(r"^runs: 100%\|.*\| 4/4 \[.*step.*, loss 4, batch 32, last: rank [01] ", last), last


def test_elsewhere_it_is_quiet(daemon):
    done = subprocess.run([sys.executable, "-c", SCRIPT, "tqdm"], env=environment(daemon), capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
