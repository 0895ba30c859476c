# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are not what gaccd wrote, as restore_from of a job. What the manifest shows refuses Submit; what only the files show ends
the job (code FAILED). `resealed` files have the size and the sum that the manifest then says: somebody meant it."""
import hashlib
import itertools
import json
import os
import shutil

import numpy as np

from bad_inputs import Answer, Row
from harness import wait_until

FAILED = 8
OTHER = r"gaccctl checkpoint list"
COUNT = itertools.count()
ADAM = {"optimizer": {"type": "adam", "lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}, "ranks": 1, "micro_size": 2}
MODEL, OPTIMIZER, WINDOW = "model.safetensors", "optimizer.safetensors", "window.safetensors"


def begin_with(stage, path):
    """The answer to Submit, or how the job ended."""
    name = f"hostile-{next(COUNT)}"
    answer = stage.call("JobService/Submit", [{"spec": stage.types.spec(**ADAM, name=name, restore_from=str(path)), "request_id": os.urandom(16)}])
    if answer.code != "OK":
        return answer
    def ended():
        job = stage.client.jobs.Get(job=name).job
        return job.reason if job.state == FAILED else None
    why = wait_until("the end of the restore", ended)
    return Answer("FAILED", "", why, why)


def hostile(what, change, code, reason, value):
    """`change`: of the copy's folder; what it returns, if anything, is the path to begin with."""
    def send(stage):
        folder = stage.daemon.dir / f"hostile-{next(COUNT)}"
        shutil.copytree(stage.checkpoint, folder)
        return begin_with(stage, change(folder) or folder)
    return Row(f"checkpoint-{what}", send, code, reason, value, OTHER)


def write(folder, manifest):
    (folder / "manifest.json").write_text(json.dumps(manifest))


def read(folder):
    return json.loads((folder / "manifest.json").read_text())


# ---- the manifest ----


def text(what, content, value, reason="MALFORMED"):
    def change(folder):
        old = (folder / "manifest.json").read_text()
        (folder / "manifest.json").write_bytes(content(old).encode() if callable(content) else content)
    return hostile(what, change, "FAILED_PRECONDITION" if reason == "VERSION_SKEW" else "INVALID_ARGUMENT", reason, value)


def key(what, path, new, value, code="INVALID_ARGUMENT", reason="MALFORMED"):
    """`path`: "carry.count"; new None: without it."""
    def change(folder):
        manifest = read(folder)
        *outer, last = path.split(".")
        at = manifest
        for name in outer:
            at = at[name]
        if new is None:
            del at[last]
        else:
            at[last] = new(at[last]) if callable(new) else new
        write(folder, manifest)
    return hostile(what, change, code, reason, value)


def wrong(name):
    return f'manifest.json: "{name}" is missing or wrong'


def first_file(**fields):
    return lambda files: [{**files[0], **fields}, *files[1:]]


