# SPDX-License-Identifier: Apache-2.0
"""gpu_probe against the fake driver, which forgets exported memory when nobody has the device's node open, and with drivers that fail. What it
measures here says nothing of a GPU; that it measures is what is tested."""
import os
import re
import signal
import subprocess

import pytest

from harness import build_dir

# A /dev of its own, in which the fake's files are /dev/nvidiaN, and what the driver says of them in /proc.
NODES = """
mkdir "$1/dev" && mount --rbind /dev "$1/dev" && mount -t tmpfs x /dev && mkdir /dev/shm && mount --rbind "$1/dev/shm" /dev/shm || exit 77
touch /dev/null && mount --bind "$1/dev/null" /dev/null && touch /dev/nvidia0 /dev/nvidia1 && chmod 666 /dev/nvidia* || exit 77
mount -t tmpfs x /proc/driver || exit 77
for i in 0 1; do
    mkdir -p /proc/driver/nvidia/gpus/0000:a$i:00.0 || exit 77
    printf 'GPU UUID: \t GPU-facecda0-6acc-4000-8000-00000000000%d\nDevice Minor: \t %d\n' $((i + 1)) $i > /proc/driver/nvidia/gpus/0000:a$i:00.0/information
done
shift
exec "$@"
"""


has_kernels = pytest.mark.skipif(not all((build_dir() / "lib" / f).exists() for f in ("gacc_cuda.fatbin", "gacc_cuda_host.so")), reason="no kernels for GPUs")


def probe(tmp_path, *before, part=("survival",), **env):
    all_env = {**os.environ, "LD_LIBRARY_PATH": str(build_dir() / "lib/fake_cuda"), "FAKE_CUDA_MACHINE": str(tmp_path),
               "FAKE_CUDA_KERNELS": str(build_dir() / "lib/gacc_cuda_host.so"), **env}
    r = subprocess.run([*before, build_dir() / "bin/gpu_probe", *part], env=all_env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100)
    return r.returncode, [line.split("\t")[2] for line in r.stdout.splitlines()]


def test_memory_lives_as_long_as_a_node_is_held(tmp_path):
    status, rows = probe(tmp_path, "unshare", "-m", "--propagation", "private", "sh", "-c", NODES, "sh", tmp_path, FAKE_CUDA_NODE="/dev/nvidia")
    if not rows:
        pytest.skip("no mounts of its own")
    assert status == 0
    assert rows == ["survives: 64 MiB, every word"] * 2 + ["LOST: cuMemImportFromShareableHandle: CUDA_ERROR_INVALID_HANDLE"]


def test_a_driver_that_ends_the_process_is_a_row(tmp_path):
    assert probe(tmp_path, FAKE_CUDA_DEVICES="none") == (1, ["FAILED: the process that was to find out ended with status 2"])


def test_no_gpu_is_no_failure(tmp_path):
    assert probe(tmp_path, CUDA_VISIBLE_DEVICES="") == (0, ["not run: no GPU"])


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemExportToShareableHandle", "cuMemsetD32_v2"])
def test_what_fails_is_named(tmp_path, call):
    status, rows = probe(tmp_path, FAKE_CUDA_FAIL=f"{call}:1:2")
    assert status == 1 and rows and all("CUDA_ERROR_OUT_OF_MEMORY" in row and "FAILED" in row for row in rows)


@has_kernels
def test_a_process_that_is_killed_writes_no_more(tmp_path):
    status, rows = probe(tmp_path, part=["late"])
    assert status == 0 and re.match("quiet for 2 s, ", rows[0]), rows
    begun, ended = map(int, re.match(r"(\d+) blocks begun, (\d+) ended: one that died", rows[1]).groups())
    assert begun == ended + 1 and rows[2] == "does not have the process any more"


@has_kernels
def test_one_that_goes_on_is_a_failure(tmp_path):
    """Its ghost finishes what was queued, 0.3 s after its end."""
    signal_ = int(signal.SIGUSR1)
    status, rows = probe(tmp_path, part=["late", str(signal_)], FAKE_CUDA_LATE="300000", FAKE_CUDA_KILL_SIGNAL=str(signal_))
    assert status == 1 and float(re.match(r"FAILED: it changed until ([\d.]+) ms after that", rows[0])[1]) > 300, rows


@has_kernels
@pytest.mark.parametrize("part, row", [("tiny", r"ok: (\d+) of \1 have the same bits"), ("ready", r"median [\d.]+ us, 99 % below [\d.]+ us, of \d+"),
                                       ("rates", r"(\d+ % of copy, )?[\d.]+ GB/s(, [\d.e+]+ ms for 10\^9 elements)?|\d+, 1?1 rounds of [18] launches")])
def test_what_kernels_do(tmp_path, part, row):
    status, rows = probe(tmp_path, part=[part])
    assert status == 0 and len(rows) > 1 and all(re.fullmatch(row, r) for r in rows), rows


def test_what_has_no_driver_says_so(tmp_path):
    for part in "name", "tiny", "late", "rates", "ready":
        status, rows = probe(tmp_path, part=[part], CUDA_VISIBLE_DEVICES="")
        assert (status, rows) == (0, ["not run: no GPU"])


def test_its_name_tells_that_it_is_none(tmp_path):
    status, rows = probe(tmp_path, part=["name"])
    assert status == 0 and re.match("Fake GPU 0, UUID [0-9a-f]{32}, CUDA 13.0", rows[0]), rows
