# SPDX-License-Identifier: Apache-2.0
"""Jobs with slots_on: device, on the rig: trainers import slots and parameters from the (fake) GPU's memory, so no gradient crosses the bus. A trainer
that dies with a copy queued to such a slot, as in test_late_device.py, and what a trainer that is elsewhere is told."""
import collections
import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from batches import OPTIMIZERS
from harness import Daemon, GaccError, Rank, build_dir, next_line, rig_environment, wait_until
from launching import launched
from test_device import gpu, pytestmark  # noqa: F401
from test_examples import BIN, environment, needs_mlp, run
from test_late_device import SPEC, expected, others_get_other_slots, restart, run_next, start, who_detaches_is_waited_for
from test_mlp_cuda import LR, SAMPLES

ROOT = pathlib.Path(__file__).resolve().parents[2]
TENSORS = [("w", [1 << 16])]
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
PACKAGE = {"PYTHONPATH": str(ROOT / "client/python"), "GACC_PROTOSET": str(build_dir() / "proto/gacc.protoset")}
DEVICE = {**SPEC, "device": "cuda", "slots_on": "device"}


def machine(memory=None, devices=2, **more):
    """`memory`: bytes of each of its GPUs."""
    rig = {"devices": devices, **({"memory": memory} if memory else {})}
    d = Daemon(supervise=True, **more)
    d.env.update(rig_environment(d.dir.name, **rig))
    return d


@pytest.mark.parametrize("killed", ["nobody", "gaccd before", "gaccd after", "engine before", "engine after"])
def test_the_next_process_gets_other_slots(killed):
    """Also where gaccd or the engine dies meanwhile: the note says whose the memory is, and other memory is made on the GPU."""
    # a trainer that attaches again to another gaccd is a session of its own, whose slots are made anew, with what was in them
    others_get_other_slots(machine, DEVICE, killed, replaced=1 + (killed == "gaccd after"), imports=True)


def test_a_process_that_detaches_waits_for_its_device():
    who_detaches_is_waited_for(machine, DEVICE, imports=True)


def test_the_example():
    """offload.c: the same last line, wherever the job's sums and slots are."""
    said = []
    for more in {}, {"device": "cuda", "slots_on": "device"}:
        with machine(devices=1) as d:
            job = d.submit({"ranks": 1, "micro_size": 1, "steps": 2, "optimizer": {"type": "sgd", "lr": 0.5}, "init": SPEC["init"], **more})
            said.append(run([BIN / "offload"], environment(d, **rig_environment(d.dir.name, devices=1), GACC_JOB_ID=job, RANK=0, WORLD_SIZE=1)))
    assert said[0].startswith("parameters -") and said[0] == said[1]


def test_there_is_no_memory_for_other_slots():
    """The successor waits, its gaccd tries again each second, and goes on when another job has given memory back."""
    with machine(memory=1 << 20, allow=["OUT_OF_MEMORY", "AllocationFailed", "RankLost"]) as d:
        _, err = start(d, d.submit(DEVICE), "next", imports=True, FAKE_CUDA_MEMORY=str(1 << 20)).communicate(timeout=60)
        need = float(re.search(r"the job needs ([0-9.]+) MiB of the GPU's memory", err)[1])
    memory = str(int(2 * need + 3) << 20)  # two jobs; each slot is 2 MiB, and there are two
    with machine(memory=memory, allow=["OUT_OF_MEMORY", "RankLost", "Ended"]) as d:
        job, other = d.submit({**DEVICE, "gpu": gpu(0)}), d.submit({**DEVICE, "gpu": gpu(0), "name": "other"})
        assert start(d, other, "leaves", imports=True, FAKE_CUDA_MEMORY=memory).wait(timeout=60) == 0
        assert start(d, job, "late", imports=True, FAKE_CUDA_MEMORY=memory).wait(timeout=60) == -signal.SIGKILL
        trainer = start(d, job, "next", imports=True, FAKE_CUDA_MEMORY=memory)
        try:
            wait_until("two tries", lambda: d.log().count("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY") >= 2)
            assert trainer.poll() is None and not d.events("SlotsReplaced")
            d.client.jobs.Cancel(job=str(other))
            assert next_line(trainer) == "filled\n"
            out, err = trainer.communicate("go\n", timeout=60)
        finally:
            trainer.kill()
            trainer.wait()
        assert out == expected() and len(d.events("SlotsReplaced")) == 1, err


