# SPDX-License-Identifier: Apache-2.0
"""Jobs of several parts with device: cuda, on the rig: each part of a node is on a GPU of its own, and their sums are exchanged through the host. What the
sums must be, exact.py says, as for parts on the host (test_parts.py, which runs on GPUs in tests/long.sh device)."""
import concurrent.futures
import contextlib
import os
import subprocess
import sys

import numpy as np
import pytest

from batches import OPTIMIZERS
from cluster import Cluster, Node
from harness import Daemon, GaccError, Rank, rig_environment, wait_until
from test_device import gpu, pytestmark  # noqa: F401
from test_device_slots import PACKAGE, PIPES, ROOT
from test_nodes import ALLOW, over
from test_parts import QUICK, TENSORS, Compared, spec

CUDA = {"device": "cuda"}


def machine(devices=2, **more):
    d = Daemon(supervise=True, conf=QUICK, **more)
    d.env.update(rig_environment(d.dir.name, devices=devices))
    return d


def shown(d, job):
    return d.client.node.ListBuffers(job=str(job)).buffers


def gpus(c):
    return [p.gpu for p in wait_until("the views of all parts", lambda: (lambda parts: all(p.gpu for p in parts) and parts)(c.parts()))]


@pytest.mark.parametrize("more", [{}, {"master": "none"}, {"untouched": "skip", "optimizer": OPTIMIZERS["momentum dampening decay"]}])
def test_each_part_has_a_gpu_of_its_own(more):
    with machine(allow=ALLOW) as d:
        c = Compared(d, spec(**CUDA, **more))
        c.window()
        assert gpus(c) == [gpu(0), gpu(1)]
        assert [(b.part, b.segments) for b in shown(d, c.team.job) if b.kind == "exchange"] == [(0, 2), (1, 2)]
        assert d.get_job(c.team.job).host_bytes == sum(b.bytes for b in shown(d, c.team.job) if not b.kind.endswith("(cuda)"))  # the limits count them
        d.kill_engine(c.team.job, c.pids()[1])
        c.window([0, 0, 1, 2])  # part 0, whose engine has given a sum before, has none
        for pid in c.pids():
            d.kill_engine(c.team.job, pid)
        d.kill_gaccd()
        d.wait_ready()
        c.window([0, 0, 0, 1])
        assert gpus(c) == [gpu(0), gpu(1)]
        c.window()
        c.close()


def test_more_parts_than_gpus():
    with machine() as d:
        rank = Rank(d, d.submit(spec(ranks=3, parts=3, **CUDA)), 2, TENSORS, ranks=3)
        with pytest.raises(GaccError) as e:
            rank.register()
        assert "part 3 of those that the job has on this node wants a GPU of its own, and there are 2" in str(e.value)
        rank.close()
        d.allow += ["AllocationFailed", "RankLost"]


def as_sent(tensors, values):
    """In the tensors' own types; bf16 as its bits."""
    kinds = {t.name: t.dtype for t in tensors}
    for name, value in values.items():
        yield {1: value, 4: (value.view(np.uint32) >> 16).astype(np.uint16), 3: value.astype(np.float16)}[kinds[name]]


class GpuNode(Node):
    def __init__(self, **how):
        super().__init__(**how)
        self.env.update(rig_environment(self.dir.name))


def test_parts_on_two_nodes():
    """Two on a, two on b: each node's parts take its GPUs. A GPU's engine and a node's gaccd die on the way."""
    with Cluster(2, conf=QUICK, allow=[*ALLOW, " EngineLost ", " EngineExited "], kinds={"a": GpuNode, "b": GpuNode}) as cluster:
        c = over(cluster, spec(ranks=4, parts=4, **CUDA))
        c.window()
        assert gpus(c) == [gpu(0), gpu(1)] * 2
        cluster["b"].kill_engine(c.team.job, c.pids()[3])
        c.window([2, 0, 1, 2])
        with cluster.killed("b"):
            pass
        c.window()
        c.close()


def test_alone_on_its_node():
    """A part that is the only one there takes the GPU with the most free memory, as a job of one part does."""
    with Cluster(2, conf=QUICK, allow=ALLOW, kinds={"a": GpuNode, "b": GpuNode}) as cluster:
        one = over(cluster, spec(ranks=2, parts=2, **CUDA))
        one.window()
        two = over(cluster, spec(ranks=2, parts=2, name="other", **CUDA))
        two.window()
        assert [sorted(pair) for pair in zip(gpus(one), gpus(two))] == [[gpu(0), gpu(1)]] * 2
        one.close()
        two.close()


