# SPDX-License-Identifier: Apache-2.0
"""Hooks of pytest for workers of pytest-xdist that die in a test, as by its time limit: pytest-timeout ends the process where the test is not on its main
thread, which is so now and then."""
import contextlib
import os
import pathlib
import signal

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """A worker that died, as by a time limit, ended no fixtures. What it had started has its name, but for children, which may have no environment."""
    if not error:
        return
    from harness import children
    marks = {f"PYTEST_XDIST_{key}={value}".encode() for key, value in
             (("WORKER", node.workerinput["workerid"]), ("TESTRUNUID", node.workerinput["testrunuid"]))}
    left = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if marks <= set(pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
                left += [pid, *children(pid)]
    for pid in set(left):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem, sched):
    """A test in which a worker died has failed. Others of its file are run by another worker; xdist would have that one die in this test again, and so on."""
    scope, queue = crashitem.partition("::")[0], getattr(sched, "workqueue", {})  # of --dist loadfile
    unit = queue.get(scope, {})
    if crashitem in unit:
        unit[crashitem] = True
        if all(unit.values()):
            del queue[scope]
