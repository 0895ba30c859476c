# SPDX-License-Identifier: Apache-2.0
"""deploy/bundle.sh: its tarball runs where nothing of ours is installed. "There" is a root folder with a shell, a few tools, glibc
and no other library of this machine's than those of the tools. The bundle with the plug-in runs beside the build: on the rig (the fake driver and
kernels on the simulator), whose libraries a bundle does not hold."""
import os
import pathlib
import re
import shutil
import subprocess
import tarfile

import pytest

from harness import build_dir, rig_environment

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_BYTES = 50 << 20
TOOLS = ["awk", "basename", "cat", "cp", "cut", "date", "dirname", "getconf", "grep", "head", "ls", "mktemp", "rm", "sed", "seq", "sh", "sleep",
         "sort", "tail", "timeout", "tr", "uname"]
# what these tools link beside glibc
OF_TOOLS = re.compile(r"(ld-linux.*|libc|libm|libgmp|libcrypto|libpcre2-8|libpcre|libselinux|libattr|libacl|libdl|libpthread|libreadline|libtinfo|libmpfr|libsigsegv)\.so")

may_unshare = os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"]).returncode == 0
pytestmark = [
    pytest.mark.skipif(re.search("^GACC_SANITIZE:STRING=.", (build_dir() / "CMakeCache.txt").read_text(), re.M) is not None,
                       reason="the runtime of a sanitizer is the compiler's"),
    pytest.mark.skipif(not pathlib.Path("/usr/share/datasets/fashion-mnist").is_dir(), reason="no dataset-fashion-mnist"),
]
as_root = pytest.mark.skipif(not may_unshare, reason="needs root and the right to unshare")


