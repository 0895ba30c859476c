# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and the safetensors library itself: it reads what gacc writes, and gacc what it writes. tests/run.sh gets the library
(tests/requirements.txt) into build/python."""
import hashlib
import importlib.util
import json
import pathlib

import numpy as np
import pytest

from harness import Daemon
from saving_job import SHAPES, Job, read_safetensors

safetensors = pytest.importorskip("safetensors", reason="no safetensors library: pip install --require-hashes "
                                                        "--target build/python -r tests/requirements.txt")
from safetensors import TensorSpec, deserialize, safe_open, serialize  # noqa: E402

PARTS = ["model", "optimizer", "carry", "window"]
FRAMEWORKS = {"numpy": np.ndarray} | ({"pt": None} if importlib.util.find_spec("torch") else {})
LIBRARY_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@pytest.fixture(scope="module")
def saved():
    """A job with f32, f16 and bf16 parameters, a scalar among them, saved inside a window: (daemon, job, directory)."""
    with Daemon() as d:
        job = Job(d)
        job.step(2)
        job.push(0, 0), job.push(1, 0), job.push(0, 1)
        yield d, job, pathlib.Path(job.save(inside_window=True).path)
        job.leave()


@pytest.mark.parametrize("part", PARTS)
def test_the_library_reads_every_byte(saved, part):
    path = saved[2] / f"{part}.safetensors"
    ours = read_safetensors(path)
    theirs = {name: (t["dtype"], t["shape"], bytes(t["data"])) for name, t in deserialize(path.read_bytes())}
    assert theirs == ours and theirs
    assert {t[0] for t in theirs.values()} == {"model": {"F32", "F16", "BF16"}, "optimizer": {"F32"}, "carry": {"F32"},
                                              "window": {"F64", "U64", "I64", "U8"}}[part]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks_open_it(saved, framework, part):
    path = saved[2] / f"{part}.safetensors"
    ours = read_safetensors(path)
    with safe_open(path, framework) as f:
        assert set(f.keys()) == set(ours)
        assert f.metadata() == (None if part == "window" else {"format": "pt"})
        for name, (dtype, shape, data) in ours.items():
            if framework == "numpy" and dtype == "BF16":
                continue  # NumPy has none
            t = f.get_tensor(name)
            assert list(t.shape) == shape, name
            if framework == "pt":
                t = t.reshape(-1).view(__import__("torch").uint8).numpy() if t.ndim else t.numpy()
            assert t.tobytes() == data, name


def rewritten(path):
    """The same tensors in the library's own order and layout."""
    tensors = read_safetensors(path)
    held = {name: np.frombuffer(data, np.uint8) for name, (_, _, data) in tensors.items()}
    specs = {name: TensorSpec(dtype=LIBRARY_NAMES[dtype], shape=shape, data_ptr=held[name].ctypes.data, data_len=len(data))
             for name, (dtype, shape, data) in tensors.items()}
    return serialize(specs, {"written_by": "safetensors"})


def test_gacc_reads_the_librarys_files(saved):
    d, job, path = saved
    manifest = json.loads((path / "manifest.json").read_text())
    for f in manifest["files"]:
        if f["name"] in ("model.safetensors", "optimizer.safetensors"):
            data = rewritten(path / f["name"])
            assert data != (path / f["name"]).read_bytes()
            (path / f["name"]).write_bytes(data)
            f |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))
    again = Job(d, name="again", restore_from=str(path))
    assert [r.missing for r in again.ranks] == [[], [1]]
    assert again.params() == job.params() and set(again.params()) > set(SHAPES)
    job.push(1, 1), again.push(1, 1)
    a, b = [[r.wait_step() for r in j.ranks][0].result for j in (job, again)]
    assert a.params_digest == b.params_digest
    again.leave()
