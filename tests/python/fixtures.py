# SPDX-License-Identifier: Apache-2.0
"""What the tests of gacc.torch, of the adapters and of users' threads (tests/pains) share: real torch and a real gaccd. Run by a Python that has torch,
grpcio, protobuf, numpy and pytest. Tests of a library that is not there are skipped. Which build: GACC_BUILD_DIR, else build/test-gcc."""
import os
import pathlib
import sys
from multiprocessing import forkserver

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("GACC_BUILD_DIR", str(ROOT / "build/test-gcc"))
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(ROOT / "tests/system"))  # harness, python_package
from dead_workers import pytest_handlecrashitem, pytest_testnodedown  # noqa: E402, F401 (hooks)
# of the processes that ranks.py starts
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / p) for p in ("tests/python", "tests/pains", "tests/system", "client/python")] + [os.environ.get("PYTHONPATH", "")])


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: measures what other tests beside it would change")


def pytest_sessionfinish():
    """The process from which ranks.py forks ends with this one, not a little later."""
    forkserver._forkserver._stop()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    report = (yield).get_result()
    if report.when == "call":
        item.call_failed = report.failed


@pytest.fixture(scope="module")
def node():
    """A gaccd for all tests of a file; warnings in its log fail them, but for what tests bring about on purpose."""
    from harness import Daemon
    allow = [r" StepSkipped job=", r" RankLost job=", r" UnusedRules "]
    with Daemon(conf={"limits.jobs": 64, "limits.jobs_per_user": 64}, allow=allow) as d:
        yield d


@pytest.fixture(autouse=True)
def no_rank(monkeypatch):
    for name in ("GACC_JOB_ID", "TORCHELASTIC_RUN_ID", "GACC_RANK", "GACC_WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def endpoint(node, monkeypatch):
    monkeypatch.setenv("GACC_ENDPOINT", node.endpoint)
    return node.endpoint
