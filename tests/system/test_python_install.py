# SPDX-License-Identifier: Apache-2.0
"""How the Python package is built and what it brings along: the wheel, python -m gacc.check, and a gaccd of one's own, gacc.local()."""
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import zipfile

import pytest

from harness import alive, build_dir, next_line, wait_until
from python_package import PACKAGE, environment, gacc
from test_examples import EXAMPLES, parameters, run

GACCD = build_dir() / "bin/gaccd"
BESIDES = PACKAGE.parents[1] / "build/python"
needs_setuptools = pytest.mark.skipif(not (importlib.util.find_spec("setuptools") and importlib.util.find_spec("pip") and importlib.util.find_spec("wheel")),
                                      reason="needs the packages python3-setuptools, python3-pip and python3-wheel")


# ---- the wheel ----


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built of a copy of what it is made of, without the network."""
    top = tmp_path_factory.mktemp("tree")
    shutil.copytree(PACKAGE, top / "client/python", ignore=shutil.ignore_patterns("build", "*.egg-info", "*.protoset", "__pycache__"))
    shutil.copytree(PACKAGE.parents[1] / "proto/gacc", top / "proto/gacc")
    env = {k: v for k, v in environment().items() if k not in ("GACC_PROTOSET", "PYTHONPATH")}
    run([sys.executable, "-m", "pip", "wheel", top / "client/python", "--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check",
         "-q", "-w", top / "dist"], env)
    return next((top / "dist").glob("*.whl"))


def test_the_version_is_that_of_gaccd():
    assert run([GACCD, "--version"], environment()).split()[1] == gacc.__version__


@needs_setuptools
def test_the_wheel_is_small_and_complete(wheel):
    assert wheel.name == f"gacc-{gacc.__version__}-py3-none-any.whl" and wheel.stat().st_size < 1_000_000
    with zipfile.ZipFile(wheel) as z:
        names = set(z.namelist())
        protoset = z.read("gacc/gacc.protoset")
    sources = {str(p.relative_to(PACKAGE)) for p in PACKAGE.glob("gacc/**/*.py")}
    assert sources | {"gacc/py.typed"} <= names and not [n for n in names if "_pb2" in n]
    from gacc.messages import Types
    mine, built = Types(protoset), Types((build_dir() / "proto/gacc.protoset").read_bytes())
    for service in ("GradientService", "JobService", "NodeService"):
        a, b = (t.pool.FindServiceByName("gacc.v1." + service) for t in (mine, built))
        assert [m.name for m in a.methods] == [m.name for m in b.methods]
    for name in ("PushRequest", "JobSpec", "StepResult", "MapResponse", "ErrorDetail"):
        a, b = (getattr(t, name).DESCRIPTOR for t in (mine, built))
        assert [(f.name, f.number, f.type) for f in a.fields] == [(f.name, f.number, f.type) for f in b.fields]


@needs_setuptools
def test_the_installed_wheel_needs_nothing_of_the_source_tree(wheel, daemon, tmp_path):
    run([sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--disable-pip-version-check", "--root-user-action=ignore", "-q", "--target",
         tmp_path, wheel], environment())
    env = {k: v for k, v in environment(daemon, PYTHONPATH=tmp_path).items() if k != "GACC_PROTOSET"}
    out = run([sys.executable, "-m", "gacc.check"], env, cwd=tmp_path)
    assert "the parameters are right" in out and "mailbox              yes" in out
    assert len(parameters(run([sys.executable, EXAMPLES / "python/linear.py"], env, cwd=tmp_path))) == 1


# ---- python -m gacc.check ----


def check(env, *arguments):
    done = subprocess.run([sys.executable, "-m", "gacc.check", *arguments], env=env, capture_output=True, text=True, timeout=60)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def test_check(daemon):
    code, out = check(environment(daemon))
    assert code == 0 and [line[:20].strip() for line in out.splitlines()] == ["versions", "socket", "gaccd", "session", "shared memory", "mailbox",
                                                                               "push there and back"]
    assert "mailbox              no" in check(environment(daemon, GACC_MAILBOX="0"))[1]
    wait_until("the jobs' end", lambda: daemon.state(2) == "COMPLETED")


def test_check_with_protobuf_in_pure_python(daemon):
    """Which importing mindspore chooses for its process, and which has less to say about a service's methods."""
    code, out = check(environment(daemon, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python"))
    assert code == 0 and "the parameters are right" in out


def test_check_says_what_is_wrong(tmp_path):
    code, out = check(environment(GACC_ENDPOINT=tmp_path / "none.sock"))
    assert code == 1 and "socket               FAILED: UNAVAILABLE" in out and "is not there (start gaccd" in out
    code, out = check(environment(GACC_PROTOSET=tmp_path / "none"))
    assert code == 1 and "versions             FAILED" in out and "GACC_PROTOSET" in out


# ---- gacc.local() ----

ALONE = """
import os, sys, gacc
here = gacc.local(conf={"engine.threads": 1})
assert gacc.local() is here
print(here.directory, flush=True)
for name in "ab":
    with gacc.attach(spec={"name": name, "steps": 2, "optimizer": {"type": "sgd", "lr": 1}}) as session, gacc.connect() as client:
        session.register({"w": ("f32", (2,))})
        session.upload([[0, 0]])
        if name == "a":
            gacc.attach(spec={"name": "other", "optimizer": "sgd"}).close()
        while not session.done:
            session.fill([[1, 2]])
            session.push()
            session.wait()
        print(session.parameters["w"], client.job(name).applied_step, os.path.exists(here.endpoint), flush=True)
        if "stay" in sys.argv:
            sys.stdin.read()
    print(os.path.exists(here.directory), flush=True)
    here = gacc.local()
"""


def local_environment(tmp_path, **more):
    runtime = tmp_path / "r"
    runtime.mkdir(exist_ok=True)
    return environment(PATH=f"{GACCD.parent}:{os.environ['PATH']}", XDG_RUNTIME_DIR=runtime, **more)


def gaccds(directory):
    mark = str(directory).encode()
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() and alive(int(pid)):
                found.append(pid)
        except OSError:
            continue
    return found


def test_a_gaccd_of_ones_own_ends_with_the_last_session(tmp_path):
    out = run([sys.executable, "-c", ALONE], local_environment(tmp_path)).splitlines()
    assert out[1:] == ["[-2. -4.] 2 True", "False", "[-2. -4.] 2 True", "False"]
    assert not gaccds(out[0]) and not list((tmp_path / "r").iterdir())


def test_it_ends_with_a_process_that_is_killed(tmp_path):
    alone = subprocess.Popen([sys.executable, "-c", ALONE, "stay"], env=local_environment(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    directory = next_line(alone).strip()
    assert "True" in next_line(alone) and gaccds(directory)
    alone.send_signal(signal.SIGKILL)
    alone.wait()
    wait_until("gaccd's end", lambda: not gaccds(directory) and not pathlib.Path(directory).exists(), 30)


def test_one_that_answers_is_used(daemon):
    out = run([sys.executable, "-c", "import gacc; here = gacc.local(); print(here.endpoint, here.directory); here.close()"], environment(daemon))
    assert out.split() == [daemon.endpoint, "None"]


def test_no_gaccd_says_how_to_get_one(tmp_path):
    code = "import gacc\ntry:\n    gacc.local(private=True, program={!r})\nexcept gacc.GaccError as e:\n    print(e.reason, e)"
    out = run([sys.executable, "-c", code.format("/none/gaccd")], local_environment(tmp_path))
    assert out.startswith("NO_DAEMON NO_DAEMON: no gaccd: /none/gaccd") and "install the package gaccd" in out
    broken = tmp_path / "gaccd"
    broken.write_text("#!/bin/sh\necho it is broken >&2\nexit 2\n")
    broken.chmod(0o755)
    out = run([sys.executable, "-c", code.format(str(broken))], local_environment(tmp_path))
    assert "gaccd does not start: it is broken" in out and not list((tmp_path / "r").iterdir())


@pytest.mark.parametrize("tool", [["mypy", "--cache-dir", os.devnull, "gacc"], ["ruff", "check", "--no-cache", "."]], ids=["mypy", "ruff"])
def test_types_and_style(tool):
    """As pyproject.toml says, where these are installed (tests/requirements.txt)."""
    pytest.importorskip(tool[0])
    run([sys.executable, "-m", *tool], environment(PYTHONPATH=BESIDES), cwd=PACKAGE)
