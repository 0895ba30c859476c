# SPDX-License-Identifier: Apache-2.0
"""Which build is tested: --build DIR, else $GACC_BUILD_DIR or $GACC_BUILD, else build/test-gcc. And which files are:
all, or with $GACC_SHARE=k/n the k-th of n shares (from 0), drawn by $GACC_SAMPLE and the file's name."""
import os
import pathlib
import sys
import zlib

import pytest

from dead_workers import pytest_handlecrashitem, pytest_testnodedown  # noqa: F401 (hooks)

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "build/python"))  # tests/requirements.txt; what the system has comes first


def pytest_addoption(parser):
    parser.addoption("--build", help="build folder with bin/ and proto/gacc.protoset")


def pytest_configure(config):
    config.addinivalue_line("markers", "smoke: short enough for a build with sanitizers")
    config.addinivalue_line("markers", "sanitize: runs under ASan+UBSan and under TSan in every test run")
    config.addinivalue_line("markers", "campaign: random faults, about a minute")
    config.addinivalue_line("markers", "alone: measures what other tests beside it would change")
    config.addinivalue_line("markers", "failpoints: needs a build with -DGACC_FAILPOINTS=ON")
    build = config.getoption("--build") or os.environ.get("GACC_BUILD_DIR") or os.environ.get("GACC_BUILD")
    build = pathlib.Path(build or ROOT / "build/test-gcc").resolve()
    os.environ["GACC_BUILD_DIR"] = str(build)  # test modules and trainers read it


# Files that take minutes, the longest first. They begin first, as each is one worker's: one that is begun last leaves the other cores idle.
LONG = [f"test_{name}.py" for name in ("device", "bundle", "random_jobs", "large_sets", "full_disk", "campaign", "packaging", "kills", "both_ways")]


def pytest_collection_modifyitems(config, items):
    for i in items:
        if i.get_closest_marker("campaign"):
            i.add_marker(pytest.mark.timeout(0))  # as long as its size says; its stage has a limit
    items.sort(key=lambda i: LONG.index(i.path.name) if i.path.name in LONG else len(LONG))  # the others stay in their order
    k, n = map(int, os.environ.get("GACC_SHARE", "0/1").split("/"))
    sample = os.environ.get("GACC_SAMPLE", "")

    def is_drawn(item):
        draw = zlib.crc32(f"{sample}/{item.path.name}".encode()) % n
        return draw == k or item.get_closest_marker("smoke") or item.get_closest_marker("campaign")

    others = [i for i in items if not is_drawn(i)]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [i for i in items if is_drawn(i)]


MISSING = ("needs the package", "(package ", "needs mlp", "no dpkg", "needs root", "only root", "no safetensors")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """GACC_COMPLETE=1 (tests/run.sh as root, with all packages installed): nothing that a test needs may be missing."""
    report = (yield).get_result()
    if report.skipped and os.environ.get("GACC_COMPLETE") == "1" and any(m in str(report.longrepr) for m in MISSING):
        report.outcome, report.longrepr = "failed", f"skipped on a machine that could run it: {report.longrepr}"
    if report.when == "call":
        item.call_failed = report.failed


def run_daemon(request, **how):
    from harness import Daemon
    with Daemon(**how) as d:
        yield d
        d.test_failed = getattr(request.node, "call_failed", False)


@pytest.fixture
def daemon(request):
    """A gaccd of its own for this test; warnings in its log fail the test."""
    yield from run_daemon(request)


@pytest.fixture
def supervised(request):
    """The same under `gaccd --supervise`: the jobs' memory survives gaccd."""
    yield from run_daemon(request, supervise=True)


@pytest.fixture
def one_thread(request):
    """A gaccd whose engines have one thread: passes and updates take longer, and are hit more often."""
    yield from run_daemon(request, conf={"engine.threads": 1})
