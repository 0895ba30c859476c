# SPDX-License-Identifier: Apache-2.0
"""A bit changes on the way from one engine to another: whichever operation it belongs to, the digest at its end notices, the attempt is made again in
another communicator, and the step has the bits that it would have had."""
import pytest

from harness import Daemon, build_dir, sanitized, wait_until
from test_sharding import SMALL, TENSORS, spec, work
from training import Team
pytestmark = pytest.mark.skipif(sanitized(), reason="its runtime has its own recv")
ELEMENTS = 700 * 160 + 33 + 61 * 997 + 517
HALF = 4 * ELEMENTS // 2  # bytes that one of two parts gets of the other's sums, about
WORDS = ["bytes from another part were changed on the way", "has left the communicator", "could not go on"]  # of whoever is heard first


def steps(daemon, s, tensors, change):
    """The results of four steps; `change(pids)` before the third."""
    seen = []
    with Team(daemon, s, tensors) as team:
        for w in range(4):
            if w == 2:
                change([p.engine_pid for p in daemon.get_job(team.job).parts])
            result = team.window(work(w, tensors)).result
            seen.append((result.window, result.applied_step, result.params_digest, result.grad_norm))
    return seen


CASES = {  # the job's sharding, its tensors, and the bytes that come before the change
    "exchange": ("none", TENSORS, HALF // 2),
    "gather of sums": ("none", TENSORS, HALF + HALF // 2),
    "small sum": ("none", SMALL, 1),
    "exchange of shares": ("full", TENSORS, HALF // 2),
    "gather of parameters": ("full", TENSORS, HALF + HALF // 4),
}


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_a_changed_bit_costs_an_attempt(case, part):
    sharding, tensors, before = CASES[case]
    with Daemon(start=False, program=build_dir() / "bin/gaccd_changing", conf={"coll.stall": "5s"}, allow=["AttemptFailed", "CommunicatorLost"]) as d:
        file = d.dir / "change"
        d.start(env={"GACC_CHANGE_FILE": str(file)})
        expected = steps(d, spec(2, sharding), tensors, lambda pids: None)
        assert not d.events("AttemptFailed")
        seen = steps(d, spec(2, sharding, name="changed"), tensors, lambda pids: file.write_text(f"{pids[part]} {before}\n"))
        assert not file.exists()
        assert seen == expected
        line, *_ = d.events("AttemptFailed")
        assert ("to gather the parts' shares" in line) == (case == "gather of parameters"), line
        assert any(words in line for words in WORDS), line
