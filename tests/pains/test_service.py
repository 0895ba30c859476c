# SPDX-License-Identifier: Apache-2.0
"""Threads about services that accumulate for their clients: requests that are repeated, lost, or counted at the wrong time, and about memory."""
import numpy as np
import pytest
import torch
from loops import fresh_name, gacc, refused

from scalar import mean, optimizer, scalar

TENSORS = {"w": ("f32", (1,))}


@pytest.fixture
def session(endpoint):
    """A job with three micro-batches in a window, SGD with lr 1, without torch."""
    with gacc.attach(spec={"name": fresh_name(), "ranks": 1, "micro_size": 3, "optimizer": {"type": "sgd", "lr": 1.0}}) as s:
        s.register(TENSORS)
        s.upload({"w": np.zeros(1, np.float32)})
        yield s


def push(s, value, micro=None, **how):
    s.fill({"w": np.full(1, value, np.float32)})
    return s.push(micro=micro, **how).result


def test_skyrl_2035_a_request_that_is_sent_again(session):
    """The answer to a request was lost, the client sent it again, and its gradients were added twice, without an error. A micro-batch of gacc has a
    number: sent again it is answered `duplicate`, or `committed` after the step, and the sum has it once."""
    assert [push(session, 3.0, micro=0) for _ in range(3)] == ["counted", "duplicate", "duplicate"]
    assert [push(session, 3.0), push(session, 3.0)] == ["counted", "counted"]
    step = session.wait()
    assert (step.micro_count, session.parameters["w"][0]) == (3, -3)


def test_skyrl_2008_only_the_last_request_counted(session):
    """Of several requests before a step only the last one's gradients were in it. Each push of gacc adds to the window's sum."""
    for value in (1.0, 2.0, 9.0):
        push(session, value)
    assert session.wait().micro_count == 3 and session.parameters["w"][0] == -4


def test_skyrl_2048_the_order_of_chunks(session):
    """Chunks that came in another order were summed in that order, and gave other bits. In gacc a chunk's place is its number: one that comes too early is
    refused, and not counted."""
    with refused("OUT_OF_ORDER", "micro-batch 2 of rank 0: 0 of 3 is expected next"):
        push(session, 9.0, micro=2)
    assert [push(session, value, micro=micro) for micro, value in enumerate((1.0, 2.0, 9.0))] == ["counted"] * 3
    assert session.wait().micro_count == 3 and session.parameters["w"][0] == -4


def test_arctic_platform_43_a_boundary_that_nobody_asked_for(session):
    """The engine under the service stepped when its own counter said so, in the middle of a client's step. A window of gacc closes when all its
    micro-batches are there, or when its ranks say flush(), and at no other time."""
    for _ in range(2):
        push(session, 3.0)
        assert session.window == 0 and session.parameters["w"][0] == 0
    session.flush()
    assert session.wait().micro_count == 2 and session.parameters["w"][0] == -3
    push(session, 3.0)
    assert session.window == 1 and session.parameters["w"][0] == -3


def gradients_of(k, m, opt):
    """Bytes of gradients that this process keeps, after each of k micro-batches."""
    kept = []
    for i in range(k):
        mean(m, [float(i)]).backward()
        kept.append(sum(p.grad.nbytes for p in m.parameters() if p.grad is not None))
        opt.step()
    return kept


def test_fairscale_752_memory_between_micro_batches(endpoint):
    """Accumulating without synchronization kept a whole gradient on each rank between micro-batches. With gacc a rank keeps none: it is in the daemon's
    memory, once for the node, before step() is called."""
    m = scalar()
    mean(m, [1.0]).backward()
    assert m.weight.grad is not None
    m.weight.grad = None
    with optimizer(m, 4) as opt:
        assert gradients_of(8, m, opt) == [0] * 8


def test_torchtitan_1710_synchronized_in_each_micro_batch(endpoint):
    """Either gradients were synchronized in each micro-batch, or they cost memory on each rank. In gacc a micro-batch is only added up, and a window of 8 is
    closed once, with its last push."""
    m = scalar()
    with optimizer(m, 8) as opt:
        windows = []
        for _ in range(8):
            mean(m, [1.0]).backward()
            opt.step()
            windows.append((opt.window, opt.stepped))
    assert windows == [(0, False)] * 7 + [(1, True)]


@pytest.mark.parametrize("each", [False, True])
def test_accelerate_2531_sync_each_batch(endpoint, each):
    """GradientAccumulationPlugin got sync_each_batch because no_sync costs memory. With gacc's adapter both settings train the same, and keep no
    gradients."""
    accelerate = pytest.importorskip("accelerate")
    plugin = accelerate.utils.GradientAccumulationPlugin(num_steps=2, sync_each_batch=each)
    acc, m = accelerate.Accelerator(cpu=True, gradient_accumulation_plugin=plugin), scalar()
    inner = optimizer(m, 2)
    m, opt = acc.prepare(m, inner)
    gacc.accelerate.attach(acc, inner)
    for value in (2.0, 4.0, 6.0, 8.0):
        with acc.accumulate(m):
            acc.backward(mean(m, [value]))
            assert m.weight.grad is None
            opt.step()
            opt.zero_grad()
    assert m.weight.item() == -3 - 7
    inner.close()
    assert isinstance(opt, torch.optim.Optimizer)
