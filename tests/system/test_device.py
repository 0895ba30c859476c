# SPDX-License-Identifier: Apache-2.0
"""Jobs whose accumulators, parameters and optimizer state are in a GPU's memory (device: cuda), on the rig: the fake driver and the
simulator run the product's plug-in and kernels. Beside a job is one in host memory with the same pushes, whose bits it must have.
TEST_DEVICE=cuda runs other tests with their jobs on the rig (harness.py).

GACC_DEVICE_KILLS: how many SIGKILLs and other deaths (150), drawn by GACC_SEED, or else by GACC_SAMPLE. tests/long.sh device has 1,000."""
import collections
import concurrent.futures
import ctypes
import contextlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
import zlib

import numpy as np
import pytest

from batches import OPTIMIZERS, TENSORS, gradients, micros
from cli import Cli
from harness import Daemon, GaccError, Rank, alive, build_dir, kill_at_once, rig_environment, wait_until
from test_gpu_probe import NODES
from test_kills import Threads
from training import Team
from workload import Workload, reference

pytestmark = pytest.mark.skipif(not all((build_dir() / "lib" / f).exists() for f in ("gacc/gacc_cuda.so", "gacc_cuda.fatbin")),
                                reason="a build without kernels for GPUs")
MIB = 1 << 20
KILLS = int(os.environ.get("GACC_DEVICE_KILLS", "150"))
SEED = int(os.environ.get("GACC_SEED", "0")) or 1 + zlib.crc32(os.environ.get("GACC_SAMPLE", "").encode())
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


def test_values_that_take_long_to_draw():
    """Longer than engine.timeout, after which an engine without a sign of life is killed."""
    tensors = [(f"t{i}", [2]) for i in range(250)]
    with machine(delay=5000, conf={"engine.timeout": "3s"}) as d, Team(d, job(init=[{"pattern": "*", "type": "normal", "b": 0.02}], seed=7), tensors) as gpu:
        assert gpu.values()


def test_memory_that_takes_long_to_make_and_to_adopt():
    """Again longer than engine.timeout; in between, an engine gives signs of life."""
    with machine(delay=150_000, conf={"engine.timeout": "4s"}) as d:
        begun = time.monotonic()
        with Team(d, job(ranks=1, micro_size=1), TENSORS) as gpu:
            assert time.monotonic() - begun > 4
            d.kill_engine(gpu.job)
            gpu.window([[(1.0, gradients(4))]])
            assert len(d.events("EngineStarted")) == 2


def test_two_jobs_on_one_gpu():
    with machine() as d, Team(d, job(), TENSORS) as a, Team(d, job(), TENSORS) as b, Team(d, job("host"), TENSORS) as host:
        step_both(a, host, 0)
        assert b.window(micros(0, (2, 2))).result.params_digest == host.ranks[0].wait_step(window=0).result.params_digest
        same_values(a, b)


# ---- which GPU ----


def gpu(number):
    return f"GPU-facecda0-6acc-4000-8000-{number + 1:012d}"


def test_a_job_gets_the_gpu_with_the_most_free_memory():
    with machine() as d, Team(d, job(), TENSORS) as a, Team(d, job(), TENSORS) as b, Team(d, job(gpu=gpu(0)), TENSORS) as c, \
            Team(d, job("host"), TENSORS) as host:
        for team in a, b, c, host:
            team.window(micros(0, (2, 2)))
        assert [d.get_job(team.job).gpu for team in (a, b, c, host)] == [gpu(0), gpu(1), gpu(0), ""]
        assert d.get_job(a.job).gpu_bytes == sum(x.bytes for x in d.client.node.ListBuffers(job=str(a.job)).buffers if x.kind.endswith("(cuda)"))
        # the next engines go where the memory is, also where another GPU has more to give
        for team in b, c:
            d.kill_engine(team.job)
        d.kill_gaccd()
        d.wait_ready()
        for team in a, b, c:
            step_both(team, host, 1) if team is a else team.window(micros(1, (2, 2)))
        for team in b, c:
            same_values(team, host)
        wait_until("the views", lambda: [d.get_job(team.job).gpu for team in (a, b, c)] == [gpu(0), gpu(1), gpu(0)])
        assert re.search(rf"^GPU: +{gpu(0)}, [0-9.]+ \w+ of its memory$", Cli(d.dir, d.endpoint).run("describe", f"job/{a.job}"), re.M)