def make(*arguments, **how):
    return subprocess.run(["sh", ROOT / "deploy/bundle.sh", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, **how)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    file = tmp_path_factory.mktemp("bundle") / "gacc.tar.gz"
    done = make("--host", build_dir(), file)
    assert done.returncode == 0, done.stderr
    assert re.search(r"needs glibc 2\.\d+ or newer\n.*without the CUDA plug-in \(--host\)", done.stdout), done.stdout
    return file


@pytest.fixture(scope="module")
def node(bundle, tmp_path_factory):
    """Runs a command in the root folder; the bundle is at /opt/elsewhere."""
    root = tmp_path_factory.mktemp("node")
    for folder in ("bin", "proc", "dev", "tmp", "opt", "etc"):
        (root / folder).mkdir()
    for tool in TOOLS:
        program = pathlib.Path(shutil.which(tool)).resolve()
        shutil.copy(program, root / "bin" / tool)
        for line in subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.splitlines():
            if found := re.search(r"(/\S+) \(0x", line):
                library = pathlib.Path(found[1])
                assert OF_TOOLS.match(library.name), f"{tool} needs {library}"
                (root / str(library.parent).lstrip("/")).mkdir(parents=True, exist_ok=True)
                shutil.copy(library, root / str(library).lstrip("/"))
    with tarfile.open(bundle) as tar:
        tar.extractall(root / "opt")
    (root / "opt/gacc").rename(root / "opt/elsewhere")
    for crypto in root.rglob("libcrypto.so*"):  # of a tool, but ours must be the bundle's
        if "opt" not in crypto.parts:
            crypto.unlink()
    script = """set -e
mount -t tmpfs -o size=1g tmpfs "$0/tmp"
mount -t tmpfs -o size=1g,mode=755 tmpfs "$0/dev"
mkdir "$0/dev/shm"
for d in null zero urandom random; do touch "$0/dev/$d"; mount --bind /dev/$d "$0/dev/$d"; done
exec chroot "$0" "$@"
"""

    def run(*command, **env):
        return subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", f"--mount-proc={root}/proc", "sh", "-c", script, root, *command],
                              env={"PATH": "/bin:/usr/bin:/sbin:/usr/sbin", **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    run.root = root
    return run


def rows(done):
    """What -> result."""
    found = [re.match(r"(\d+) +(\S.*?)  +(\S.*)", line) for line in done.stdout.splitlines()]
    return {m[2]: (int(m[1]), m[3]) for m in found if m}


# ---- with the plug-in ----

GPU_STAGES = ["gpu-" + s for s in ("bits", "survival", "late", "copy", "ready", "system", "sanitizer", "nccl", "torch", "mps")]
has_kernels = pytest.mark.skipif(not all((build_dir() / "lib" / f).exists() for f in ("gacc/gacc_cuda.so", "gacc_cuda.fatbin", "mlp_cuda_host.so")),
                                 reason="no kernels for GPUs")


@pytest.fixture(scope="module")
def gpu_bundle(tmp_path_factory):
    """The unpacked folder. TMPDIR has room for checkpoints."""
    folder = tmp_path_factory.mktemp("gpu")
    done = make(build_dir(), folder / "gacc.tar.gz")
    assert done.returncode == 0 and "without" not in done.stdout, done.stdout + done.stderr
    assert (folder / "gacc.tar.gz").stat().st_size < MAX_BYTES
    with tarfile.open(folder / "gacc.tar.gz") as tar:
        tar.extractall(folder)
    return folder / "gacc"


def run_there(bundle, *stages, **env):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GACC_", "FAKE_CUDA_", "LD_"))}
    return subprocess.run(["sh", bundle / "run.sh", *stages], env={**kept, "TMPDIR": str(bundle.parent), **env}, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=600)


def rig(name, **more):
    env = rig_environment(f"bundle{os.getpid()}.{name}", **more)
    return {**env, "FAKE_CUDA_KERNELS": f"{env['FAKE_CUDA_KERNELS']}:{build_dir() / 'lib/mlp_cuda_host.so'}"}


@has_kernels
def test_what_is_in_the_bundle_for_gpus(gpu_bundle):
    names = {str(f.relative_to(gpu_bundle)) for f in gpu_bundle.rglob("*")}
    assert {"lib/gacc/gacc_cuda.so", "lib/mlp_cuda.fatbin", "bin/cuda_pass", "bin/engine_program", "bin/gpu_probe", "share/torch_offload.py"} <= names
    assert not [n for n in names if re.search("libcuda|nvidia|fake_cuda", n)], "the driver is the node's"
    assert "plugin=yes" in (gpu_bundle / "facts").read_text()
    for program in "cuda_engine", "engine_program", "gpu_probe":
        assert str(build_dir()).encode() not in re.sub(rb"/[^\0]*/tests/[^\0]*", b"", (gpu_bundle / "bin" / program).read_bytes())


@has_kernels
def test_stages_for_gpus_on_the_rig(gpu_bundle):
    """All of them, from the bundle; what the rows say of the rig is no GPU's. Of the tests a few run: CTest has all, with the same kernels."""
    done = run_there(gpu_bundle, *GPU_STAGES, **rig("all"), GACC_GPU_TESTS="cuda_engine", CK_INCLUDE_TAGS="few", GACC_SAMPLES="64", GACC_KILLS="2")
    said = rows(done)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("==")] == [f"== {s}" for s in GPU_STAGES]
    assert said["GPU"][1].startswith("Fake GPU 0, ") and len(re.findall(r"^\d+ +GPU +Fake GPU", done.stdout, re.M)) == 9  # all but gpu-nccl
    assert "not written" not in done.stdout
    for what, number, text in [
            ("tests cuda_engine", 1, r"ok, 4 tests"),
            ("sums beside the smallest normal number", 1, r"ok: 2097152 of .*"),
            ("import after SIGKILL of the maker, nobody holds /dev/nvidiaN", 2, "survives: 64 MiB, every word"),
            ("memory after a process killed in a kernel has been waited for", 3, "quiet for 2 s, .*"),
            ("AdamW with its undo areas and digest, f32", 4, r"\d+ % of copy, .*"),
            ("copy, read and written", 4, r"[\d.]+ GB/s"),
            ("ready word by a host function on a side stream, another process busy", 5, r"median [\d.]+ us, .*"),
            ("a job with device: cuda beside the same on the host", 6, "ok: 2 steps and the checkpoint have the bits of the host"),
            ("a trainer on the GPU", 6, r"ok: .*2 steps applied, 64 samples counted"),
            ("kills of engines and gaccd at any moment", 6, r"ok: [2-9] SIGKILLs in \d+ jobs, each with the bits of the host"),
            ("NCCL", 8, "not run: a job with device: cuda has one part, .*")]:
        assert said[what][0] == number and re.fullmatch(text, said[what][1]), f"{what}: {said[what]}"
    assert not list(gpu_bundle.parent.glob("tmp.*")), "the stages leave nothing"


@has_kernels
def test_rows_of_a_machine_without_a_gpu(gpu_bundle):
    done = run_there(gpu_bundle, *GPU_STAGES, **{**rig("none"), "CUDA_VISIBLE_DEVICES": ""})
    said = rows(done)
    assert done.returncode == 0 and len(said) == 14, done.stdout
    assert all(text == "not run: no GPU" for what, (_, text) in said.items() if what != "NCCL"), said


@has_kernels
def test_a_job_that_is_not_on_the_gpu_is_a_failure(gpu_bundle):
    """Here the plug-in is another one, which does not load: no row may say that the bits are those of the host. Which rank's words are in the row
    depends on which one ends first: the other one hears that the job has failed."""
    plugin = gpu_bundle / "lib/gacc/gacc_cuda.so"
    kept = plugin.read_bytes()
    plugin.write_bytes(b"none")
    try:
        done = run_there(gpu_bundle, "gpu-system", **rig("broken"), GACC_SAMPLES="32", GACC_KILLS="1")
    finally:
        plugin.write_bytes(kept)
    assert done.returncode == 1 and " ok" not in done.stdout
    assert re.match(r"FAILED \(\d+\): job \d+ FAILED", rows(done)["a job with device: cuda beside the same on the host"][1]), done.stdout


@has_kernels
def test_other_bits_are_a_failure(gpu_bundle):
    """The job on the GPU gets another learning rate; the moments of a first step do not depend on it."""
    script = gpu_bundle / "run.sh"
    kept = script.read_text()
    script.write_text(kept.replace("optimizer.lr=0.001", "optimizer.lr=$([ $device = cuda ] && echo 0.002 || echo 0.001)"))
    try:
        done = run_there(gpu_bundle, "gpu-system", **rig("other"), GACC_SAMPLES="32", GACC_KILLS="1")
    finally:
        script.write_text(kept)
    said = rows(done)
    assert done.returncode == 1
    assert said["a job with device: cuda beside the same on the host"][1] == \
        "FAILED: of 1 steps differ from the host's: parameters after a step, model.safetensors"
    assert re.match(r"FAILED: (after \d+ kills the parameters differ from the host's|there was nothing to kill)", said["kills of engines and gaccd at any moment"][1])


# ---- of the host alone ----


def test_size_and_contents(bundle):
    assert bundle.stat().st_size < MAX_BYTES
    with tarfile.open(bundle) as tar:
        names = tar.getnames()
        assert {f"gacc/{n}" for n in ("run.sh", "facts", "bin/gaccd", "bin/gaccctl", "bin/bench_push", "bin/engine_kill", "lib/libgacc.so.0",
                                      "lib/libuv.so.1", "data/train-images-idx3-ubyte", "data/COPYRIGHT")} <= set(names)
        assert not [n for n in names if re.search(r"/(libc|libm|libpthread|ld-linux.*)\.so|gacc_cuda", n)]
        folder = str(build_dir()).encode()
        assert folder not in tar.extractfile("gacc/bin/gaccctl").read()


@as_root
def test_runs_where_nothing_is_installed(node):
    assert "gpu-survival" in node("/opt/elsewhere/run.sh", "list").stdout.split()
    done = node("/opt/elsewhere/run.sh", "facts", "smoke", "gpu-bits", "gpu-survival", "gpu-copy")  # of --host
    said = rows(done)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said["version"][1].startswith("gaccd_")
    assert re.match("ok: gaccd", said["gaccctl health"][1])
    assert re.match(r"ok, accuracy [6-9]\d", said["training, 2 ranks, 2 epochs of 2000 images"][1])
    assert said["kernels against the reference, bit by bit"] == (1, "not run: the CUDA plug-in is not built in this bundle")
    assert said["copy bandwidth, and passes and updates beside it"] == (4, "not run: the CUDA plug-in is not built in this bundle")
    number, text = said["memory that outlives its maker"]
    assert number == 2 and text.startswith("not run: no NVIDIA driver")


@as_root
def test_unit_tests_and_benchmarks_there(node):
    for kept in "engine_*", "math_*":  # the short ones
        for program in (node.root / "opt/elsewhere/bin").glob(kept):
            if program.name not in ("math_golden", "math_arena", "engine_fill", "engine_parts"):
                program.unlink()
    done = node("/opt/elsewhere/run.sh", "math", "engine", "kernels", "push", GACC_BENCH_ROUNDS="5", GACC_BENCH_MB="8")
    assert done.returncode == 0, done.stdout + done.stderr
    said = rows(done)
    for name in "tests math_golden", "tests engine_parts":
        assert re.match(r"ok, \d+ tests", said[name][1])
    assert {said[w][1] for w in ("kernels, passes", "kernels, updates", "push, push", "push, commit")} == {"ok"}


@as_root
def test_a_failure_is_a_row_and_the_status(node):
    (node.root / "opt/elsewhere/bin/math_optim").write_text("#!/bin/sh\necho broken\nexit 3\n")
    (node.root / "opt/elsewhere/bin/math_optim").chmod(0o755)
    done = node("/opt/elsewhere/run.sh", "math")
    (node.root / "opt/elsewhere/bin/math_optim").unlink()
    assert done.returncode == 1 and rows(done)["tests math_optim"] == (0, "FAILED (3): broken")


@as_root
def test_says_in_one_sentence_what_the_node_lacks(node):
    done = node("/opt/elsewhere/run.sh", "facts", GACC_GLIBC="2.17")
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(r"run.sh: the programs need glibc 2\.\d+ or newer, and this node has 2.17: .*\n", done.stderr)
    done = node("/opt/elsewhere/run.sh", "fatcs")
    assert done.returncode == 2 and 'no stage "fatcs"' in done.stderr


def test_refuses_what_cannot_be_a_bundle(tmp_path):
    done = make(tmp_path, tmp_path / "x.tar.gz")
    assert done.returncode == 1 and "there is no such program; build first" in done.stderr and not (tmp_path / "x.tar.gz").exists()
