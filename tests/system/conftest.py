# SPDX-License-Identifier: Apache-2.0
"""Which build is tested: --build DIR, else $GACC_BUILD_DIR or $GACC_BUILD, else build/test-gcc."""
import os
import pathlib
import sys

import pytest

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
