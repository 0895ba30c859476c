# SPDX-License-Identifier: Apache-2.0
"""Jobs whose accumulators, parameters and optimizer state are in a GPU's memory (device: cuda), on the rig: the fake driver and the
simulator run the product's plug-in and kernels. Beside a job is one in host memory with the same pushes, whose bits it must have.
TEST_DEVICE=cuda runs other tests with their jobs on the rig (harness.py).

GACC_DEVICE_KILLS: how many SIGKILLs and other deaths, drawn by GACC_SEED."""
import collections
import concurrent.futures
import contextlib
import os
import signal
import threading
import time

import numpy as np
import pytest

from batches import OPTIMIZERS, TENSORS, gradients, micros
from harness import Daemon, GaccError, Rank, alive, build_dir, rig_environment, wait_until
from saving_job import Job, read_safetensors
from test_kills import Threads
from training import Team
from workload import Workload, reference

pytestmark = pytest.mark.skipif(not all((build_dir() / "lib" / f).exists() for f in ("gacc/gacc_cuda.so", "gacc_cuda.fatbin")),
                                reason="a build without kernels for GPUs")
MIB = 1 << 20
KILLS = int(os.environ.get("GACC_DEVICE_KILLS", "100"))
_names = iter(range(10 ** 6))


def job(device="cuda", **more):
    return {"ranks": 2, "micro_size": 2, "steps": 0, "device": device, "optimizer": OPTIMIZERS["adamw"], "clip_norm": 1.0, **more}


def machine(allow=(), conf=None, **more):
    """A gaccd on a machine of its own with such a GPU."""
    return Daemon(env=rig_environment(f"test{os.getpid()}.{next(_names)}", **more), supervise=True, allow=allow, conf=conf)


def step_both(a, b, window, counts=(2, 2)):
    one, other = a.window(micros(window, counts)).result, b.window(micros(window, counts)).result
    assert one.params_digest == other.params_digest and one.grad_norm == other.grad_norm and one.outcome == other.outcome
    same_values(a, b)


def same_values(a, b):
    values = b.values()
    for name, value in a.values().items():
        np.testing.assert_array_equal(value, values[name])


# ---- the bits of the host ----


@pytest.mark.parametrize("inline", [(), (1,)])
@pytest.mark.parametrize("optimizer", ["momentum dampening decay", "adamw", "lamb"])
def test_same_bits(optimizer, inline):
    with machine() as d, Team(d, job(optimizer=OPTIMIZERS[optimizer]), TENSORS, inline=inline) as gpu, \
            Team(d, job("host", optimizer=OPTIMIZERS[optimizer]), TENSORS) as host:
        for window, counts in enumerate([(2, 2), (1, 2), (0, 2), (2, 2)]):
            step_both(gpu, host, window, counts)
        log = [line for line in d.log().splitlines() if f"EngineStarted job={gpu.job}:" in line]
        assert len(log) == 1 and " cuda kernels" in log[0]


