# SPDX-License-Identifier: Apache-2.0
"""The n-th allocation of libgacc fails, once: the call goes on or says that there is no memory, and a trainer that is started again finishes
the job with the bits of a run without faults. NTH_EVERY=k in the environment: every k-th n."""
import os
import re
import subprocess
import time

import pytest

from harness import build_dir

RANKS, STEPS, MICRO, ELEMENTS = 2, 2, 2, 500
EVERY = int(os.environ.get("NTH_EVERY", "3"))


class Ranks:
    def __init__(self, daemon):
        self.daemon = daemon
        self.job = daemon.submit({"ranks": RANKS, "micro_size": MICRO, "steps": STEPS, "slots_per_rank": 1, "reduction": "sum",
                                  "optimizer": {"type": "sgd", "lr": 1}})
        self.out = daemon.dir / f"out.{self.job}"

    def start(self, rank, nth=None):
        program = "fault_trainer" if nth is None else "fault_trainer_alloc"
        env = {**os.environ, "GACC_TEST": str(self.daemon.dir), **({} if nth is None else {"NTH_ALLOC": str(nth)})}
        return subprocess.Popen([build_dir() / "bin" / program, self.daemon.endpoint, str(self.job), str(rank), str(RANKS), str(STEPS),
                                 str(MICRO), str(ELEMENTS), self.out], stderr=subprocess.PIPE, text=True, env=env)

    def train(self, nth=None):
        """(parameters, what the rank with the failing allocation said, its exit status)"""
        other, faulty = self.start(0), self.start(1, nth)
        code, said = self.end(faulty, (0, 1))
        if code:
            self.end(self.start(1), (0, 3))
        self.end(other, (0,))
        return self.out.with_name(self.out.name + ".0").read_bytes(), said, code

    @staticmethod
    def end(process, codes):
        said = process.communicate(timeout=60)[1]
        assert process.returncode in codes, f"exit status {process.returncode}: {said}"
        return process.returncode, said


def test_every_allocation_of_libgacc_may_fail(daemon):
    if not (build_dir() / "bin/fault_trainer_alloc").exists():
        pytest.skip("a sanitizer has its own malloc")
    daemon.allow.append(" RankLost ")
    reference, said, _ = Ranks(daemon).train(nth=0)
    total, end, failed = int(re.search(r"(\d+) allocations", said)[1]), time.monotonic() + 60, 0
    assert total > 30
    for n in range(1, total + 1, EVERY):
        assert time.monotonic() < end
        params, said, code = Ranks(daemon).train(n)
        assert params == reference, f"allocation {n}: other bits"
        assert not code or re.search("memory", said), f"allocation {n}: {said}"
        failed += code
    print(f"{total} allocations, every {EVERY}. failed once: {failed} trainers ended, and their successors finished")
    assert failed