MANIFEST = [
    text("empty", b"", "manifest.json:1:0"),
    text("no-json", b"{", "manifest.json:1:1"),
    text("list", b"[]", "not the manifest of a gacc checkpoint"),
    text("deep", b"[" * 100000, "maximum parsing depth"),
    text("not-utf-8", b'{"format": "\xff"}', "unable to decode byte 0xff"),
    text("key-twice", lambda t: t.replace('"window"', '"id"', 1), "duplicate object key"),
    text("integer-beyond-64-bits", lambda t: t.replace('"id": ', '"id": 99999999999999999999', 1), "too big integer"),
    text("real-beyond-a-double", lambda t: t.replace('"id": ', '"id": 1e999, "x": ', 1), "real number overflow"),
    key("format", "format", "GACC", "not the manifest of a gacc checkpoint"),
    key("version-7", "version", 7, "version 7, this gaccd knows 1", "FAILED_PRECONDITION", "VERSION_SKEW"),
    key("version-as-text", "version", "1", "not the manifest of a gacc checkpoint"),
    key("window-missing", "window", None, wrong("window")),
    key("window-negative", "window", -1, wrong("window")),
    key("window-fraction", "window", 1.5, wrong("window")),
    key("window-no-number", "window", "0xzz", wrong("window")),
    key("ranks-beyond-32-bits", "ranks", 2**32, wrong("ranks")),
    key("micro-size-false", "micro_size", False, wrong("micro_size")),
    key("uuid-short", "job.uuid", lambda u: u[:-1], wrong("uuid")),
    key("uuid-no-hex", "job.uuid", "../" * 10 + "..", wrong("uuid")),
    key("name-number", "job.name", 7, wrong("name")),
    key("job-list", "job", [], wrong("id")),
    key("loss-scale-word", "loss_scale", "NaN", wrong("loss_scale")),
    key("last-long", "last", {str(i): i for i in range(65)}, wrong("last")),
    key("last-list", "last", [1], wrong("last")),
    key("spec-no-base64", "spec", "!!!!", wrong("spec")),
    key("spec-garbage", "spec", "AAAA", "its spec is none"),
    key("spec-empty", "spec", "", wrong("spec")),
    key("files-object", "files", {}, wrong("files")),
    key("file-outside", "files", first_file(name="../../model.safetensors"), wrong("files")),
    key("file-absolute", "files", first_file(name="/etc/passwd"), wrong("files")),
    key("file-twice", "files", lambda f: f + f[:1], wrong("files")),
    key("file-of-0-bytes", "files", first_file(bytes=0), wrong("files")),
    key("file-of-2-to-63", "files", first_file(bytes="0x8000000000000000"), r"model.safetensors: its size or owner .*9223372036854775808 bytes"),
    key("sum-short", "files", first_file(sha256="00"), wrong("files")),
    key("no-carry-and-its-files", "inside_window", False, wrong("files")),
    key("sum-weight-nan", "carry.sum_weight", "nan", "sum_weight", "FAILED", ""),
    key("last-rank-5", "carry.last_rank", 5, "last_rank", "FAILED", ""),
    key("count-7", "carry.count", 7, "window.safetensors: .*not 7", "FAILED", ""),
    key("no-optimizer-file", "files", lambda f: [x for x in f if x["name"] != OPTIMIZER], "has no optimizer.safetensors", "FAILED", ""),
]


# ---- the files as such ----


def replaced(name, by):
    def change(folder):
        (folder / name).unlink()
        by(folder / name)
    return change


def resized(name, bytes_more):
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size + bytes_more)


def flipped(folder):
    data = bytearray((folder / MODEL).read_bytes())
    data[-1] ^= 1
    (folder / MODEL).write_bytes(data)


def moved_and_linked(folder):
    (folder / MODEL).rename(folder / "elsewhere")
    (folder / MODEL).symlink_to("elsewhere")


def refused(what, change, value, reason="INVALID_ARGUMENT"):
    return hostile(what, change, "INVALID_ARGUMENT", reason, value)


FILES = [
    refused("manifest-missing", lambda f: (f / "manifest.json").unlink(), "manifest.json: No such file"),
    refused("manifest-folder", replaced("manifest.json", lambda p: p.mkdir()), "manifest.json: Invalid argument"),
    refused("manifest-pipe", replaced("manifest.json", os.mkfifo), "manifest.json: Invalid argument"),
    refused("manifest-link", replaced("manifest.json", lambda p: p.symlink_to("/etc/passwd")), "manifest.json: there is a symbolic link"),
    refused("manifest-sparse", lambda f: os.truncate(f / "manifest.json", 1 << 40), "manifest.json: File too large"),
    refused("folder-is-a-file", lambda f: f / MODEL, "model.safetensors: Not a directory"),
    refused("nowhere", lambda f: f / "step-9-9", "step-9-9: No such file"),
    refused("file-missing", lambda f: (f / OPTIMIZER).unlink(), "optimizer.safetensors: No such file"),
    refused("file-link", moved_and_linked, "model.safetensors: .*(symbolic link)"),
    refused("file-pipe", replaced(MODEL, os.mkfifo), "model.safetensors: Invalid argument"),
    refused("file-cut", resized(MODEL, -1), "model.safetensors: its size or owner", "MALFORMED"),
    refused("file-grown", resized(MODEL, 1), "model.safetensors: its size or owner", "MALFORMED"),
    hostile("file-flipped", flipped, "FAILED", "", "model.safetensors: its SHA-256 is not the manifest's"),
] + [refused("file-of-another", lambda f: os.chown(f / MODEL, 65534, 65534), "model.safetensors: its size or owner", "MALFORMED")] * (os.geteuid() == 0)


# ---- what is in them ----