def test_who_is_elsewhere_is_told():
    with machine(allow=["RankLost"]) as d:
        job = d.submit({**DEVICE, "gpu": gpu(1)})
        other = start(d, job, "next", imports=True)
        _, err = other.communicate(timeout=60)
        assert other.returncode == 1 and f"the job's slots are in the memory of {gpu(1)}, and this trainer uses {gpu(0)}" in err, err
        rank = Rank(d, job, 0, TENSORS)
        with pytest.raises(GaccError) as e:
            rank.register()
        assert e.value.reason == "DEVICE_MISMATCH"
        assert f"the job's slots are in the memory of {gpu(1)}, and this trainer does not say that it uses it" in str(e.value)
        rank.close()
        rank = Rank(d, job, 0, TENSORS, inline=True)
        rank.register()
        rank.ready()
        for call in rank.params, lambda: rank.push({"w": np.zeros(1 << 16, np.float32)}):
            with pytest.raises(GaccError) as e:
                call()
            assert "has slots_on: device: gradients and parameters are in a GPU's memory, which trainers on that GPU import" in str(e.value)
        rank.detach(done=False)
        rank.close()
        assert run_next(d, job, imports=True, FAKE_DEVICE="1") == expected()


def rank_in_python(d, job, *what, program="device_rank.py", **rig):
    """A program of tests/support."""
    return subprocess.Popen([sys.executable, ROOT / "tests/support" / program, *map(str, what)], text=True, **PIPES,
                            env={**os.environ, **rig_environment(d.dir.name, **rig), **PACKAGE, "GACC_ENDPOINT": d.endpoint,
                                            "GACC_JOB_ID": str(job), "RANK": "0", "WORLD_SIZE": "1"})


def nobody(d, job, window):
    pass


def trained_in_python(windows, after=nobody, how=(), rig=None, **spec):
    with machine() as d:
        job = d.submit({"ranks": 1, "micro_size": 3, "optimizer": OPTIMIZERS["adamw"], "clip_norm": 1.0, "device": "cuda", **spec})
        rank = rank_in_python(d, job, windows, *how, **(rig or {}))
        try:
            for window in range(windows):
                line = next_line(rank)
                assert line == f"window {window}\n", (line, rank.communicate(timeout=60)[1])
                after(d, job, window)
                rank.stdin.write("\n")
                rank.stdin.flush()
            out, err = rank.communicate(timeout=60)
        finally:
            rank.kill()
            rank.wait()
        assert rank.returncode == 0, err
        return out


def test_from_python():
    """The same bits as with slots on the host, also when gaccd and the engine are killed on the way: the rank attaches anew and imports anew."""
    def kill(d, job, window):
        if window == 1:
            restart(d)
        elif window == 2:
            d.kill_engine(job, d.engine_pid(job))
    one = trained_in_python(4, slots_on="host")
    assert len(one) > 800 and trained_in_python(4, slots_on="device") == trained_in_python(4, kill, slots_on="device", verify_params=True) == one


@pytest.mark.parametrize("verify", [True, False])
def test_a_trainer_that_writes_to_the_parameters(verify, tmp_path):
    """Which slots_on: device cannot prevent. With verify_params the job ends at the window's end, and its checkpoint has what was there before."""
    with machine(allow=["ParamsAltered", "RankLost", "Ended"]) as d:
        job = d.submit({"ranks": 1, "micro_size": 3, "optimizer": OPTIMIZERS["adamw"], "device": "cuda", "slots_on": "device", "verify_params": verify,
                        "checkpoint": {"dir": str(tmp_path / "saved"), "every_steps": 2}})
        rank = rank_in_python(d, job, 4, "alters")
        try:
            assert next_line(rank) == "window 0\n"
            rank.stdin.write("\n")
            rank.stdin.flush()
            assert next_line(rank) == "window 1\n"
            wait_until("the checkpoint", lambda: [p for p in (tmp_path / "saved").glob("step-2-*") if (p / "manifest.json").exists()])
            out, err = rank.communicate("\n" * 3, timeout=60)
        finally:
            rank.kill()
            rank.wait()
        if not verify:
            assert rank.returncode == 0 and out.count("window") == 2, err
            return
        assert rank.returncode == 1 and not out and "JOB_ENDED" in err, (out, err)
        is_now = d.get_job(job)
        assert d.state(job) == "FAILED" and re.fullmatch(
            r"the parameters are not what step 2 has left: something else than the job has written to them \(verify_params\); restore the checkpoint of step 2: .*/step-2-.*", is_now.reason), is_now.reason
        assert "something else than the job has written to them" in err and len(d.events("ParamsAltered")) == 1, err


