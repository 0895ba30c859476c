"""Which build is tested: --build DIR, else $GACC_BUILD_DIR or $GACC_BUILD, else build/test-gcc."""
import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def pytest_addoption(parser):
    parser.addoption("--build", help="build folder with bin/ and proto/gacc.protoset")


def pytest_configure(config):
    config.addinivalue_line("markers", "smoke: short enough for a build with sanitizers")
    config.addinivalue_line("markers", "campaign: random faults, about a minute")
    build = config.getoption("--build") or os.environ.get("GACC_BUILD_DIR") or os.environ.get("GACC_BUILD")
    build = pathlib.Path(build or ROOT / "build/test-gcc").resolve()
    os.environ["GACC_BUILD_DIR"] = str(build)  # test modules and trainers read it


@pytest.fixture
def daemon():
    """A gaccd of its own for this test; warnings in its log fail the test."""
    from harness import Daemon
    with Daemon() as d:
        yield d


@pytest.fixture
def supervised():
    """The same under `gaccd --supervise`: the jobs' memory survives gaccd."""
    from harness import Daemon
    with Daemon(supervise=True) as d:
        yield d