def resealed(what, name, change, value):
    """`change`: (header, body) -> (header, body); a header of bytes is written as it is, its length too."""
    def send(folder):
        data = (folder / name).read_bytes()
        n = int.from_bytes(data[:8], "little")
        header, body = change(json.loads(data[8:8 + n]), data[8 + n:])
        if not isinstance(header, bytes):
            header = json.dumps(header).encode()
            header = len(header).to_bytes(8, "little") + header
        (folder / name).write_bytes(header + body)
        manifest = read(folder)
        for file in manifest["files"]:
            if file["name"] == name:
                file |= {"bytes": len(header + body), "sha256": hashlib.sha256(header + body).hexdigest()}
        write(folder, manifest)
    return hostile(what, send, "FAILED", "", f"{name}: .*{value}" if value else "the parameters' digest is .*, the manifest says")


def header(change):
    def both(h, body):
        return change(h) or h, body
    return both


def tensor(**fields):
    return header(lambda h: h["w"].update(fields))


def window_values(name, dtype, new):
    def both(h, body):
        body = bytearray(body)
        begin, _ = h[name]["data_offsets"]
        body[begin:begin + np.dtype(dtype).itemsize] = np.array(new, dtype).tobytes()
        return h, bytes(body)
    return both


def framed(length, content=b"{}"):
    return lambda h, body: (length.to_bytes(8, "little") + content, body)


TWICE = b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
CONTENT = [
    resealed("header-of-2-to-63", MODEL, framed(2**63), "9223372036854775808"),
    resealed("header-of-2-to-64", MODEL, framed(2**64 - 1), "18446744073709551615"),
    resealed("header-beyond-the-file", MODEL, framed(1000), "a header of 1000 bytes"),
    resealed("header-of-0", MODEL, framed(0), "does not begin with"),
    resealed("header-no-json", MODEL, framed(2, b"{["), "the header is no JSON"),
    resealed("tensor-twice", MODEL, framed(len(TWICE), TWICE), "duplicate object key"),
    resealed("tensor-overlap", MODEL, header(lambda h: h["b"].update(data_offsets=[8, 20])), "begins at 8"),
    resealed("tensor-beyond-the-data", MODEL, tensor(shape=[4000], data_offsets=[0, 16000]), "begins at 16|ends? at 16000"),
    resealed("tensor-backwards", MODEL, tensor(data_offsets=[16, 0]), r"data_offsets \[16, 0\]"),
    resealed("tensor-offset-negative", MODEL, tensor(data_offsets=[-16, 0]), "no pair of offsets"),
    resealed("tensor-overflow", MODEL, tensor(shape=[2**62, 2**62]), "product of its shape overflows"),
    resealed("tensor-shape-negative", MODEL, tensor(shape=[-4]), r"shape\[0\] is no size"),
    resealed("tensor-of-9-dimensions", MODEL, tensor(shape=[1] * 99 + [4]), "no list of at most"),
    resealed("tensor-dtype-unknown", MODEL, tensor(dtype="F33"), "F33"),
    resealed("tensor-dtype-other", MODEL, tensor(dtype="I32"), "not known|not F32"),
    resealed("tensor-shape-other", MODEL, tensor(shape=[2, 2]), '"w" is F32 with 2 dimensions'),
    resealed("tensor-renamed", MODEL, header(lambda h: {("v" if k == "w" else k): t for k, t in h.items()}), '"w" is missing'),
    resealed("tensor-more", MODEL, header(lambda h: {**h, "x": {"dtype": "F32", "shape": [0], "data_offsets": [28, 28]}}), "3 tensors, the job needs 2"),
    resealed("metadata-number", MODEL, header(lambda h: {**h, "__metadata__": {"a": 7}}), "no string"),
    resealed("master-state-missing", OPTIMIZER, header(lambda h: {k.replace("exp_avg_sq", "x"): t for k, t in h.items()}), "is missing"),
    resealed("micro-in-state-9", WINDOW, window_values("state", np.uint64, 9), "a state, a weight or a mark"),
    resealed("micro-of-weight-nan", WINDOW, window_values("weight", np.float64, np.nan), "a state, a weight or a mark"),
    resealed("micro-of-weight-negative", WINDOW, window_values("weight", np.float64, -1), "a state, a weight or a mark"),
    resealed("rank-flushed-twice", WINDOW, window_values("flushed", np.uint8, 2), "a state, a weight or a mark"),
    resealed("parameters-other", MODEL, lambda h, body: (h, body[:-1] + bytes([body[-1] ^ 1])), None),
]
ROWS = MANIFEST + FILES + CONTENT
