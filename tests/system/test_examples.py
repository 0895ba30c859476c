# SPDX-License-Identifier: Apache-2.0
"""The examples as a user runs them: the C program, the three Python programs that use the protobuf API alone, and mlp.

linear's gradients are made of integers, so that all its versions, alone or together in one job, must end with the bits that
numpy gives here. mlp must end with the bits of mlp_replay, which adds in the same order in one process.
"""
import concurrent.futures
import importlib.util
import os
import pathlib
import re
import subprocess

import numpy as np
import pytest

from harness import Client, build_dir, next_line, wait_until

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "client/examples"
BIN, PROTOSET = build_dir() / "bin", build_dir() / "proto/gacc.protoset"
PROGRAMS = {"c": [BIN / "linear"], "inline": [EXAMPLES / "push_inline.py", PROTOSET],
            "mapped": [EXAMPLES / "map_slots.py", PROTOSET], "mailbox": [EXAMPLES / "push_mailbox.py", PROTOSET]}
DATA = pathlib.Path("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")
LINEAR = {"name": "linear", "ranks": 2, "micro_size": 4, "steps": 40, "batch": 8,
          "optimizer": {"type": "sgd", "lr": 0.01, "momentum": 0.5}}  # as linear.yaml

TORCH = pathlib.Path(__file__).resolve().parents[2] / "build/python-torch"  # tests/long.sh bench installs it
needs_torch = pytest.mark.skipif(not (TORCH / "torch").exists() and not importlib.util.find_spec("torch"), reason="no PyTorch")
needs_mlp = pytest.mark.skipif(not (BIN / "mlp").exists() or not DATA.exists(),
                               reason="needs mlp (OpenBLAS at the build) and the package dataset-fashion-mnist")


