# SPDX-License-Identifier: Apache-2.0
"""deploy/bundle.sh: its tarball runs where nothing of ours is installed. "There" is a root folder with a shell, a few tools, glibc
and no other library of this machine's than those of the tools."""
import os
import pathlib
import re
import shutil
import subprocess
import tarfile

import pytest

from harness import build_dir

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
    done = node("/opt/elsewhere/run.sh", "facts", "smoke", "gpu-bits", "gpu-survival", "gpu-copy")
    said = rows(done)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said["version"][1].startswith("gaccd_")
    assert re.match("ok: gaccd", said["gaccctl health"][1])
    assert re.match(r"ok, accuracy [6-9]\d", said["training, 2 ranks, 2 epochs of 2000 images"][1])
    assert said["kernels against the reference, bit by bit"] == (1, "not run: the CUDA plug-in is not built in this bundle")
    assert said["copy bandwidth"][0] == 4 and said["copy bandwidth"][1].startswith("not run: ")
    assert said["GPU"][0] == 2 and said["GPU"][1].startswith("not run: no NVIDIA driver")


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