def test_arrays_on_the_device():
    with machine(allow=["RankLost"]) as d:
        job = d.submit({"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1.0}, "device": "cuda", "slots_on": "device"})
        rank = rank_in_python(d, job, "refusals")
        out, err = rank.communicate(timeout=60)
        assert out == "refused\n", err
        elsewhere = subprocess.run([sys.executable, ROOT / "tests/support/device_rank.py", "1"], capture_output=True, text=True, timeout=60,
                                   env={**os.environ, **PACKAGE, "GACC_ENDPOINT": d.endpoint, "GACC_JOB_ID": str(job), "RANK": "0",
                                        "WORLD_SIZE": "1", "LD_LIBRARY_PATH": ""})
        assert elsewhere.returncode and "there is no NVIDIA driver here" in elsewhere.stderr, elsewhere.stderr


def train(slots_on, ranks=2, samples=SAMPLES, kills=(), seed=0, **rig):
    """mlp_cuda on the job's own GPU: the final parameters, and how many of whom were killed."""
    with machine(allow=["RankLost", "RankRestarted", "RankExited"]) as d:
        dumped, numbers = d.dir / "mlp.safetensors", random.Random(seed)
        env = {**rig_environment(d.dir.name, devices=1, **rig), "FAKE_CUDA_KERNELS": str(build_dir() / "lib/mlp_cuda_host.so"), "MLP_CUDA_KERNELS": "/dev/null",
               "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0", "GACC_MLP_DATA": os.environ.get("GACC_MLP_DATA", "")}
        job = d.submit(launched(BIN / "mlp_cuda", "--batch", 8, "--max-samples", samples, "--epochs", 1, "--dump-params", dumped, ranks=ranks, environment=env,
                                max_restarts=100, micro_size=2, device="cuda", slots_on=slots_on, optimizer={"type": "sgd", "lr": LR}, name="mlp"))
        killed = collections.Counter()
        while kills and d.state(job) not in ("COMPLETED", "FAILED") and sum(killed.values()) < len(kills):
            time.sleep(0.3 + 0.9 * numbers.random())
            who = kills[sum(killed.values())]
            pids = {"rank": [r.pid for r in d.get_job(job).ranks if r.pid], "engine": [p for p in [d.get_job(job).engine_pid] if p], "gaccd": [d.pid]}[who]
            if d.state(job) != "RUNNING" or not pids:
                continue
            if who == "gaccd":
                restart(d)
            elif who == "engine":
                d.kill_engine(job, pids[0])
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(numbers.choice(pids), signal.SIGKILL)
            killed[who] += 1
        wait_until("the job's end", lambda: d.state(job) in ("COMPLETED", "FAILED"), 200)
        assert d.state(job) == "COMPLETED", d.get_job(job).reason
        return dumped.read_bytes(), killed


@needs_mlp
def test_a_whole_training():
    """The same parameters as with slots on the host, to the bit."""
    host, _ = train("host")
    assert train("device")[0] == host


@needs_mlp
def test_a_whole_training_with_kills():
    """The same parameters as without."""
    one, _ = train("device", samples=320)
    kills = ["rank", "engine", "rank", "gaccd", "rank", "engine"]
    same, killed = train("device", samples=320, kills=kills, seed=int(os.environ.get("GACC_SEED", 1)))
    assert same == one and sum(killed.values()) >= 4, killed