def test_slots_on_each_parts_gpu():
    """Each rank imports from the GPU of its part, which is that of its LOCAL_RANK. The bits of the same job in host memory."""
    said = []
    for more in {}, {**CUDA, "slots_on": "device", "verify_params": True}:
        with machine(allow=ALLOW + ["RankLost"]) as d:
            job = d.submit({"ranks": 2, "parts": 2, "micro_size": 2, "optimizer": OPTIMIZERS["adamw"], "clip_norm": 1.0, **more})
            with contextlib.ExitStack() as stack:
                def start(rank, device):
                    p = subprocess.Popen([sys.executable, ROOT / "tests/support/device_rank.py", "3"], text=True, **PIPES,
                                         env={**os.environ, **d.env, **PACKAGE, "GACC_ENDPOINT": d.endpoint, "GACC_JOB_ID": str(job), "RANK": str(rank),
                                              "WORLD_SIZE": "2", **({"LOCAL_RANK": str(device)} if more else {})})
                    stack.callback(p.wait)
                    stack.callback(p.kill)
                    return p
                ranks = [start(0, 0), start(1, 1)]
                answers = []
                if more:
                    wait_until("both parts", lambda: len([b for b in shown(d, job) if b.kind == "slots in reserve (cuda)"]) == 2)
                    wait_until("the views", lambda: d.get_job(job).gpu_bytes == sum(b.bytes for b in shown(d, job) if b.kind.endswith("(cuda)")))
                for rank in ranks:
                    rank.stdin.write("\n" * 3)
                    rank.stdin.flush()
                for rank in ranks:
                    out, err = rank.communicate(timeout=60)
                    assert rank.returncode == 0, err
                    answers.append(out.splitlines()[-1])
                assert answers[0] == answers[1]
                said.append(answers[0])
    assert len(said[0]) > 800 and said[0] == said[1]


def test_a_trainer_on_another_parts_gpu():
    with machine(allow=ALLOW + ["RankLost"]) as d:
        job = d.submit({"ranks": 2, "parts": 2, "micro_size": 2, "optimizer": OPTIMIZERS["adamw"], "slots_on": "device", **CUDA})
        ranks = [subprocess.Popen([sys.executable, ROOT / "tests/support/device_rank.py", "1"], text=True, **PIPES,
                                  env={**os.environ, **d.env, **PACKAGE, "GACC_ENDPOINT": d.endpoint, "GACC_JOB_ID": str(job), "RANK": str(r),
                                       "WORLD_SIZE": "2", "LOCAL_RANK": str(1 - r)}) for r in range(2)]
        for r, rank in enumerate(ranks):
            out, err = rank.communicate(timeout=60)
            assert rank.returncode == 1 and f"the job's slots are in the memory of {gpu(r)}, and this trainer uses {gpu(1 - r)}" in err, err


def test_what_cannot_be():
    with machine() as d:
        for more, words in (({"sharding": "full"}, "device: cuda with sharding"), ({"gpu": gpu(0)}, "gpu with 2 parts"),
                            ({"accumulate_dtype": "f64"}, "f64")):
            with pytest.raises(GaccError) as e:
                d.submit(spec(**CUDA, **more))
            assert words in str(e.value)


def test_first_parameters_come_from_one_part():
    """The rank of part 1 gives none: what part 0 has been given goes to the other GPU, masters included."""
    values = {t[0]: np.random.default_rng(5).standard_normal(t[1]).astype(np.float32) for t in TENSORS}
    digests = []
    with machine(allow=ALLOW) as d:
        for name, more in ("host", {}), ("device", CUDA):
            job = d.submit(spec(ranks=2, name=name, **more))
            ranks = [Rank(d, job, r, TENSORS, ranks=2) for r in range(2)]
            given = dict(zip(values, as_sent(ranks[0].tensors, values)))
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda r: r.start(None if r.rank else given), ranks))
                assert all(r.params()[n].tobytes() == given[n].tobytes() for r in ranks for n in given)
                for micro in range(2):
                    for r in ranks:
                        r.push({n: v * (1 + micro + r.rank) for n, v in given.items() if n != "brain"} | {"brain": given["brain"]})
                digests.append({pool.submit(r.wait_step).result().result.params_digest for r in ranks})
            for r in ranks:
                r.detach()
                r.close()
    assert len(digests[0]) == 1 and digests[0] == digests[1]
