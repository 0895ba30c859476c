# SPDX-License-Identifier: Apache-2.0
"""The examples for PyTorch: before and after end at the same parameters, and the six lines train."""
import contextlib
import io
import pathlib
import re
import runpy

import pytest

from loops import fresh_name
from ranks import Rank

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "client/examples/python"


def printed(name):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return out.getvalue()


@pytest.mark.parametrize("pair", ["torch", "accelerate", "colossalai"])
def test_before_and_after(node, pair):
    pytest.importorskip(pair)
    before, after = [Rank(node, printed, f"{pair}_{when}.py") for when in ("before", "after")]
    want = before.result()
    assert after.result() == want and re.search(r"parameters [1-9]|weight is 2.04000", want)


@pytest.mark.parametrize("world", [1, 2])
def test_six_lines(node, world):
    name = fresh_name()
    ranks = [Rank(node, printed, "torch_six_lines.py", GACC_WORLD_SIZE=world, GACC_RANK=r, GACC_JOB_ID=name) for r in range(world)]
    out = [r.result() for r in ranks]
    assert all(o == out[0] for o in out)
    losses = [float(v) for v in re.findall(r"loss ([0-9.]+)", out[0])]
    assert len(losses) == 4 and losses[-1] < losses[0] / 2