def environment(daemon, **more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GACC_", "RANK", "WORLD_SIZE"))}
    return {**clean, "GACC_ENDPOINT": daemon.endpoint, "XDG_STATE_HOME": str(daemon.dir), "OMP_NUM_THREADS": "1",
            **{k: str(v) for k, v in more.items()}}


def run(command, env, timeout=120, cwd=None):
    done = subprocess.run([str(c) for c in command], env=env, cwd=cwd, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def gaccctl_run(daemon, *arguments):
    return run([BIN / "gaccctl", "run", *arguments], environment(daemon))


def parameters(output):
    """The last words of linear, in hexadecimal: one per rank that was heard."""
    return re.findall(r"parameters ([0-9a-f]+)", output)


def linear_in_numpy(ranks=2, micro_size=4, steps=40):
    """The job of linear.yaml, f32 operation by operation, in canonical order."""
    spec = importlib.util.spec_from_file_location("linear", EXAMPLES / "linear.py")
    linear = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(linear)
    f = np.float32
    params, buffers = [np.zeros(shape, f) for _, shape in linear.TENSORS], [None, None]
    for window in range(steps):
        sums = [np.zeros_like(p) for p in params]
        for micro in range(micro_size):
            for rank in range(ranks):
                grads, _ = linear.gradient(*params, linear.block_of(window, micro, micro_size, rank, ranks))
                sums = [s + f(linear.BLOCK) * g for s, g in zip(sums, grads)]
        for i, s in enumerate(sums):
            g = f(1 / (linear.BLOCK * ranks * micro_size)) * s
            buffers[i] = g if buffers[i] is None else f(0.5) * buffers[i] + g
            params[i] = params[i] - f(0.01) * buffers[i]
    return "".join(f"{b:08x}" for b in np.concatenate(params).view(np.uint32))


@pytest.fixture(scope="module")
def expected():
    return linear_in_numpy()


@pytest.mark.parametrize("program", PROGRAMS)
def test_linear_under_gaccctl_run(daemon, expected, program):
    output = gaccctl_run(daemon, "-n", 2, "-f", EXAMPLES / "linear.yaml", "--", *PROGRAMS[program])
    assert set(parameters(output)) == {expected}
    assert "effective batch 8 x 4 x 2 = 64" in output
    job = daemon.get_job(1)
    assert (daemon.state(1), job.applied_step, job.last.micro_count, job.last.total_weight) == ("COMPLETED", 40, 8, 64)


def test_gradient_accumulation_steps_is_micro_size(daemon, expected):
    """The name that others use for micro_size."""
    text = (EXAMPLES / "linear.yaml").read_text()
    assert "micro_size: 4" in text
    path = daemon.dir / "alias.yaml"
    path.write_text(text.replace("micro_size: 4", "gradient_accumulation_steps: 4"))
    assert set(parameters(gaccctl_run(daemon, "-n", 2, "-f", path, "--", *PROGRAMS["c"]))) == {expected}


LOOP = 'for r in 0 1; do RANK=$r WORLD_SIZE=2 "$@" >"$OUTPUT.$r" & p="$p $!"; done; for i in $p; do wait $i || exit 1; done'


def test_linear_under_a_shell_loop(daemon, expected):
    """No launcher: RANK, WORLD_SIZE and the job's number are all that a rank needs."""
    output = daemon.dir / "output"
    for program in PROGRAMS.values():
        job = daemon.submit(LINEAR)
        run(["sh", "-c", LOOP, "sh", *program], environment(daemon, GACC_JOB_ID=job, OUTPUT=output))
        for rank in range(2):
            assert parameters(pathlib.Path(f"{output}.{rank}").read_text()) == [expected]
        wait_until("the job's end", lambda: daemon.state(job) == "COMPLETED")


@pytest.mark.skipif("GACC_SANITIZE:STRING=\n" not in (build_dir() / "CMakeCache.txt").read_text(),
                    reason="the program would need the library's sanitizer")
def test_the_trainer_of_the_readme(daemon, tmp_path):
    """Compiled and run by the README's own commands: (1 + .. + 4) / 4 + window, three windows, lr 0.1."""
    text = (EXAMPLES.parents[1] / "README.md").read_text()
    source, compiler, command = re.search(r"```c\n(.*?)```\n\n    (cc [^\n]*)\n    gaccctl run ([^\n]*)\n", text, re.S).groups()
    (tmp_path / "loop.c").write_text(source)
    library = build_dir() / "lib"
    flags = f"-I{EXAMPLES.parent}/include -L{library} -Wl,-rpath,{library} -lgacc"
    run(["sh", "-c", compiler.replace("$(pkg-config --cflags --libs gacc)", flags + " -Wall -Wextra -Werror")], environment(daemon), cwd=tmp_path)
    out = run([BIN / "gaccctl", "run", *command.split()], environment(daemon), cwd=tmp_path)
    assert "[rank0] weight[0] = -1.05 after 3 steps\n" in out


@needs_mlp
def test_a_c_trainer_follows_the_loss_scale(daemon):
    """The scale doubles every two steps, and a push that names another is refused. Powers of two: the same bits as without."""
    arguments = ["-n", 2, "--micro-size", 2, "--batch", 8, "--steps", 12, "--set", "optimizer.type=sgd", "--set", "optimizer.lr=0.01"]
    trainer = ["--", BIN / "mlp", "--batch", 8, "--epochs", 1]
    scaled = ["--set", "loss_scale=64", "--set", "dynamic_loss_scale.enabled=true", "--set", "dynamic_loss_scale.growth_interval=2"]
    gaccctl_run(daemon, *arguments, *scaled, *trainer)
    gaccctl_run(daemon, *arguments, *trainer)
    windows = sorted((w.result for w in daemon.client.jobs.History(job="1", limit=12)), key=lambda result: result.window)
    assert [w.loss_scale for w in windows] == [64 * 2 ** (i // 2) for i in range(12)]
    assert daemon.get_job(1).last.params_digest == daemon.get_job(2).last.params_digest


@pytest.mark.parametrize("form", ["{}", "unix:{}", "unix://{}"])
def test_an_endpoint_may_be_a_path(daemon, form):
    """C, Python over messages, Python in shared memory: README's `export GACC_ENDPOINT=/tmp/gacc/gaccd.sock`, and gRPC's forms."""
    for programs in (["c", "inline"], ["c", "mapped"]):
        job = daemon.submit({**LINEAR, "steps": 2})
        ranks = [subprocess.Popen([str(c) for c in PROGRAMS[name]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env={**environment(daemon, RANK=r, WORLD_SIZE=2, GACC_JOB_ID=job),
                                       "GACC_ENDPOINT": form.format(daemon.socket)}) for r, name in enumerate(programs)]
        outputs = [p.communicate(timeout=60) for p in ranks]
        assert [p.returncode for p in ranks] == [0, 0], outputs
        assert [err for _, err in outputs] == ["", ""]


@pytest.mark.parametrize("program", ["c", "inline"])
def test_a_trainer_that_waits_for_gaccd_says_so(daemon, tmp_path, program):
    """Once after two seconds, and when gaccd is there; it goes on as if nothing had been."""
    job, link = daemon.submit({**LINEAR, "ranks": 1, "steps": 2}), tmp_path / "not-there-yet.sock"
    rank = subprocess.Popen([str(c) for c in PROGRAMS[program]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**environment(daemon, RANK=0, WORLD_SIZE=1, GACC_JOB_ID=job), "GACC_ENDPOINT": str(link)})
    line = next_line(rank, rank.stderr)
    assert str(link) in line and ("waits for gaccd" in line or "waiting for it" in line), line
    link.symlink_to(daemon.socket)
    out, err = rank.communicate(timeout=60)
    assert rank.returncode == 0, err
    assert err.count("answers again") == 1 == len(err.splitlines()), err


@pytest.mark.parametrize("script", ["ranks.sh", "mpirun.sh"])
def test_linear_by_other_launchers(daemon, expected, script):
    """The scripts of client/examples; mpirun itself says which rank a process is."""
    env = environment(daemon, PATH=f"{BIN}:{os.environ['PATH']}", TMPDIR=daemon.dir,
                      MPIRUN="mpirun --oversubscribe" + " --allow-run-as-root" * (os.geteuid() == 0))
    output = run([EXAMPLES / script, 2, EXAMPLES / "linear.yaml", *PROGRAMS["c"]], env)
    assert parameters(output) == [expected] * 2
    wait_until("the job's end", lambda: daemon.state(1) == "COMPLETED")


def test_a_rank_that_fails_in_a_loop_cancels_the_job(daemon):
    daemon.allow += [" Ended job=.*cancelled by", " RankLost job="]
    env = environment(daemon, PATH=f"{BIN}:{os.environ['PATH']}")
    done = subprocess.run([EXAMPLES / "ranks.sh", "2", EXAMPLES / "linear.yaml", "sh", "-c",
                           'if [ $RANK = 1 ]; then exit 3; fi; exec "$0"', PROGRAMS["c"][0]], env=env, timeout=60,
                          stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode == 1
    wait_until("the job's end", lambda: daemon.state(1) == "CANCELLED")


def test_all_kinds_of_trainers_in_one_job(daemon):
    """C, Python over messages, in shared memory and with a mailbox: one contract, one mean."""
    n = len(PROGRAMS)
    job = daemon.submit({**LINEAR, "ranks": n})
    ranks = [subprocess.Popen([str(c) for c in program], stdout=subprocess.PIPE, text=True,
                              env=environment(daemon, RANK=r, WORLD_SIZE=n, GACC_JOB_ID=job))
             for r, program in enumerate(PROGRAMS.values())]
    outputs = [p.communicate(timeout=120)[0] for p in ranks]
    assert [p.returncode for p in ranks] == [0] * n
    assert [parameters(o) for o in outputs] == [[linear_in_numpy(ranks=n)]] * n


MLP = ["--batch", 8, "--max-samples", 500, "--epochs", 2]  # 500 is no multiple of 8 x 4 x 2: the last windows are short


def check_replay(dumped, **shape):
    """0 of all parameters differ from the replay in one process."""
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in shape.items()]
    output = run([BIN / "mlp_replay", *MLP, *arguments, "--compare", dumped, "--bound", 0], dict(os.environ))
    assert re.search(r"\b0 of \d+ differ", output), output


@needs_mlp
def test_mlp_under_gaccctl_run(daemon):
    dumped = daemon.dir / "params.safetensors"
    output = gaccctl_run(daemon, "-n", 4, "--micro-size", 4, "--batch", 8, "--set", "optimizer.type=sgd", "--set",
                         "optimizer.lr=0.05", "--", BIN / "mlp", *MLP, "--dump-params", dumped)
    check_replay(dumped, ranks=4, micro_size=4, lr=0.05)
    assert "COMPLETED" in output and daemon.get_job(1).applied_step == 2 * 4  # 500 / (4 x 4 x 8) = 3.9 per epoch


@needs_mlp
def test_mlp_in_parts(daemon):
    """The replay follows the order of sums over parts: here of one, one and two ranks. In the order of one part the bits are others."""
    dumped = daemon.dir / "params.safetensors"
    gaccctl_run(daemon, "-n", 4, "--micro-size", 4, "--batch", 8, "--set", "parts=3", "--set", "optimizer.type=sgd", "--set",
                "optimizer.lr=0.05", "--", BIN / "mlp", *MLP, "--dump-params", dumped)
    check_replay(dumped, ranks=4, parts=3, micro_size=4, lr=0.05)
    with pytest.raises(AssertionError):
        check_replay(dumped, ranks=4, micro_size=4, lr=0.05)


@needs_mlp
def test_mlp_under_a_shell_loop(daemon):
    """The first rank creates the job, the other joins it by its name, also when both come at the same moment."""
    dumped = daemon.dir / "params.safetensors"
    run(["sh", "-c", LOOP, "sh", BIN / "mlp", *MLP, "--micro-size", 3, "--lr", 0.05, "--dump-params", dumped],
        environment(daemon, OUTPUT=daemon.dir / "output"))
    check_replay(dumped, ranks=2, micro_size=3, lr=0.05)


def test_ranks_that_create_their_job_at_the_same_moment(daemon):
    """All mean one job: by name (Attach with create_if_missing), or by request_id (a Submit that was sent again)."""
    clients = [Client(daemon.endpoint) for _ in range(8)]
    spec = {**LINEAR, "ranks": 8}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for attempt in range(5):
            name = f"together-{attempt}"
            attached = list(pool.map(lambda c, r: c.gradient.Attach(
                job=name, rank=r, world_size=8, nonce=os.urandom(16), protocol_min=1, protocol_max=1,
                create_if_missing=c.types.spec(**{**spec, "name": name})), clients, range(8)))
            assert len({a.job_id for a in attached}) == 1
            daemon.cancel(attached[0].job_id)
            name, request_id = f"repeated-{attempt}", os.urandom(16)
            submitted = list(pool.map(lambda c: c.jobs.Submit(
                spec=c.types.spec(**{**spec, "name": name}), request_id=request_id), clients))
            assert len({s.job.id for s in submitted}) == 1 and [s.existed for s in submitted].count(False) == 1
            daemon.cancel(submitted[0].job.id)
    for client in clients:
        client.close()


@needs_mlp
def test_mlp_started_by_gaccd(daemon, tmp_path):
    """mlp.yaml as the README submits it, for three steps: LAMB, a dynamic loss scale, and a checkpoint at the end."""
    (tmp_path / "build").symlink_to(build_dir())
    run([BIN / "gaccctl", "submit", "-f", EXAMPLES / "mlp.yaml", "--set", "steps=3", "--wait"], environment(daemon), cwd=tmp_path)
    job = daemon.get_job(1)
    assert (daemon.state(1), job.applied_step, job.last.micro_count, job.last.total_weight) == ("COMPLETED", 3, 16, 512)
    assert [p.name for p in (daemon.dir / "state/checkpoints/1").glob("step-*")] == [f"step-3-1-{job.uuid[:8]}"]
    wait_until("the launcher's end", lambda: not daemon.launchers())


PLAIN_TORCH = """
import sys, warnings
sys.path.insert(0, sys.argv[1])
import torch, linear
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(linear.FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
X, Y = torch.tensor(linear.X, dtype=torch.float32), torch.tensor(linear.Y, dtype=torch.float32)[:, None]
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for window in range(20):
    optimizer.zero_grad()
    for micro in range(4):
        for rank in range(2):
            block = linear.block_of(window, micro, 4, rank, 2)
            rows = slice(block * linear.BLOCK, (block + 1) * linear.BLOCK)
            (torch.nn.functional.mse_loss(model(X[rows]), Y[rows]) / 8).backward()
    optimizer.step()
print("parameters", torch.cat([p.detach().flatten() for p in model.parameters()]).double().norm().item())
"""


@needs_torch
def test_torch_loop(daemon):
    """The PyTorch example with two ranks: the parameters of torch.optim.AdamW in one process, but for the order of additions."""
    path = os.pathsep.join(filter(None, [str(TORCH), os.environ.get("PYTHONPATH")]))
    env = {**environment(daemon), "PYTHONPATH": path}
    adamw = ["--set", "optimizer.type=adamw", "--set", "optimizer.lr=0.01"]
    out = run([BIN / "gaccctl", "run", "-n", 2, "--micro-size", 4, "--steps", 20, *adamw, "--", "/usr/bin/python3", EXAMPLES / "torch_loop.py",
               PROTOSET], env, timeout=240)
    assert re.findall(r"step (\d+) ", out) == ["10", "20"], out
    norms = [float(n) for n in re.findall(r"parameters ([0-9.]+)", out)]
    assert len(norms) == 1, out  # of rank 0: the others' output is in their logs
    plain = run(["/usr/bin/python3", "-c", PLAIN_TORCH, EXAMPLES], env)
    assert norms[0] == pytest.approx(float(plain.split()[-1]), rel=1e-5)
    assert (daemon.state(1), daemon.get_job(1).applied_step) == ("COMPLETED", 20)


@needs_torch
@pytest.mark.parametrize("micro_size,accumulate", [(1, "none"), (4, "sum")])
def test_torch_offload(daemon, micro_size, accumulate):
    """The example for a GPU, on the CPU: one rank, whose gradients are copied to the slots by hooks."""
    path = os.pathsep.join(filter(None, [str(TORCH), os.environ.get("PYTHONPATH")]))
    env = {**environment(daemon), "PYTHONPATH": path}
    adamw = ["--set", "optimizer.type=adamw", "--set", "optimizer.lr=0.01", "--set", f"accumulate={accumulate}"]
    out = run([BIN / "gaccctl", "run", "-n", 1, "--micro-size", micro_size, "--steps", 20, *adamw, "--", "/usr/bin/python3", EXAMPLES / "torch_offload.py",
               PROTOSET, "cpu"], env, timeout=240)
    norms = [float(n) for n in re.findall(r"parameters ([0-9.]+)", out)]
    one_rank = PLAIN_TORCH.replace("range(4)", f"range({micro_size})").replace("range(2)", "range(1)").replace("micro, 4, rank, 2", f"micro, {micro_size}, rank, 1")
    plain = run(["/usr/bin/python3", "-c", one_rank.replace("/ 8)", f"/ {micro_size})"), EXAMPLES], env)
    assert norms == [pytest.approx(float(plain.split()[-1]), rel=1e-5)], out
