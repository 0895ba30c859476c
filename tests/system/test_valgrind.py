# SPDX-License-Identifier: Apache-2.0
"""libgacc under valgrind, in the C trainer and in gaccctl, against a gaccd that is not: no access outside of memory, nothing lost."""
import shutil
import subprocess

import pytest

from harness import build_dir
from test_examples import LINEAR, environment, linear_in_numpy, parameters

# "possibly lost" is what gRPC's own threads hold, which go on for a moment after the last channel is closed
VALGRIND = ["valgrind", "-q", "--leak-check=full", "--show-leak-kinds=definite,indirect", "--errors-for-leak-kinds=definite,indirect",
            "--error-exitcode=99", "--child-silent-after-fork=yes"]
BIN = build_dir() / "bin"
STEPS = 3
# gaccctl's arguments and its exit status; {job} is a job that has ended
COMMANDS = [(["jobs", "-a", "-o", "json"], 0), (["describe", "job/{job}"], 0), (["cancel", "nope"], 4), (["jobs", "--nope"], 2)]

pytestmark = pytest.mark.skipif(not shutil.which("valgrind"), reason="needs the package valgrind")


def start(program, env):
    return subprocess.Popen(VALGRIND + [str(p) for p in program], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process, status=0):
    out, err = process.communicate(timeout=120)
    assert process.returncode == status and "==" not in err, f"{process.args}: {process.returncode}\n{err}"
    return out


def test_trainers(daemon):
    job = daemon.submit({**LINEAR, "steps": STEPS})
    trainers = [start([BIN / "linear"], environment(daemon, RANK=r, WORLD_SIZE=2, GACC_JOB_ID=job)) for r in range(2)]
    assert [parameters(finish(t)) for t in trainers] == [[linear_in_numpy(steps=STEPS)]] * 2


def test_gaccctl(daemon):
    """Not `run`: it starts itself again by /proc/self/exe, which is valgrind."""
    job = daemon.submit({**LINEAR, "name": "ended"})
    daemon.cancel(job)
    running = [(start([BIN / "gaccctl", "--timeout", "60s", *(a.format(job=job) for a in arguments)], environment(daemon)), status)
               for arguments, status in COMMANDS]
    for process, status in running:
        finish(process, status)
