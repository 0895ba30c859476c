# SPDX-License-Identifier: Apache-2.0
"""gpu_probe against the fake driver, which forgets exported memory when nobody has the device's node open, and with drivers that fail."""
import os
import subprocess

import pytest

from harness import build_dir

# A /dev of its own, in which the fake's files are /dev/nvidiaN, and what the driver says of them in /proc.
NODES = """
mkdir "$1/dev" && mount --rbind /dev "$1/dev" && mount -t tmpfs x /dev && mkdir /dev/shm && mount --rbind "$1/dev/shm" /dev/shm || exit 77
touch /dev/null && mount --bind "$1/dev/null" /dev/null && touch /dev/nvidia0 /dev/nvidia1 && chmod 666 /dev/nvidia* || exit 77
mount -t tmpfs x /proc/driver || exit 77
for i in 0 1; do
    mkdir -p /proc/driver/nvidia/gpus/0000:a$i:00.0 && echo "Device Minor: 	 $i" > /proc/driver/nvidia/gpus/0000:a$i:00.0/information
done
shift
exec "$@"
"""


def probe(tmp_path, *before, **env):
    all_env = {**os.environ, "LD_LIBRARY_PATH": str(build_dir() / "lib/fake_cuda"), "FAKE_CUDA_MACHINE": str(tmp_path), **env}
    r = subprocess.run([*before, build_dir() / "bin/gpu_probe", "survival"], env=all_env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100)
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