def test_more_parameters_than_are_copied_at_a_time():
    tensors = [("w", [1_300_000])]
    spec = {"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 0.5}}
    with machine() as d, Team(d, job(**spec, clip_norm=0), tensors) as gpu, Team(d, job("host", **spec, clip_norm=0), tensors) as host:
        grads = [[(1.0, gradients(3, tensors))]]
        assert gpu.window(grads).result.params_digest == host.window(grads).result.params_digest
        same_values(gpu, host)


def test_values_that_are_drawn():
    spec = {"init": [{"pattern": "*", "type": "normal", "b": 0.02}], "seed": 7}
    with machine() as d, Team(d, job(**spec), TENSORS) as gpu, Team(d, job("host", **spec), TENSORS) as host:
        same_values(gpu, host)
        step_both(gpu, host, 0)


def test_two_jobs_on_one_gpu():
    with machine() as d, Team(d, job(), TENSORS) as a, Team(d, job(), TENSORS) as b, Team(d, job("host"), TENSORS) as host:
        step_both(a, host, 0)
        assert b.window(micros(0, (2, 2))).result.params_digest == host.ranks[0].wait_step(window=0).result.params_digest
        same_values(a, b)


# ---- what is refused ----


@pytest.mark.parametrize("more, text", [
    ({"parts": 2}, "device: cuda with 2 parts: a job of several parts needs device: host"),
    ({"accumulate_dtype": "f64"}, "a GPU's kernels sum in f32"),
    ({"optimizer": {"type": "client"}, "clip_norm": 0}, "device: cuda with optimizer client"),
    ({"ranks": 1, "micro_size": 1, "max_micro_size": 1, "accumulate": "none"}, "device: cuda with accumulate: none"),
    ({"device": 7}, "device 7 is unknown: host or cuda"),
])
def test_jobs_that_cannot_be_there(more, text):
    with machine() as d:
        with pytest.raises(GaccError) as e:
            d.submit({**job(), **more})
        assert e.value.reason == "INVALID_SPEC" and text in e.value.text and e.value.detail.field == "device"


def refused(d, text):
    """The first rank hears why there is no memory, and nothing of it is left. The job waits for a better day."""
    with Rank(d, d.submit(job()), 0, TENSORS, 2) as r:
        for _ in range(2):  # it is tried again when a rank asks again
            with pytest.raises(GaccError) as e:
                r.register()
            assert text in e.value.text and "device: host" in e.value.detail.hint, e.value
        wait_until("the engine's end", lambda: not d.engine_pids())
    with Team(d, job("host"), TENSORS) as host:
        host.window(micros(0, (2, 2)))


def test_a_machine_without_a_driver():
    with Daemon(allow=["AllocationFailed"]) as d:
        refused(d, "libcuda.so.1")


def test_a_job_that_does_not_fit():
    with machine(allow=["AllocationFailed", "CUDA_ERROR_OUT_OF_MEMORY"], memory=12 * MIB) as d:
        refused(d, "of the GPU's memory, of whose 12.0 MiB")


@pytest.mark.parametrize("how", ["end", "cancel", "gaccd"])
def test_the_memory_is_given_back(how):
    """There is room for one job on the GPU. Another one gets it when that is over."""
    with machine(allow=["AllocationFailed", "CUDA_ERROR_OUT_OF_MEMORY", " Ended job=", "RankLost"], memory=20 * MIB) as d:
        first = Team(d, job(steps=1 if how == "end" else 0), TENSORS)
        with Rank(d, d.submit(job()), 0, TENSORS, 2) as other, pytest.raises(GaccError, match="of the GPU's memory"):
            other.register()
        d.cancel(other.job)
        first.window(micros(0, (2, 2)))
        if how == "gaccd":
            d.kill_gaccd()
            d.wait_ready()
        if how == "cancel":
            d.cancel(first.job)
        for rank in first.ranks:
            with contextlib.suppress(GaccError):
                rank.detach()
        wait_until("the end of the engine", lambda: not d.engine_pids())
        with Team(d, job(), TENSORS) as second:
            second.window(micros(0, (2, 2)))


# ---- deaths ----


def test_a_death_while_the_memory_is_made():
    """What there was of it is given back: the GPU has room for one job, which gets its memory all the same."""
    with machine(memory=20 * MIB, delay=30_000) as d, concurrent.futures.ThreadPoolExecutor(1) as pool:
        team = pool.submit(Team, d, job(), TENSORS)
        pid = wait_until("an engine", d.engine_pids)[0]
        time.sleep(0.3)
        d.kill_engine(None, pid)  # on a busy machine the memory may be there already, and is adopted
        with team.result(60) as gpu:
            gpu.window(micros(0, (2, 2)))


@pytest.mark.parametrize("dies", ["engine", "gaccd", "both"])
def test_the_memory_is_adopted(dies):
    with machine() as d, Team(d, job(), TENSORS) as gpu, Team(d, job("host"), TENSORS) as host:
        step_both(gpu, host, 0)
        for team in gpu, host:  # half a window is in the accumulators
            for rank in team.ranks:
                rank.push(list(gradients(rank.rank).values()), weight=2)
        if dies != "gaccd":
            d.kill_engine(gpu.job)
        if dies != "engine":
            d.kill_gaccd()
            d.wait_ready()
        for team in gpu, host:
            for rank in team.ranks:
                rank.push(list(gradients(10 + rank.rank).values()), weight=3)
        digests = {rank.wait_step().result.params_digest for team in (gpu, host) for rank in team.ranks}
        assert len(digests) == 1
        step_both(gpu, host, 2)
        d.allow += [r" RankLate job="]


def test_an_engine_that_outlives_its_gaccd_is_waited_for():
    """It is in the middle of a long pass when gaccd dies, and does not see that: its successor does not get the memory before it is over."""
    tensors, spec = [("w", [5_000_000])], {"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 0.5}, "clip_norm": 0}
    grads = [[(1.0, gradients(3, tensors))]]
    with machine() as d, Team(d, job(**spec), tensors) as gpu, Team(d, job("host", **spec), tensors) as host, \
            concurrent.futures.ThreadPoolExecutor(1) as pool:
        old = d.engine_pid(gpu.job)
        before, step = cpu_s(old), pool.submit(gpu.window, grads)
        wait_until("it is at work", lambda: cpu_s(old) > before + 0.1)
        d.kill_gaccd()
        d.wait_ready()
        assert alive(old), "the pass was too short to show anything"
        wait_until("its end", lambda: not alive(old), 60)
        assert step.result(120).result.params_digest == host.window(grads).result.params_digest
        assert "previous engine" not in d.log(), "the successor was started too early"


def cpu_s(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_deaths_at_any_moment():
    """The engine and gaccd die again and again while trainers train; half of the engines by a signal after which the GPU runs on (a ghost)."""
    work = Workload(ranks=2, micro_size=3, steps=12, elements=12_000, optimizer="adamw", clip_norm=1.0)
    want, seed, kills = reference(work), int(os.environ.get("GACC_SEED", "1")), collections.Counter()
    work.spec["device"] = "cuda"
    while sum(kills.values()) < KILLS:
        rng, seed = np.random.default_rng(seed), seed + 1
        with machine(allow=["was killed by signal", "Engine", "AttemptFailed", "RankLate"], late=3000, kill_signal=int(signal.SIGUSR1), weak=1, seed=seed) as d:
            run = Threads(d, work, pause=0.004)
            while not run.done:
                kills[kill_something(d, run, rng)] += 1
            for params in run.params():
                for name, value in want.items():
                    np.testing.assert_array_equal(params[name], value, err_msg=f"GACC_SEED={seed - 1}")
    print(", ".join(f"{n} {what}" for what, n in sorted(kills.items())))
    assert min(kills[what] for what in ("engine", "engine with a ghost", "gaccd")) > 0


def kill_something(d, run, rng):
    """What has died; the next engine is up again."""
    ups, kind = len(d.events("EngineStarted")), rng.choice(["engine", "engine", "engine with a ghost", "engine with a ghost", "gaccd"])
    time.sleep(rng.uniform(0.02, 0.3))
    try:
        if kind == "gaccd":
            d.kill_gaccd()
            d.wait_ready()
        else:
            d.kill_engine(run.job, d.engine_pid(run.job), signal.SIGKILL if kind == "engine" else signal.SIGUSR1)
        wait_until("the next engine", lambda: run.done or len(d.events("EngineStarted")) > ups, 60)
    except (AssertionError, GaccError):
        if not run.done:
            raise
    return str(kind)


# ---- checkpoints, and what is shown ----


@pytest.mark.parametrize("first, then", [("cuda", "host"), ("host", "cuda"), ("cuda", "cuda")])
def test_checkpoints_go_from_one_to_the_other(first, then):
    with machine() as d:
        a = Job(d, device=first)
        a.step(2)
        saved = a.save()
        a.step(1)
        b = Job(d, device=then, restore_from=saved.path)
        assert b.ranks[0].window == 2
        b.step(1)
        assert b.params() == a.params()
        again = b.save()
        names = ["model.safetensors", "optimizer.safetensors"]
        c = a.save()
        assert [read_safetensors(f"{again.path}/{n}") for n in names] == [read_safetensors(f"{c.path}/{n}") for n in names]
        a.leave()
        b.leave()


def test_what_is_shown():
    with machine() as d, Team(d, job(), TENSORS) as gpu:
        kinds = {b.kind: b for b in d.client.node.ListBuffers().buffers}
        assert {"accumulator (cuda)", "parameters (cuda)", "optimizer state (cuda)", "parameters", "slots", "control"} <= set(kinds)
        assert "accumulator" not in kinds and kinds["accumulator (cuda)"].segments == 2 and kinds["slots"].segments == 6
        host = sum(b.bytes for k, b in kinds.items() if not k.endswith("(cuda)"))
        assert d.get_job(gpu.job).host_bytes == host


def test_pushes_go_on_beside_a_reader():
    """GetParameters gives those of one step, not of two."""
    tensors, stop, seen = [("w", [204_800])], threading.Event(), set()
    spec = {"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1.0}, "clip_norm": 0, "reduction": "sum"}
    with machine() as d, Team(d, job(**spec), tensors) as gpu:
        def read():
            while not stop.is_set():
                seen.add(len(np.unique(np.frombuffer(gpu.ranks[0].get_bytes(), np.float32))))
        reader = threading.Thread(target=read)
        reader.start()
        try:
            for _ in range(6):
                gpu.window([[(1.0, {"w": np.ones(204_800, np.float32)})]])
        finally:
            stop.set()
            reader.join()
        assert seen == {1} and set(np.unique(gpu.ranks[0].params()["w"])) == {np.float32(-6)}
