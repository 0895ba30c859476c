#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the source tree promises about itself, checked on the sources and on the object files of a build.

    tests/structure.py BUILD_DIR

style    clang-format has nothing to change; every source file names its licence; no file has more than 500 lines;
         each .c, .cc, .cu and .cuh of the product opens with two lines or more: what it does, for whom, on which thread
tidy     clang-tidy finds nothing (.clang-tidy says what it looks for)
headers  each header of the product compiles by itself
c++      only the shim over Gloo, which lets nothing of it through, and what kernels for GPUs need
layers   a room calls only the rooms that its gacc_room() names, and theirs
         and where CMakeLists.txt lists a room's files in layers, a file uses only those above it
circles  files that call each other in a circle are three at most

Closes with "N passed, N failed".
"""
import concurrent.futures
import itertools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
MAX_LINES, MAX_CIRCLE = 500, 3
LICENCE = "SPDX-License-Identifier: Apache-2.0"
UNITS = (".c", ".cc", ".cu", ".cuh")
CODE = (*UNITS, ".h")
CXX = {"daemon/coll/gloo_shim.cc", "tests/bench/gloo_ring.cc",  # what has no other interface
       "tests/gpu/sim/fiber.cc", "tests/gpu/sim/sim.cc"}  # stands in for nvcc, whose language is C++
SOURCES = (*CODE, ".py", ".sh", ".proto", ".cmake", ".awk", ".pml")
INTERPOSED = {"accept4", "close", "epoll_ctl", "recvmsg", "sendmsg",  # libc's; daemon/rpc/guard.c comes before it in gaccd
              "SSL_CTX_new"}  # libssl's; daemon/rpc/credentials.c
PARTS = ("kernels_body.h", "kernels_update.h", "kernels_vector.h")  # included once for each instruction set, with its names defined

# Rooms whose files CMakeLists.txt lists in layers: a file uses those above it.
LAYERED = ["control", "engine", "cuda", "rpc", "edge", "lib", "cli"]


class Checks:
    def __init__(self):
        self.passed = self.failed = 0

    def check(self, what, wrong):
        """`wrong`: what is not as it should be, in words; empty if nothing."""
        wrong = list(wrong)
        self.passed += not wrong
        self.failed += bool(wrong)
        print(f"{'FAILED' if wrong else 'ok    '} {what}" + "".join(f"\n       {w}" for w in wrong))


def sources():
    """The project's files: git's, or in a copy without git all but what was built."""
    git = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "-C", ROOT, "ls-files", "-z"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    files = git.stdout.split("\0") if git.returncode == 0 else (str(p.relative_to(ROOT)) for p in ROOT.glob("*/**/*") if p.parts[len(ROOT.parts)] != "build")
    return sorted(f for f in files if (ROOT / f).is_file())


def parallel(work, items):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, items))


def unformatted(paths):
    """A line for each finding; several files by each process, as most of its time is its start."""
    r = subprocess.run(["clang-format", "--dry-run", "-Werror", *paths], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    found = [line for line in r.stderr.split("\n") if "error:" in line]
    return found or [f"clang-format failed for {paths[0]} or a file after it"] if r.returncode else []


def style(checks, files):
    code = [f for f in files if f.endswith(CODE)]
    found = parallel(unformatted, [code[i:i + 40] for i in range(0, len(code), 40)])
    checks.check(f"clang-format, {len(code)} files", itertools.chain.from_iterable(found))
    named = [f for f in files if f.endswith(SOURCES) or f.endswith("CMakeLists.txt")]
    checks.check(f"licence, {len(named)} files",
                 (f"{f}: no {LICENCE}" for f in named if LICENCE not in "".join((ROOT / f).read_text().splitlines(True)[:2])))
    lines = {f: len((ROOT / f).read_text().splitlines()) for f in files if f.endswith((*CODE, ".py"))}
    checks.check(f"files of {MAX_LINES} lines at most",
                 (f"{f} has {n} lines" for f, n in lines.items() if n > MAX_LINES))


def opens(path):
    """Is the second line the first of a comment that has at least two?"""
    lines = (ROOT / path).read_text().split("\n")[1:3]
    return lines[0].startswith("/*") and "*/" not in lines[0] and lines[1].startswith(" *")


def openings(checks, files):
    mine = [f for f in files if f.startswith(("daemon/", "client/")) and f.endswith(UNITS)]
    checks.check(f"opening comments, {len(mine)} files",
                 [f"{f} does not open with what it does, for whom, on which thread" for f in mine if not opens(f)])


def cxx(checks, files):
    found = {f for f in files if f.endswith((".cc", ".cpp", ".cxx", ".hpp", ".hh"))}
    checks.check("C++ where it must be", (f"{f}: C++ outside of {' '.join(sorted(CXX))}" for f in sorted(found - CXX)))


def tidy(checks, build):
    compiled = (os.path.relpath(os.path.join(e["directory"], e["file"]), ROOT) for e in json.loads((build / "compile_commands.json").read_text()))
    mine = sorted({f for f in compiled if f.startswith(("daemon/", "client/")) and f.endswith((".c", ".cc"))})

    def findings(path):
        r = subprocess.run(["clang-tidy", "-p", build, "--quiet", path], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        lines = re.findall(r"^(/.+?):(\d+):\d+: (?:error|warning): (.*)$", r.stdout, re.M)
        if r.returncode and not lines:
            return {(path, f"{path}: clang-tidy failed")}
        real = ((os.path.relpath(os.path.realpath(f), ROOT), line, words) for f, line, words in lines)
        return {(f, f"{f}:{line}: {words}") for f, line, words in real if not f.startswith("..")}  # not the system's headers
    found = sorted(set().union(*parallel(findings, mine)))
    checks.check(f"clang-tidy, {len(mine)} files", (words for _, words in found))


def commands(build):
    """A compiler's command line for files of each directory."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = [w for w in shlex.split(entry["command"]) if w != "ccache"]
        drop = {i + d for i, w in enumerate(words) if w in ("-o", "-MF", "-MT") for d in (0, 1)}
        keep = [w for i, w in enumerate(words) if i not in drop and w not in ("-c", "-MD") and not w.endswith((".c", ".cc"))]
        path = os.path.relpath(os.path.join(entry["directory"], entry["file"]), ROOT)
        if path.endswith(".c"):
            found.setdefault(os.path.dirname(path), (keep, entry["directory"]))
    return found