# ---- what is refused ----


@pytest.mark.parametrize("more, text", [
    ({"accumulate_dtype": "f64"}, "a GPU's kernels sum in f32"),
    ({"optimizer": {"type": "client"}, "clip_norm": 0}, "device: cuda with optimizer client"),
    ({"ranks": 1, "micro_size": 1, "max_micro_size": 1, "accumulate": "none"}, "device: cuda with accumulate: none"),
    ({"device": 7}, "device 7 is unknown: host or cuda"),
    ({"device": "host", "gpu": "GPU-0"}, "gpu is for jobs with device: cuda"),
    ({"gpu": "1"}, "nvidia-smi -L"),
])
def test_jobs_that_cannot_be_there(more, text):
    with machine() as d:
        with pytest.raises(GaccError) as e:
            d.submit({**job(), **more})
        assert e.value.reason == "INVALID_SPEC" and text in e.value.text and e.value.detail.field == ("gpu" if "gpu" in more else "device")


def refused(d, text, **more):
    """The first rank hears why there is no memory, and nothing of it is left. The job waits for a better day."""
    with Rank(d, d.submit(job(**more)), 0, TENSORS, 2) as r:
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


@pytest.mark.parametrize("name, text", [("GPU-fa", "GPU-fa is the beginning of 2 GPUs: " + gpu(0)), ("GPU-0", "GPU-0 is none of this node's 2 GPUs")])
def test_a_gpu_that_is_not_there(name, text):
    with machine(allow=["AllocationFailed"]) as d:
        refused(d, text, gpu=name)


def test_a_job_that_does_not_fit():
    with machine(allow=["AllocationFailed", "CUDA_ERROR_OUT_OF_MEMORY"], memory=12 * MIB) as d:
        refused(d, "of the GPU's memory, of whose 12.0 MiB")


@pytest.mark.parametrize("key", ["device_memory", "device_memory_per_user"])
def test_a_limit_of_the_gpus_memory(key):
    """There is room for one job; the other one is refused until that has ended, also by a gaccd that has only found the first one."""
    with machine(allow=["AllocationFailed", " Ended job="], conf={f"limits.{key}": 60_000}) as d, Team(d, job("host"), TENSORS) as host:
        first = Team(d, job(), TENSORS)
        with Rank(d, d.submit(job()), 0, TENSORS, 2) as other:
            for dies in False, True:
                if dies:
                    d.kill_gaccd()
                    d.wait_ready()
                    first.window(micros(0, (2, 2)))
                    other.attach()
                with pytest.raises(GaccError) as e:
                    other.register()
                assert f"GPUs' memory, " in e.value.text and f"limits.{key} (58.6 KiB) are free" in e.value.text and e.value.reason == "RESOURCE_EXHAUSTED"
        d.cancel(other.job)
        d.cancel(first.job)
        for rank in first.ranks:
            with contextlib.suppress(GaccError):
                rank.detach()
        wait_until("the memory is back", lambda: not any("(cuda)" in b.kind for b in d.client.node.ListBuffers().buffers))
        with Team(d, job(), TENSORS) as second:
            assert second.window(micros(0, (2, 2))).result.params_digest == host.window(micros(0, (2, 2))).result.params_digest


@pytest.mark.parametrize("how", ["end", "cancel", "gaccd"])
def test_the_memory_is_given_back(how):
    """There is room for one job on the GPU. Another one gets it when that is over."""
    with machine(allow=["AllocationFailed", "CUDA_ERROR_OUT_OF_MEMORY", " Ended job=", "RankLost"], memory=20 * MIB, devices=1) as d:
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
    with machine(memory=20 * MIB, devices=1, delay=30_000) as d, concurrent.futures.ThreadPoolExecutor(1) as pool:
        team = pool.submit(Team, d, job(), TENSORS)
        pid = wait_until("an engine", d.engine_pids)[0]
        time.sleep(0.3)
        d.kill_engine(None, pid)  # on a busy machine the memory may be there already, and is adopted
        with team.result(60) as gpu:
            gpu.window(micros(0, (2, 2)))


