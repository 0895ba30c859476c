# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of jobs whose arenas are on a device: the rig's, which stands for a GPU."""
import os

import numpy as np
import pytest

from batches import OPTIMIZERS
from harness import Daemon, Rank, rig_environment
from saving_job import Job, read_safetensors

_names = iter(range(10 ** 6))


def machine(**more):
    return Daemon(env=rig_environment(f"saving{os.getpid()}.{next(_names)}", **more), supervise=True)


@pytest.mark.parametrize("first, then", [("cuda", "host"), ("host", "cuda"), ("cuda", "cuda")])
def test_checkpoints_go_from_one_to_the_other(first, then):
    with machine() as d:
        a = Job(d, device=first)
        a.step(2)
        saved = a.save()
        a.step(1)
        b = Job(d, device=then, restore_from=saved.path)
        assert b.ranks[0].window == 2
        b.step(1)
        assert b.params() == a.params()
        again = b.save()
        names = ["model.safetensors", "optimizer.safetensors"]
        c = a.save()
        assert [read_safetensors(f"{again.path}/{n}") for n in names] == [read_safetensors(f"{c.path}/{n}") for n in names]
        a.leave()
        b.leave()


def test_they_pass_through_pinned_memory(tmp_path):
    """The driver makes no long copy to other memory here, and what it is asked to copy is all there: in a few pieces of 1 MiB and a short one."""
    with machine(pageable=64 << 10) as d:
        job = d.submit({"ranks": 1, "micro_size": 1, "steps": 0, "device": "cuda", "optimizer": OPTIMIZERS["adamw"], "checkpoint": {"dir": str(tmp_path)}})
        rank = Rank(d, job, 0, [("w", [700_000])], 1)
        rank.start({"w": np.arange(700_000, dtype=np.float32)})
        rank.push([np.linspace(-1, 1, 700_000, dtype=np.float32)], weight=1)
        rank.wait_step()
        d.client.jobs.SaveCheckpoint(job=str(job), wait=True, request_id=os.urandom(16))
        (saved,) = tmp_path.glob("step-1-*")
        params = rank.params()["w"]
        assert read_safetensors(saved / "model.safetensors")["w"][2] == params.tobytes() and (params != np.arange(700_000)).any()
        rank.detach()
        rank.close()
