# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of a rank inside a window, and gaccd's restart: the successor gives exactly what was not counted, and all parameters have the bits of the run
that nobody disturbed."""
import hashlib
import os
import signal
import subprocess
import sys

import pytest
import torch
from harness import Daemon, wait_until

from loops import fresh_name, gacc, loss_of, model
from ranks import Rank

WINDOWS = 5


def bits(m):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in m.parameters())).hexdigest()


def by_missing(rank, world, job, library, kill=None):
    """Gives what it owes, dealt by (window, micro, rank). `library`: a loop that knows nothing of what is missing, and after a restart computes its window
    anew. kill: (window, micro) after which it kills itself."""
    m = model()
    data = torch.utils.data.TensorDataset(*(torch.randn(120, n, generator=torch.Generator().manual_seed(n)) for n in (6, 2)))
    with gacc.torch.Optimizer(m, "adamw", lr=0.02, micro_size=3, job=job, rank=rank, world=world, boundary="step" if library else "count") as opt:
        sampler = gacc.torch.Sampler(data, 4, opt, seed=5)
        while opt.window < WINDOWS:
            window = opt.window
            for micro in range(3) if library else opt.missing:
                x, y = data[sampler.indices(window, micro)]
                opt.micro(weight=len(x))
                loss_of(m, (x, y)).backward()
                if not library:
                    opt.step(weight=len(x))
                if kill == (window, micro):
                    os.kill(os.getpid(), signal.SIGKILL)
            if library:
                opt.step()
        return opt.last.applied_step, bits(m)


@pytest.fixture(scope="module")
def undisturbed(node):
    ends = {}
    for world in (1, 2):
        job = fresh_name()
        ends[world] = [r.result() for r in [Rank(node, by_missing, r, world, job, False) for r in range(world)]]
    assert ends[2][0] == ends[2][1] and ends[1][0][0] == ends[2][0][0] == WINDOWS and ends[1][0] != ends[2][0]
    return ends


@pytest.mark.parametrize("library", [False, True], ids=["missing", "library"])
@pytest.mark.parametrize("world", [1, 2])
def test_a_rank_that_is_killed_inside_a_window(node, undisturbed, world, library):
    """`library`: what was counted before its death is not counted again."""
    job = fresh_name()
    ranks = [Rank(node, by_missing, r, world, job, library, (2, 1) if r == world - 1 else None) for r in range(world)]
    assert ranks[-1].ended() == -signal.SIGKILL
    ranks[-1] = Rank(node, by_missing, world - 1, world, job, library)
    assert [r.result() for r in ranks] == undisturbed[world]


def test_a_restart_of_gaccd_inside_a_window(undisturbed):
    """The loop does not notice it."""
    with Daemon(supervise=True) as d:
        rank = Rank(d, by_missing, 0, 1, fresh_name(), False)
        wait_until("a window", lambda: d.client.jobs.List().jobs and d.get_job(1).window >= 1, 60)
        d.kill_gaccd()
        assert rank.result() == undisturbed[1][0]


END = """
import sys
from loops import batch, gacc, loss_of, model
opt = gacc.torch.Optimizer(model(), "sgd", lr=0.1, micro_size=2, job=sys.argv[1])
if sys.argv[2] == "raise":
    raise ValueError("a bug")
"""


def test_the_end_of_a_process(node):
    """Without close(): a program that has come to its end leaves for good; one that an exception has ended may come back."""
    names = {how: fresh_name() for how in ("end", "raise")}
    env = {**os.environ, "GACC_ENDPOINT": node.endpoint, "GACC_TEST": str(node.dir)}
    ends = [subprocess.Popen([sys.executable, "-c", END, name, how], env=env, stderr=subprocess.DEVNULL) for how, name in names.items()]
    assert [e.wait(120) for e in ends] == [0, 1]
    jobs = {j.spec.name: j for j in node.client.jobs.List(all=True).jobs}
    wait_until("the job's end", lambda: node.state(jobs[names["end"]].id) == "COMPLETED")
    assert node.state(jobs[names["raise"]].id) == "RUNNING"
    gacc.torch.Optimizer(model(), "sgd", lr=0.1, micro_size=2, job=names["raise"], rank=0, world=1, endpoint=node.endpoint).close()
    wait_until("the job's end", lambda: node.state(jobs[names["raise"]].id) == "COMPLETED")