def test_an_engine_that_makes_memory_for_a_dead_gaccd():
    """Nobody will ask for it. The engine dies with its gaccd, as the GPU has no room for a second one's memory meanwhile."""
    def has_memory(pid):
        with contextlib.suppress(OSError):
            return any("fake_cuda" in os.readlink(f) for f in pathlib.Path(f"/proc/{pid}/fd").iterdir())
    with machine(memory=20 * MIB, devices=1, delay=300_000) as d, concurrent.futures.ThreadPoolExecutor(1) as pool:
        team = pool.submit(Team, d, job(), TENSORS)
        pid = wait_until("an engine", d.engine_pids)[0]
        wait_until("some memory", lambda: has_memory(pid))
        d.kill_gaccd()
        wait_until("its end", lambda: not alive(pid), 1)
        wait_until("the next one", lambda: d.events("EngineStarted"), 60)
        assert not d.events("AllocationFailed")
        with contextlib.suppress(GaccError):  # its sessions are forgotten
            team.result(120)


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


@pytest.mark.parametrize("dies", ["engine", "gaccd", "both"])
def test_the_gpu_stays_up_without_an_engine(tmp_path, dies):
    """The GPU forgets its memory when nobody has its file open. gaccd has, and so has its supervisor."""
    program = tmp_path / "gaccd"
    program.write_text(f"#!/bin/sh\nexec unshare -m --propagation private sh -c {shlex.quote(NODES)} sh {tmp_path} {build_dir() / 'bin/gaccd'} \"$@\"\n")
    program.chmod(0o755)
    if subprocess.run([program, "--version"]).returncode == 77:
        pytest.skip("no mounts of its own")
    shutil.rmtree(tmp_path / "dev")
    env = rig_environment(f"test{os.getpid()}.{next(_names)}", node="/dev/nvidia")
    with Daemon(env=env, supervise=True, program=program) as d, Team(d, job(), TENSORS) as gpu, Team(d, job("host"), TENSORS) as host:
        step_both(gpu, host, 0)
        if dies != "gaccd":
            d.kill_engine(gpu.job)
        if dies != "engine":
            d.kill_gaccd()
            d.wait_ready()
        step_both(gpu, host, 1)
        assert "does not hold the GPU's file" not in d.log()


@pytest.mark.parametrize("call", ["cuMemImportFromShareableHandle:1", "cuMemMap:2"])
def test_a_gpu_that_is_full_when_the_memory_is_adopted(tmp_path, call):
    """Trainers may have all the rest of the GPU just then. The memory is whole, and the next engine gets it."""
    arm = tmp_path / "arm"
    with machine(allow=["EngineExited", "CUDA_ERROR_OUT_OF_MEMORY"], fail=f"{call}:2", arm=arm) as d, Team(d, job(), TENSORS) as gpu, \
            Team(d, job("host"), TENSORS) as host:
        step_both(gpu, host, 0)
        arm.touch()
        d.kill_engine(gpu.job)
        wait_until("an engine that fails", lambda: "CUDA_ERROR_OUT_OF_MEMORY" in d.log())
        step_both(gpu, host, 1)


LARGE = [("w", [5_000_000])]


def pass_of(d, gpu, pool):
    """A window of a job with LARGE, and its engine, which is in the middle of the pass."""
    pid = d.engine_pid(gpu.job)
    before, step = cpu_s(pid), pool.submit(gpu.window, [[(1.0, gradients(3, LARGE))]])
    wait_until("it is at work", lambda: cpu_s(pid) > before + 0.1)
    return pid, step


