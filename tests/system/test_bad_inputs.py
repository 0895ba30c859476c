# SPDX-License-Identifier: Apache-2.0
"""Every row of bad_inputs/ against one gaccd in which a job trains on: what comes back, and that nothing else changed.

The job has two ranks; the attacker's rows go out between its own pushes. After each group the window's outcome and the parameters are
those of the same training undisturbed, bit for bit, gaccd is the same process, and has no descriptor more than before.
"""
import os
import re

import pytest

from bad_inputs import attach_socket, checkpoints, files, gradient, http2, jobs, wire
from bad_inputs.stage import Pair, Stage
from harness import Daemon, known_types

pytestmark = pytest.mark.sanitize
TYPES = known_types()
GROUPS = {
    "attach": gradient.ATTACH,
    "sessions": gradient.SESSIONS,
    "tensors": gradient.REGISTER,
    "parameters": gradient.PARAMETERS,
    "window": gradient.WINDOW,
    "inline": gradient.PUSH_INLINE,
    "users": gradient.USERS,
    "specifications": jobs.SPECS,
    "jobs": jobs.CALLS + jobs.of_every_job_method(TYPES),
    "messages": wire.message_rows(TYPES),
    "text": wire.text_rows(TYPES),
    "calls": wire.CALLS,
    "http2": http2.ROWS,
    "attach socket": attach_socket.ROWS,
    "files": files.ROWS,
    "checkpoints": checkpoints.ROWS,
}
ROWS = [row for rows in GROUPS.values() for row in rows]
CONF = {"limits.host_memory": "1GiB", "limits.jobs_per_user": 12, "listen.mode": "0666",
        "listen.connections_per_user": attach_socket.PER_USER}
ALLOW = [" RankLost ", " (AllocationFailed|Ended) .*(limits.host_memory|Too many open files)", "connections, the most .*refused",
         "no descriptors left", "out of memory or descriptors", "Too many open files", "attach socket: uid .* closed", "a connection of uid .* is closed: ",
         " Engine(Exited|Lost) ", "(AllocationFailed|Ended|RestoreFailed) .*(restore_from|checkpoint|hostile)"]


def pytest_generate_tests(metafunc):
    if "row" in metafunc.fixturenames:
        not_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
        metafunc.parametrize("group,row", [pytest.param(group, row, id=row.id, marks=[not_root] if group == "users" else [])
                                           for group, rows in GROUPS.items() for row in rows], indirect=["group"], scope="module")


@pytest.fixture(scope="module")
def training():
    """(gaccd, the attacked pair, what each of its windows must come to)."""
    with Daemon(conf=CONF, allow=ALLOW) as daemon:
        daemon.dir.chmod(0o755)
        undisturbed = Pair(daemon, "undisturbed")
        expected = [(undisturbed.first(), undisturbed.rest())[1] for _ in range(len(GROUPS) + 2)]
        undisturbed.close()
        attacked = Pair(daemon, "attacked")
        yield daemon, attacked, iter(expected)
        attacked.close()


@pytest.fixture(scope="module")
def stage(training):
    daemon, attacked, _ = training
    s = Stage(daemon, attacked)
    yield s
    s.close()


@pytest.fixture(scope="module")
def group(request, training, stage):
    """One window of the attacked job around one group of rows."""
    daemon, attacked, expected = training
    attacked.first()
    pid, descriptors = daemon.pid, stage.descriptors()
    stage.quiet_descriptors = descriptors
    yield request.param
    assert daemon.process.poll() is None and daemon.pid == pid, f"gaccd ended with {daemon.process.returncode}:\n{daemon.log()[-4000:]}"
    numbers, parameters = attacked.rest()
    right_numbers, right_parameters = next(expected)
    assert numbers == right_numbers
    assert parameters == right_parameters
    stage.wait_descriptors(descriptors)


def test_bad_input(stage, group, row):
    answer = row.send(stage)
    said = f"{answer.code} {answer.reason}: {answer.text!r}, hint {answer.hint!r}"
    assert re.fullmatch(row.code, answer.code), said
    assert re.fullmatch(row.reason, answer.reason), said
    assert re.search(row.value, answer.text), f"{said}: no {row.value!r} in the text"
    assert re.search(row.hint, answer.hint), f"{said}: no {row.hint!r} in the hint"


def test_the_table():
    assert len(ROWS) >= 200
    assert len({row.id for row in ROWS}) == len(ROWS)
