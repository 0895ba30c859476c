# SPDX-License-Identifier: Apache-2.0
"""The line that gaccctl run shows on a terminal."""
import re

import pytest

from cli import EXAMPLES, LINEAR, cluster  # noqa: F401 (fixture)
from harness import build_dir
from terminal import lines_shown, on_terminal

STEP = r"step (\d+)/1500, [\d.e+]+ a second(, \d+:\d\d left)?, loss [\d.e+-]+, batch \d+, last: rank [01] \(\+\d+ ms\)"


def run(cluster, *words, columns=200, **env):
    """gaccctl run of two ranks and 1500 steps: lines on the terminal, standard output."""
    command = [build_dir() / "bin/gaccctl", "run", "-n", 2, "-f", EXAMPLES / "linear.yaml", "--set", "steps=1500", *words]
    text, out, status = on_terminal(command, {**cluster.env, "TERM": "xterm", **env}, columns)
    assert status == 0, text + out
    return lines_shown(text), out


def test_steps_are_shown(cluster):
    lines, out = run(cluster, "--tee", "none", "--", LINEAR)
    found = [re.fullmatch(STEP, line) for line in lines if "a second" in line]
    assert found and all(found), lines
    assert all(line.startswith("step ") for line in lines) and "a second" not in out


def test_the_line_makes_way(cluster):
    """For what gaccctl says: none of it stands behind the line."""
    text, out, status = on_terminal([build_dir() / "bin/gaccctl", "run", "-n", 1, "-f", EXAMPLES / "linear.yaml", "--set", "steps=1500", "--tee", "none",
                                     "--", "sh", "-c", f"{LINEAR}; exit 3"], {**cluster.env, "TERM": "xterm"})
    assert status == 3 and re.search(r"(^|\n|\x1b\[K)--- rank 0 ", text) and "step " in text.split("--- rank 0")[0], text
    assert text.rstrip().endswith("---"), text


def test_a_straggler_is_named(cluster):
    lines, _ = run(cluster, "--tee", "none", "--", "sh", "-c", f"[ $RANK = 0 ] || sleep 4; exec {LINEAR}")
    assert "step 0/1500, waits for rank 1" in lines, lines


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"TERM": ""}])
def test_terminals_that_cannot_erase_a_line(cluster, env):
    assert not run(cluster, "--tee", "none", "--", LINEAR, **env)[0]


def test_a_narrow_terminal(cluster):
    lines, _ = run(cluster, "--tee", "none", "--", LINEAR, columns=24)
    assert lines and all(len(line) < 24 for line in lines)