def headers(checks, files, build):
    known = commands(build)

    def incomplete(header):
        command, where = known[os.path.dirname(header)]
        r = subprocess.run([*command, "-fsyntax-only", "-x", "c", "-include", "/dev/null", ROOT / header], cwd=where, stderr=subprocess.PIPE, text=True)
        first = next((line for line in r.stderr.split("\n") if "error" in line), None)
        return first if r.returncode else None
    mine = [f for f in files if f.endswith(".h") and f.startswith(("daemon/", "client/lib/", "client/cli/", "proto/")) and
            os.path.basename(f) not in PARTS and os.path.dirname(f) in known]
    checks.check(f"headers that compile by themselves, {len(mine)}", filter(None, parallel(incomplete, mine)))


def rooms(files):
    """Name of a room -> all rooms that it may call."""
    direct = {}
    for path in (f for f in files if f.endswith("CMakeLists.txt")):
        text = re.sub(r"#.*", "", (ROOT / path).read_text())
        for name, words in re.findall(r"gacc_room\(\s*(\w+)(.*?)\)\n", text, re.S):
            direct[name] = set(words.split("USES")[1].split("LIBS")[0].split()) if "USES" in words else set()
            if "gacc::gacc" in words:
                direct[name].add("lib")
        for name, words in re.findall(r"target_link_libraries\(gacc_(\w+) (?:PUBLIC|PRIVATE) ([^)]*)\)", text):
            direct.setdefault(name, set()).update(re.findall(r"\bgacc_(\w+)", words))

    def reach(name, seen):
        for below in direct.get(name, ()):
            if below not in seen:
                seen.add(below)
                reach(below, seen)
        return seen
    return {name: reach(name, set()) for name in direct}


