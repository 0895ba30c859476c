#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Applies small wrong changes to the product, one at a time, and checks that a test notices each.

    tests/mutants/run.py [--sample N] [--seed TEXT] [--list] [NAME...]

The mutants are in the .txt files beside this script; README.md there describes the format. Each one is applied to a copy of
the tree in build/mutants, the programs that its test needs are built, and the test is run: the mutant passes if that test
fails. A mutant that no longer applies, or does not compile, is a failure, and so is a test that fails without any mutant.

--sample draws N of them by --seed (by default the commit's hash), so that each commit tries others; that all of them still apply is
checked in any case. JOBS sets how many compilers run at once.
"""
import argparse
import ctypes
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / "build/mutants"
SOURCE, BUILD = WORK / "source", WORK / "build"
TEST_S, BUILD_S = 300, 1800
FOLDER = os.path.join(tempfile.gettempdir(), f"m{os.getpid()}")  # a test's TMPDIR: a mutant may stop it before it removes its files. Short, for sockets
SCRATCH = f"/dev/shm/gacc{os.getpid()}" if os.path.isdir("/dev/shm") else FOLDER  # tests/support/scratch.h; removed with FOLDER
PROGRAMS = ["gaccd", "gaccctl"]  # for system tests; `build:` names others


class Mutant:
    def __init__(self, where):
        self.where, self.fields, self.edits = where, {"build": ""}, []

    def __getattr__(self, key):
        try:
            return self.fields[key]
        except KeyError:
            raise SystemExit(f"{self.where}: the field `{key}:` is missing") from None

    def apply(self, text):
        """The mutated text. Raises ValueError when an edit does not fit exactly once into the function."""
        for old, new in self.edits:
            begin, end = function_span(text, self.function)
            body = text[begin:end]
            if body.count(old) != 1:
                raise ValueError(f"{self.file}: {self.function} has this text {body.count(old)} times, not once: {old!r}")
            text = text[:begin] + body.replace(old, new) + text[end:]
        return text


def function_span(text, name):
    """Where a function's definition begins and ends: from the line with its name to the next line that is only `}`. `-` is the whole file."""
    if name == "-":
        return 0, len(text)
    found = list(re.finditer(rf"^(?![ \t#/*]).*\b{re.escape(name)}\((?:[^;{{]*\n)*?{{\n", text, re.M))
    if len(found) != 1:
        raise ValueError(f"{len(found)} definitions of {name}")
    return found[0].start(), text.index("\n}", found[0].end()) + 2


def read(path):
    """The mutants of one file: blocks of `key: value` lines and of edits, separated by empty lines."""
    mutants, mutant, old, new = [], None, [], []

    def end_edit():
        nonlocal old, new
        if old or new:
            mutant.edits.append(("\n".join(old), "\n".join(new)))
        old, new = [], []

    for n, line in enumerate([*path.read_text().splitlines(), ""], 1):
        if line.startswith("#"):
            continue
        if not line.strip():
            if mutant:
                end_edit()
                mutants.append(mutant)
            mutant = None
            continue
        mutant = mutant or Mutant(f"{path.name}:{n}")
        if line[0] in "-+":
            if line[0] == "-" and new:
                end_edit()
            (old if line[0] == "-" else new).append(line[2:] if line[1:2] == " " else line[1:])
            continue
        key, colon, value = line.partition(": ")
        if not colon:
            raise SystemExit(f"{path.name}:{n}: neither `key: value` nor an edit: {line}")
        mutant.fields[key] = value
    return mutants


def read_all():
    mutants = [m for path in sorted(HERE.glob("*.txt")) for m in read(path)]
    names = [m.name for m in mutants]
    twice = {n for n in names if names.count(n) > 1}
    if twice:
        raise SystemExit(f"names that occur twice: {', '.join(sorted(twice))}")
    return mutants


def adopt():
    """What a command leaves behind becomes a child of this process: a test's processes have groups of their own."""
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_leftovers():
    children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children")
    while pids := [int(p) for p in children.read_text().split()]:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def run(command, limit, **how):
    """Exit status and output. A command that takes longer than the limit has status 124. None of its processes is left."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True, **how)
    try:
        out, _ = process.communicate(timeout=limit)
        return process.returncode, out.decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        end_leftovers()
        out, _ = process.communicate()
        return 124, out.decode(errors="replace")
    finally:
        end_leftovers()


def copy_tree():
    """What git knows, and changes that are not committed yet. Only files that differ are written, so that a second run builds little."""
    names = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"], check=True, capture_output=True, text=True)
    wanted = set(filter(lambda n: (ROOT / n).is_file(), names.stdout.splitlines()))
    for old in [p for p in SOURCE.rglob("*") if p.is_file() and str(p.relative_to(SOURCE)) not in wanted]:
        old.unlink()
    for name in wanted:
        a, b = ROOT / name, SOURCE / name
        if not b.exists() or a.read_bytes() != b.read_bytes():
            b.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(a, b)
    python = SOURCE / "build/python"  # tests/requirements.txt
    python.parent.mkdir(exist_ok=True)
    if (ROOT / "build/python").exists() and not python.exists():
        python.symlink_to(ROOT / "build/python")


def configure():
    launcher = [f"-DCMAKE_{x}_COMPILER_LAUNCHER=ccache" for x in ("C", "CXX")] * bool(shutil.which("ccache"))
    status, out = run(["cmake", "-G", "Ninja", "-S", SOURCE, "-B", BUILD, "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS=-O1", "-DGACC_MUTATED=ON",
                       *launcher], BUILD_S)
    if status:
        raise SystemExit(f"cmake fails:\n{out[-2000:]}")


def ctest_programs():
    """Which target a test of CTest needs."""
    _, out = run(["ctest", "--test-dir", BUILD, "--show-only=json-v1"], 60)
    tests = json.loads(out)["tests"]
    bin_dir = str(BUILD)
    return {t["name"]: [pathlib.Path(w).name for w in t.get("command", []) if w.startswith(bin_dir) and "/" in w] for t in tests}


def build(targets):
    return run(["cmake", "--build", BUILD, "-j", os.environ.get("JOBS") or str(os.cpu_count()), "--target", *targets, "--", "--quiet"], BUILD_S)


def test_command(test):
    kind, _, what = test.partition(" ")
    if kind == "ctest":
        return ["ctest", "--test-dir", BUILD, "-R", f"^{what}$", "--output-on-failure", "--no-tests=error", "--timeout", str(TEST_S)]
    if kind == "pytest":
        return ["/usr/bin/python3", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"--basetemp={FOLDER}/p", *(SOURCE / w if w.startswith("tests/") else w for w in what.split())]
    raise SystemExit(f"a test is `ctest NAME` or `pytest FILE::TEST`, not {test}")


def try_test(test):
    env = {**os.environ, "GACC_BUILD_DIR": str(BUILD), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": FOLDER, "GACC_TEST_SCRATCH": SCRATCH}
    os.makedirs(FOLDER)
    os.makedirs(SCRATCH, exist_ok=True)
    try:
        return run([str(w) for w in test_command(test)], TEST_S, cwd=SOURCE, env=env)
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
        shutil.rmtree(SCRATCH, ignore_errors=True)


class Runner:
    def __init__(self):
        copy_tree()
        configure()
        self.ctest, self.sound = ctest_programs(), {}

    def targets(self, mutant):
        kind, _, what = mutant.test.partition(" ")
        return (self.ctest.get(what) or [what] if kind == "ctest" else PROGRAMS) + mutant.build.split()

    def is_sound(self, mutant):
        """Whether the test passes without a mutant; tried once for each test."""
        if mutant.test not in self.sound:
            status, out = build(self.targets(mutant))
            if not status:
                status, out = try_test(mutant.test)
            self.sound[mutant.test] = (status == 0, out)
        return self.sound[mutant.test]

    def judge(self, mutant):
        """None when the mutant is caught, else what is wrong."""
        path = SOURCE / mutant.file
        original = path.read_text()
        changed = mutant.apply(original)
        sound, out = self.is_sound(mutant)
        if not sound:
            return f"`{mutant.test}` fails without it:\n{out[-700:]}"
        path.write_text(changed)
        try:
            status, out = build(self.targets(mutant))
            if status:
                return f"does not compile:\n{out[-700:]}"
            status, out = try_test(mutant.test)
            return None if status else f"`{mutant.test}` passes with it"
        finally:
            path.write_text(original)


def stale(mutants):
    """Those that do not apply to the tree as it is: (mutant, why)."""
    found = []
    for m in mutants:
        try:
            m.apply((ROOT / m.file).read_text())
        except (OSError, ValueError) as e:
            found.append((m, e))
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("name", nargs="*")
    o = parser.parse_args()
    mutants = read_all()
    unknown = set(o.name) - {m.name for m in mutants}
    if unknown:
        raise SystemExit(f"no such mutant: {', '.join(sorted(unknown))}")
    mutants = [m for m in mutants if not o.name or m.name in o.name]
    gone = stale(mutants)
    for mutant, why in gone:
        print(f"FAILED {mutant.name} ({mutant.where}) does not apply: {why}")
    mutants = [m for m in mutants if m not in [g for g, _ in gone]]
    if o.sample is not None and o.sample < len(mutants):
        seed = o.seed or subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
        print(f"{o.sample} of {len(mutants)} mutants, drawn by {seed}")
        mutants = random.Random(seed).sample(mutants, o.sample)
    if o.list:
        print("\n".join(f"{m.name:40} {m.file}  {m.test}" for m in mutants))
        return 0
    adopt()
    runner, failed = Runner(), len(gone)
    for mutant in sorted(mutants, key=lambda m: m.test):
        wrong = runner.judge(mutant)
        failed += bool(wrong)
        print(f"FAILED {mutant.name} ({mutant.where}): {wrong}" if wrong else f"ok     {mutant.name}: caught by {mutant.test}", flush=True)
    print(f"{len(mutants) + len(gone) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