def test_an_engine_that_outlives_its_gaccd_is_waited_for():
    """It is in the middle of a long pass when gaccd dies, and does not see that: its successor does not get the memory before it is over."""
    spec = {"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 0.5}, "clip_norm": 0}
    with machine() as d, Team(d, job(**spec), LARGE) as gpu, Team(d, job("host", **spec), LARGE) as host, \
            concurrent.futures.ThreadPoolExecutor(1) as pool:
        old, step = pass_of(d, gpu, pool)
        d.kill_gaccd()
        d.wait_ready()
        assert alive(old), "the pass was too short to show anything"
        wait_until("its end", lambda: not alive(old), 60)
        assert step.result(120).result.params_digest == host.window([[(1.0, gradients(3, LARGE))]]).result.params_digest
        assert "previous engine" not in d.log(), "the successor was started too early"


PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000


def freeze(pid):
    """Stops a process for as long as it lives: its threads. SIGSTOP would not do: the kernel lets stopped processes go on when their parent dies."""
    threads, ptrace = [int(t) for t in os.listdir(f"/proc/{pid}/task")], ctypes.CDLL(None, use_errno=True).ptrace
    for request in PTRACE_SEIZE, PTRACE_INTERRUPT:
        for t in threads:
            assert ptrace(request, t, None, None) == 0, os.strerror(ctypes.get_errno())
    for t in threads:
        os.waitpid(t, WALL)
    return threads


def kill_frozen(pid, threads):
    os.kill(pid, signal.SIGKILL)
    for t in sorted(threads, key=lambda t: t == pid):  # its first thread is the last one to be over
        os.waitpid(t, WALL)


@pytest.mark.parametrize("in_a_pass", [True, False])
def test_an_engine_that_is_not_over_in_time(in_a_pass):
    """The engine of the last gaccd is frozen for longer than the next one waits for it. When it is over at last, that is found out: by its process,
    if it has left work behind that never ends, or by the device, if it has not; and from then on engines are known again."""
    spec = {"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 0.5}, "clip_norm": 0}
    with machine(allow=["EngineExited", "NoRanks", "RankLate"]) as d, Team(d, job(**spec), LARGE) as gpu, Team(d, job("host", **spec), LARGE) as host, \
            concurrent.futures.ThreadPoolExecutor(1) as pool:
        old, step = pass_of(d, gpu, pool) if in_a_pass else (d.engine_pid(gpu.job), None)
        threads = freeze(old)  # first, as it ends when it sees that its gaccd has died
        d.kill_gaccd()
        d.wait_ready()
        wait_until("its successor", lambda: "waiting for the job's previous engine to end" in d.log(), 60)
        d.engines_killed = True
        kill_frozen(old, threads)
        if not in_a_pass:
            pid, step = pass_of(d, gpu, pool)
            kill_at_once([d.pid, pid])
            d.killed += 1
        want = host.window([[(1.0, gradients(3, LARGE))]]).result.params_digest
        assert step.result(90).result.params_digest == want
        assert ("the GPU is not quiet" in d.log()) == in_a_pass


def cpu_s(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_deaths_at_any_moment():
    """The engine and gaccd die again and again while trainers train; half of the engines by a signal after which the GPU runs on (a ghost)."""
    work = Workload(ranks=2, micro_size=3, steps=12, elements=12_000, optimizer="adamw", clip_norm=1.0)
    want, seed, kills = reference(work), SEED, collections.Counter()
    print(f"GACC_SEED={SEED}")
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


# ---- what is shown ----


def test_what_is_shown():
    with machine() as d, Team(d, job(), TENSORS) as gpu:
        kinds = {b.kind: b for b in d.client.node.ListBuffers().buffers}
        assert {"accumulator (cuda)", "parameters (cuda)", "optimizer state (cuda)", "parameters", "slots", "control"} <= set(kinds)
        assert "accumulator" not in kinds and kinds["accumulator (cuda)"].segments == 2 and kinds["slots"].segments == 6
        host = sum(b.bytes for k, b in kinds.items() if not k.endswith("(cuda)"))
        assert d.get_job(gpu.job).host_bytes == host


def test_what_gaccctl_shows():
    """Which of two jobs is on a GPU and on which, and what of it."""
    with machine() as d, Team(d, job(name="there"), TENSORS) as gpu, Team(d, job("host", name="here"), TENSORS) as host:
        def say(*words):
            return subprocess.run([build_dir() / "bin/gaccctl", *words], env={**os.environ, "GACC_ENDPOINT": d.endpoint}, check=True, capture_output=True, text=True).stdout
        jobs = sorted(line for line in say("status").splitlines() if line.startswith("JOB "))
        shown = [re.match(r"JOB \d+  (\S+)  RUNNING(?:  on (GPU-[0-9a-f-]{36}))?  step 0", line).groups() for line in jobs]
        assert shown == [("there", d.get_job(gpu.job).gpu), ("here", None)]
        table = say("buffers", str(gpu.job))
        assert re.search(r" accumulator \(cuda\) +2 ", table) and re.search(r" slots +6 ", table) and "(cuda)" not in say("buffers", str(host.job))


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
