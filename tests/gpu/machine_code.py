#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What nvcc has made of the kernels for GPUs, without a GPU.

    tests/gpu/machine_code.py FATBIN PTX

In PTX: arithmetic that rounds as the CPU's, flushes subnormals and is not contracted; streams move 16 bytes at a time (8 of a 16-bit
one); enough loads of a pass stand before its first store; the fences are there; no local memory. In the machine code of each GPU, if
cuobjdump and nvdisasm are in build/python (tests/requirements.txt) or on the PATH: all kernels are there for each, the same of loads, and
no local memory. Spills are errors of the build itself (-warn-spills).
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

FLOAT = re.compile(r"(?:add|sub|mul)\.rn\.ftz\.f32|(?:div|sqrt)\.rn\.ftz\.f32|(?:neg|abs)\.ftz\.f32|setp\.\w+\.ftz\.f32|cvt\.ftz\.f64\.f32|add\.(?:rn\.)?f64|"
                   r"cvt\.rn\.f32\.[us]32|(?:mov|selp|ld|st)\..*f(?:32|64)")
GPUS = {"sm_80", "sm_90", "sm_100", "sm_120"}
TOOLS = pathlib.Path(__file__).resolve().parents[2] / "build/python/nvidia/cu13/bin"
STREAMS = {"v4.f32", "v4.u32", "v2.u32"}
BATCH = {1: 8, 2: 12, 4: 10, 8: 9}  # loads of streams that a pass of k sources has on their way


def ptx_kernels(path):
    """Name of each kernel -> its instructions, in the order of the text."""
    found, now = {}, None
    for line in open(path):
        if entry := re.match(r"\.visible \.entry (\w+)", line):
            now = found.setdefault(entry[1], [])
        elif now is not None and (op := re.match(r"\s+(?:\{\s*)?(?:@!?%\w+ )?([a-z]\w*\.[\w.]+)[\s;]", line)):
            now.append(op[1])
    return found


def longest(ops, load, store):
    """Loads between two stores, at most."""
    best = run = 0
    for op in ops:
        run = 0 if store(op) else run + load(op)
        best = max(best, run)
    return best


def ptx_faults(name, ops):
    for op in sorted(set(ops)):
        if re.search(r"\.f(32|64)$", op) and not FLOAT.fullmatch(op):
            yield f"{name}: {op} may give other bits than the CPU"
        if re.match(r"(ld|st)\.local", op):
            yield f"{name}: {op}"
        if (stream := re.fullmatch(r"(?:ld|st)\.global\.cs\.(.*)", op)) and stream[1] not in STREAMS and not name.startswith("collect"):
            yield f"{name}: a stream moves by {op}"
    if k := re.fullmatch(r"add_\w+?_(\d)(?:_norm)?", name):
        n = longest(ops, lambda op: op.startswith("ld.global.cs"), lambda op: op.startswith("st.global"))
        if n < BATCH[int(k[1])]:
            yield f"{name}: {n} loads before a store, not {BATCH[int(k[1])]}"
    fences = sum(op == "fence.acq_rel.gpu" for op in ops)
    updates = name in ("sgd", "adam", "adamw", "lamb", "lamb_moments")
    if fences < (4 if updates else name != "open_gate"):
        yield f"{name}: {fences} fences"
    if name != "open_gate" and not any(re.match(r"(membar|fence\.sc)", op) for op in ops):
        yield f"{name}: the gate is not read in order"


def sass_faults(fatbin, kernels):
    text = subprocess.run(["cuobjdump", "--dump-sass", fatbin], check=True, stdout=subprocess.PIPE, text=True).stdout
    name, machine, ops = None, None, {}
    for line in text.splitlines():
        if m := re.search(r"^arch = (\w+)", line):
            machine = m[1]
        elif m := re.search(r"Function : (\w+)", line):
            name = f"{machine} {m[1]}"
        elif name and (m := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)", line)):
            ops.setdefault(name, []).append(m[1])
    yield from (f"{gpu} {kernel}: there is no machine code" for gpu in GPUS for kernel in kernels if not ops.get(f"{gpu} {kernel}"))
    for kernel, list_ in ops.items():
        yield from (f"{kernel}: {op}" for op in sorted(set(list_)) if op.startswith(("LDL", "STL")))
        if k := re.search(r" add_\w+?_(\d)(?:_norm)?$", kernel):
            n = longest(list_, lambda op: op.startswith("LDG.E") and ("64" in op or "128" in op), lambda op: op.startswith("STG"))
            if n < BATCH[int(k[1])]:
                yield f"{kernel}: {n} loads before a store, not {BATCH[int(k[1])]}"


def main():
    fatbin, ptx = sys.argv[1:]
    kernels = ptx_kernels(ptx)
    faults = [f for name, ops in kernels.items() for f in ptx_faults(name, ops)]
    if len(kernels) < 40:
        faults.append(f"{len(kernels)} kernels in {ptx}")
    os.environ["PATH"] = f"{TOOLS}:{os.environ['PATH']}"
    looked = "in PTX; no cuobjdump and nvdisasm: their machine code is not looked at"
    if shutil.which("cuobjdump") and shutil.which("nvdisasm"):
        faults += sass_faults(fatbin, kernels)
        looked = f"in PTX, and in the machine code of {len(GPUS)} GPUs"
    print("\n".join(faults) or f"{len(kernels)} kernels {looked}")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
