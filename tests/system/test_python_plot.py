# SPDX-License-Identifier: Apache-2.0
"""python -m gacc.plot: what its picture has of a job."""
import math
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

import numpy as np
import pytest

from python_package import environment, gacc

from gacc import plot  # noqa: E402, I100

SVG = "{http://www.w3.org/2000/svg}"


def draw(daemon, *words, cwd=None):
    return subprocess.run([sys.executable, "-m", "gacc.plot", *map(str, words)], env=environment(daemon), cwd=cwd, capture_output=True, text=True, timeout=60)


def shown(picture, tag, kind):
    return [e for e in xml.fromstring(picture).iter(SVG + tag) if e.get("class") == kind]


def points(path):
    """Of each piece of a curve, as numbers of the picture."""
    return [[tuple(map(float, p.split(" "))) for p in piece.split("L")] for piece in path.get("d").split("M") if piece]


@pytest.fixture
def job(daemon, tmp_path):
    """Four steps of two ranks, of which rank 1 is slow; with losses 1, 2, 3, 4."""
    job = gacc.connect(daemon.endpoint).submit(name="a & <b>", ranks=2, micro_size=2, steps=4, optimizer={"type": "sgd", "lr": 0.5})
    ranks = [gacc.attach(job, r, 2, endpoint=daemon.endpoint) for r in (0, 1)]
    for s in ranks:
        s.register({"w": ("f32", (4,))})
        s.upload([np.zeros(4)])
    for step in range(4):
        for micro in range(2):
            for s in ranks:  # in the order in which they are summed, so that each push returns
                time.sleep(0.02 * s.rank)
                s.fill([np.ones(4)])
                s.push(loss=step + 1)
        for s in ranks:
            s.wait()
    for s in ranks:
        s.detach()
    return job


def test_the_picture_of_a_job(daemon, job, tmp_path):
    done = draw(daemon, job.id, "-o", tmp_path / "it.svg")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'it.svg'}\n"), done
    picture = (tmp_path / "it.svg").read_text()
    assert "job 1 (a &amp; &lt;b&gt;): COMPLETED, 4 steps" in picture
    loss, norm, lr = (points(c) for c in shown(picture, "path", "curve"))
    assert [len(p) for p in (*loss, *norm, *lr)] == [4, 4, 4]
    across, up = zip(*loss[0])
    assert all(np.ptp(np.diff(a)) < 0.3 for a in (across, up)) and up[0] > up[3] + 10  # from the top, in steps of 0.1
    assert len({y for _, y in norm[0]}) == len({y for _, y in lr[0]}) == 1
    waits = [float(bar.get("height")) for bar in shown(picture, "rect", "rank")]
    assert len(waits) == 2 and waits[0] > 10 * waits[1]


def test_where_it_goes(daemon, job, tmp_path):
    assert draw(daemon, "a & <b>", "-o", "-").stdout.startswith("<svg")
    assert draw(daemon, job.id, cwd=tmp_path).stdout == "1.svg\n" and (tmp_path / "1.svg").exists()
    away = draw(daemon, job.id, "-o", tmp_path / "no/such/folder.svg")
    assert away.returncode == 1 and away.stderr.startswith("gacc.plot: ") and "No such file" in away.stderr and "Traceback" not in away.stderr
    nobody = draw(daemon, "nobody")
    assert nobody.returncode == 1 and "no job" in nobody.stderr and "Traceback" not in nobody.stderr


def record(step, loss):
    return {"step": step, "loss": loss, "grad_norm": 1.0, "lr": 0.1}


def test_values_that_cannot_be_drawn():
    """They leave a gap, and one value alone, equal ones or none are no error."""
    picture = plot.svg("", [record(1, 1.0), record(2, math.nan), record(3, 3.0), record(4, 1e299), record(5, -math.inf), record(6, 1.7e308), record(7, -1.7e308)], [])
    loss = points(shown(picture, "path", "curve")[0])
    assert [len(p) for p in loss] == [1, 2]
    assert all(math.isfinite(v) for piece in loss for p in piece for v in p)
    for records in [record(1, 1.0)], [record(1, math.nan)], []:
        xml.fromstring(plot.svg("", records, [(0, 0.0)]))


def test_of_many_ranks_those_that_the_others_wait_for():
    class Message:
        def __init__(self, window, micros):
            self.result, self.micros = type("Result", (), {"window": window}), micros
    late = [type("Micro", (), {"rank": r, "pushed_unix_nanos": (r + 1) * 10 ** 6}) for r in range(100)]
    waits = plot.waits([Message(7, late[:60]), Message(7, late[60:]), Message(8, late)])  # window 7 came in two pieces
    assert [r for r, _ in waits] == list(range(36, 100)) and waits[-1][1] == 0 and waits[0][1] == pytest.approx(63)
