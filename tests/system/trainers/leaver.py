#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A rank of a launched job of two: rank 0 gives its part of one window, then its process ends with 0 without a word, or with
`done` after it has taken its leave; rank 1 begins after a pause and trains to the end, with as long a pause in the second window.

    leaver.py inline|mapped SECONDS [done]
"""
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import Rank  # noqa: E402

rank = Rank(os.environ["GACC_ENDPOINT"], os.environ["GACC_JOB_ID"], int(os.environ["RANK"]), [("w", [3])], ranks=2,
            inline=sys.argv[1] == "inline")
rank.start({"w": [0, 0, 0]})
if rank.rank == 0:
    rank.push([[1, 1, 1]])
    if "done" in sys.argv:
        rank.detach()
    os._exit(0)
done = False
while not done:
    if rank.window < 2:
        time.sleep(float(sys.argv[2]))
    rank.push([[1, 1, 1]])
    done = rank.wait_step().job_done
