# SPDX-License-Identifier: Apache-2.0
"""Bytes in the shared segments that nobody should have written: by a trainer in its slots, by anything else in the engine's.

Each row changes bytes while two of three micro-batches are counted, then kills the engine, so that the next one has only what lies in
memory. The job never comes to wrong sums: it goes on and the window is the undisturbed one, or it ends and says which segment is wrong.
"""
import os
import pathlib
import re
import struct

import numpy as np
import pytest

from harness import Daemon, GaccError, Rank

pytestmark = pytest.mark.sanitize
APPLIED, DATA = 1, 4096  # what lies in a segment begins behind its header page
HEADER = [("magic", 0, b"\xff"), ("version", 8, b"\xee"), ("role", 12, b"\x09"), ("job", 24, b"\xff"), ("bytes", 40, b"\xff" * 8),
          ("data-offset", 48, bytes(8)), ("fingerprint", 56, b"\x55"), ("crc", 64, b"\xaa"), ("all", 0, bytes(72))]
GRADIENT = np.arange(3000, dtype=np.float32)


def newest(segment, job):
    """Where the two control records lie, the newest first: each begins with its number, one apart, and the job's."""
    first = struct.unpack_from("Q", segment, DATA)[0]
    other = next(at for at in range(DATA + 64, len(segment) - 16, 64)
                 if struct.unpack_from("2Q", segment, at) in ((first - 1, job), (first + 1, job)))
    return [DATA, other] if struct.unpack_from("Q", segment, other)[0] < first else [other, DATA]


# id; segment as "role-index" (proto/segment_layout.h); offset, or a function of the segment's bytes and the job; what is written, or None:
# one bit flipped; the reason of the job's end, or None: it goes on
ROWS = [(f"control-header-{name}", "1-0", at, data, r"segment 0 \(role 1\)") for name, at, data in HEADER]
ROWS += [
    ("accumulator-header", "3-0", 0, b"\xff" * 72, r"\(role 3\)"),
    ("idle-accumulator-header", "4-0", 0, b"\xff" * 72, r"\(role 4\)"),
    ("parameters-header", "5-0", 0, b"\xff" * 72, r"\(role 5\)"),
    ("momentum-header", "7-0", 0, b"\xff" * 72, r"\(role 7\)"),
    ("slot-header-by-its-trainer", "16-0", 0, os.urandom(4096), r"\(role 16\)"),
    ("slot-by-its-trainer", "16-1", DATA, b"\xff" * 12000, None),
    ("spare-slot", "16-3", DATA, b"\xff" * 12000, None),
    ("status-page", "2-0", DATA, b"\xff" * 48, None),
    ("both-records", "1-0", DATA, b"\xff" * 8192, "neither control record is valid"),
    ("one-bit-of-the-newest-record", "1-0", lambda s, job: newest(s, job)[0] + 100, None, r"\(role 1\).*lacks what was acknowledged"),
    ("number-of-the-newest-record", "1-0", lambda s, job: newest(s, job)[0], None, r"\(role 1\).*lacks what was acknowledged"),
    ("one-bit-of-the-older-record", "1-0", lambda s, job: newest(s, job)[1] + 100, None, None),
    ("number-of-the-older-record", "1-0", lambda s, job: newest(s, job)[1] + 7, None, None),
]


@pytest.fixture(scope="module")
def gaccd():
    with Daemon(allow=[" Ended .*(role|control)", " RankLost "]) as d:
        yield d


def change(daemon, job, name, at, data):
    """Through gaccd's own descriptor, as only root can."""
    [fd] = [f for f in pathlib.Path(f"/proc/{daemon.pid}/fd").iterdir() if os.readlink(f).startswith(f"/memfd:gacc-{job}-{name} ")]
    segment = fd.read_bytes()
    at = at(segment, job) if callable(at) else at
    with open(fd, "r+b", buffering=0) as f:
        f.seek(at)
        f.write(bytes([segment[at] ^ 1]) if data is None else data)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may open gaccd's descriptors")
@pytest.mark.parametrize("name,segment,at,data,reason", ROWS, ids=[row[0] for row in ROWS])
def test_changed_bytes(gaccd, name, segment, at, data, reason):
    job = gaccd.submit({"name": name, "ranks": 1, "micro_size": 3, "optimizer": {"type": "sgd", "lr": 0.5, "momentum": 0.9}})
    trainer = Rank(gaccd, job, 0, [("w", [3000])], 1)
    trainer.start({"w": np.zeros(3000, np.float32)})
    for _ in range(2):
        trainer.push([GRADIENT])
    change(gaccd, job, segment, at, data)
    gaccd.kill_engine(job)
    if reason:
        with pytest.raises(GaccError) as e:
            trainer.push([GRADIENT])
        assert (e.value.code, e.value.reason) == ("FAILED_PRECONDITION", "JOB_ENDED")
        assert re.search(reason, e.value.text) and "submit" in e.value.detail.hint, e.value
        assert gaccd.state(job) == "NODE_FAIL"
    else:
        trainer.push([GRADIENT])
        step = trainer.wait_step().result
        assert (step.outcome, step.micro_count) == (APPLIED, 3)
        assert (trainer.params()["w"] == -0.5 * GRADIENT).all()
        trainer.detach()
    trainer.close()