class Objects:
    """Which object file of the product uses which."""

    def __init__(self, build, may):
        self.room, defined, needed = {}, {}, {}
        built = (build / re.search(r" -o (\S+)", e["command"])[1] for e in json.loads((build / "compile_commands.json").read_text()))
        objects = [o for o in built if re.search(r"CMakeFiles/gacc_\w+\.dir/", str(o)) and "tests" not in o.relative_to(build).parts]
        for o, text in zip(objects, parallel(lambda o: subprocess.run(["nm", "-g", o], stdout=subprocess.PIPE, text=True, check=True).stdout, objects)):
            name = str(o.relative_to(build)).replace("CMakeFiles/", "").replace(".o", "")
            self.room[name] = re.search(r"CMakeFiles/gacc_(\w+)\.dir/", str(o))[1]
            needed[name] = set()
            for line in text.splitlines():
                kind, symbol = line.split()[-2:]
                if kind == "U":
                    needed[name].add(symbol)
                elif kind not in "wv" and symbol not in INTERPOSED:
                    defined.setdefault(symbol, []).append(name)

        def rank(user, other):  # programs may have functions of one name: a room's own come first, then those below it
            return (self.room[other] == self.room[user], self.room[other] in may.get(self.room[user], ()))
        self.uses = {o: {max(defined[s], key=lambda d, o=o: rank(o, d)): s for s in sorted(need & defined.keys())} for o, need in needed.items()}

    def circles(self):
        """Strongly connected components with more than one file (Tarjan)."""
        index, low, stack, found = {}, {}, [], []

        def visit(v):
            index[v] = low[v] = len(index)
            stack.append(v)
            for w in self.uses[v]:
                if w not in index:
                    visit(w)
                    low[v] = min(low[v], low[w])
                elif w in stack:
                    low[v] = min(low[v], index[w])
            if low[v] == index[v]:
                circle = [stack.pop()]
                while circle[-1] != v:
                    circle.append(stack.pop())
                if len(circle) > 1:
                    found.append(sorted(circle))
        for v in self.uses:
            if v not in index:
                visit(v)
        return found


def short(name):
    return re.sub(r"gacc_\w+\.dir/", "", name)


def listed(room, files):
    """Path of each of the room's files -> its place in gacc_room(.. SOURCES ..)."""
    for path in (f for f in files if f.endswith("CMakeLists.txt")):
        text = re.sub(r"#.*", "", (ROOT / path).read_text())
        if found := re.search(rf"gacc_room\(\s*{room}\b.*?SOURCES(.*?)(?:USES|LIBS|\))", text, re.S):
            return {os.path.join(os.path.dirname(path), f): i for i, f in enumerate(found[1].split())}
    raise SystemExit(f"no room {room}")


def arrows(checks, files, build):
    may = rooms(files)
    o = Objects(build, may)
    checks.check(f"layers, {len(o.uses)} files of {len(may)} rooms",
                 (f"{short(a)} ({o.room[a]}) uses {symbol}() of {short(b)} ({o.room[b]})" for a, uses in o.uses.items() for b, symbol in uses.items()
                  if o.room[a] != o.room[b] and o.room[b] not in may.get(o.room[a], ())))
    for room in LAYERED:
        place = listed(room, files)
        checks.check(f"layers of {os.path.commonpath(place)}, {len(place)} files",
                     (f"{short(a)} uses {symbol}() of {short(b)}, which is below it in CMakeLists.txt" for a, uses in o.uses.items() for b, symbol in uses.items()
                      if o.room[a] == o.room[b] == room and place[short(b)] > place[short(a)]))
    large = [sorted(short(f) for f in c) for c in o.circles() if len(c) > MAX_CIRCLE]
    wrong = [f"{len(c)} files use each other: {' '.join(c)}" for c in large]
    checks.check(f"circles of {MAX_CIRCLE} files at most", wrong)


def mutants(checks):
    """A mutant names the text that it changes, so it has to follow that text."""
    r = subprocess.run([sys.executable, ROOT / "tests/mutants/run.py", "--list"], stdout=subprocess.PIPE, text=True)
    lines = r.stdout.splitlines()
    gone = [line.removeprefix("FAILED ") for line in lines if line.startswith("FAILED")]
    checks.check(f"mutants that apply, {len(lines)}", gone if not r.returncode else [*gone, "tests/mutants/run.py --list failed"])


def main():
    sys.setrecursionlimit(10000)
    build = pathlib.Path(sys.argv[1]).resolve()
    checks, files = Checks(), sources()
    style(checks, files)
    openings(checks, files)
    cxx(checks, files)
    tidy(checks, build)
    headers(checks, files, build)
    arrows(checks, files, build)
    mutants(checks)
    print(f"{checks.passed} passed, {checks.failed} failed")
    return checks.failed != 0


if __name__ == "__main__":
    sys.exit(main())
