# SPDX-License-Identifier: Apache-2.0
"""gacc_cuda.h between a real gaccd and the fake driver (client/examples/offload.c): gradients come from a device's stream, the daemon has them in host
memory, and gaccd, engines and the memory beneath a living trainer are lost meanwhile."""
import os
import subprocess

import pytest

from harness import Daemon, build_dir, wait_until

STEPS = 30


def start(daemon, job, late_us=0):
    env = {**os.environ, "GACC_ENDPOINT": daemon.endpoint, "GACC_JOB_ID": str(job), "RANK": "0", "WORLD_SIZE": "1", "FAKE_CUDA_MACHINE": str(daemon.dir.name),
           "FAKE_CUDA_DELAY": str(late_us), "LD_LIBRARY_PATH": str(build_dir() / "lib/fake_cuda")}
    return subprocess.Popen([build_dir() / "bin/offload"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def train(daemon, accumulate="none", late_us=0, meanwhile=None):
    job = daemon.submit({"ranks": 1, "micro_size": 1, "max_micro_size": 1, "steps": STEPS, "accumulate": accumulate, "slots_per_rank": 2,
                         "optimizer": {"type": "sgd", "lr": 0.5}, "init": [{"pattern": "*", "type": "zeros"}]})
    trainer = start(daemon, job, late_us)
    try:
        if meanwhile:
            meanwhile(job)
        out, err = trainer.communicate(timeout=100)
    finally:
        trainer.kill()
        trainer.wait()
    assert trainer.returncode == 0, err
    wait_until("the job's end", lambda: daemon.state(job) == "COMPLETED")
    return out


def expected():
    """What SGD makes of gradients whose bytes are all 0x3c, 0x3d or 0x3e, in f32."""
    np = pytest.importorskip("numpy")
    w = np.float32(0)
    for n in range(STEPS):
        w = np.float32(w - np.float32(0.5) * np.frombuffer(bytes([0x3c + n % 3] * 4), np.float32)[0])
    return f"parameters {w:.9g} {w:.9g}\n"


@pytest.mark.parametrize("accumulate", ["none", "sum"])
@pytest.mark.parametrize("late_us", [0, 3000])
def test_gradients_of_a_device(accumulate, late_us):
    with Daemon() as d:
        assert train(d, accumulate, late_us) == expected()


def test_while_engines_are_killed():
    def kill(job):
        for step in (5, 12, 20):
            wait_until(f"step {step}", lambda: d.get_job(job).applied_step >= step, 60)
            d.kill_engine(job, d.engine_pid(job))

    with Daemon() as d:
        assert train(d, late_us=3000, meanwhile=kill) == expected()


def test_while_gaccd_is_killed():
    """A new session: where gaccd offers other memory, it is pinned anew."""
    def kill(job):
        for step in (6, 15):
            wait_until(f"step {step}", lambda: d.get_job(job).applied_step >= step, 60)
            d.kill_gaccd()
            d.wait_ready()

    with Daemon(supervise=True) as d:
        assert train(d, late_us=3000, meanwhile=kill) == expected()
