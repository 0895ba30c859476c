# SPDX-License-Identifier: Apache-2.0
"""Threads about several ranks: other numbers of micro-batches, parameters that only some use, NaN on one of them, who is late, the same result however the
work is cut."""
import math
import threading

import pytest
import torch
from loops import batch, difference, fresh_name, gacc, loss_of, model

from scalar import mean, ranks, scalar


def pair():
    m = torch.nn.ModuleDict({"a": scalar(), "b": scalar()})
    m["a"].weight.data.zero_()
    return m


def one_half(m, which, value):
    return mean(m[which], [value])


def weights(m):
    return m["a"].weight.item(), m["b"].weight.item()


def test_easyr1_11004_ranks_with_other_numbers_of_micro_batches(endpoint):
    """Batches by size of the samples gave ranks other numbers of micro-batches, and the ranks waited for each other for ever. In gacc a rank that has
    less says flush() or finish(); the others' steps have its true share, and all ranks end with the same parameters."""
    counts = (5, 2, 3)

    def give(opt, m, rank):
        for _ in range(counts[rank]):
            mean(m, [float(rank + 1)]).backward()
            opt.step()
        opt.finish()
        return opt.session.applied_step
    first = (2 * 1 + 2 * 2 + 2 * 3) / 6
    second, third = (2 * 1 + 3) / 3, 1.0
    for steps, m in ranks(3, give, 2, fresh_name()):
        assert steps == 3 and m.weight.item() == pytest.approx(-first - second - third, rel=1e-6)


def test_pytorch_69031_a_parameter_unused_in_the_last_micro_batch(endpoint):
    """DistributedDataParallel reduced only what the last micro-batch before the step had used: gradients of earlier ones stayed on their rank. In gacc
    each micro-batch says which tensors it touched, and those of all are in the sum."""
    def give(opt, m, rank):
        one_half(m, "a", 4.0 * (rank + 1)).backward()
        opt.step()
        one_half(m, "b", 8.0).backward()
        opt.step()
    for _, m in ranks(2, give, 2, fresh_name(), pair):
        assert weights(m) == (-(4 + 8) / 4, -(8 + 8) / 4)


def test_pytorch_124193_a_parameter_that_one_rank_used_once(endpoint):
    """Inside no_sync what was used was not remembered, so ranks drifted apart where only one of them had used a parameter. In gacc all have the same
    bits, and a window in which nobody touched it does not decay it."""
    def give(opt, m, rank):
        for window in range(2):
            for micro in range(2):
                which = "b" if (window, micro, rank) == (0, 0, 1) else "a"
                one_half(m, which, 4.0).backward()
                opt.step()
        return opt.last.params_digest
    trained = ranks(2, give, 2, fresh_name(), pair)
    assert trained[0][0] == trained[1][0]
    assert all(weights(m) == (-3 - 4, -1) for _, m in trained)


def test_composer_9_layers_that_are_dropped_at_random(endpoint):
    """Stochastic depth uses other layers in each micro-batch, so every micro-batch was synchronized, which costs time. gacc has one sum on the node and
    nothing to synchronize; the result is that of one process."""
    def uses(window, micro, rank):
        return "ab"[hash((window, micro, rank, 3)) % 2]

    def give(opt, m, rank):
        for window in range(3):
            for micro in range(2):
                one_half(m, uses(window, micro, rank), float(2 + window + rank)).backward()
                opt.step()
    one = pair()
    torchs = torch.optim.SGD(one.parameters(), lr=1.0)
    for window in range(3):
        for micro in range(2):
            for rank in range(2):
                (one_half(one, uses(window, micro, rank), float(2 + window + rank)) / 4).backward()
        torchs.step()
        torchs.zero_grad()
    for _, m in ranks(2, give, 2, fresh_name(), pair):
        assert weights(m) == pytest.approx(weights(one))


def nan_on_one_rank(endpoint, counts):
    """[(outcomes, weight)] of two ranks, the second of which has a NaN in window 1. counts: micro-batches of each rank in a window."""
    def give(opt, m, rank):
        outcomes = []
        for window in range(3):
            for micro in range(counts):
                mean(m, [math.nan if (window, micro, rank) == (1, 0, 1) else 2.0]).backward()
                opt.step()
            outcomes.append((opt.stepped, opt.last.skip_reason))
        return outcomes
    return [(told, m.weight.item()) for told, m in ranks(2, give, counts, fresh_name())]


def test_bmtrain_108_one_rank_has_nan(endpoint):
    """Skipping a step on all ranks because one of them had NaN needs a reduction of the user's own, and without it the others step. gacc skips the window
    on every rank, says so to each, and goes on."""
    assert nan_on_one_rank(endpoint, 1) == [([(True, ""), (False, "NONFINITE"), (True, "")], -4)] * 2


def test_colossalai_1175_ranks_that_do_not_agree_about_an_overflow(endpoint):
    """A rank that saw an overflow left out a collective that the others waited in. gacc finds it in the sum, for all ranks at once, also if it was in an
    early micro-batch of a window."""
    assert nan_on_one_rank(endpoint, 3) == [([(True, ""), (False, "NONFINITE"), (True, "")], -4)] * 2


def test_nccl_1324_which_rank_is_it(endpoint):
    """A collective that hangs does not say whom it waits for. A wait of gacc with a timeout raises STALLED and names the ranks that owe micro-batches; it
    may be repeated, and ends when they come."""
    may_push, told = threading.Event(), {}

    def give(opt, m, rank):
        session = opt.session
        if rank == 2:
            assert may_push.wait(60)
        session.fill({"weight": torch.full((1, 1), 3.0).numpy()})
        session.push()
        if rank == 0:
            try:
                with pytest.raises(gacc.GaccError) as e:
                    session.wait(timeout=0.5)
                told.update(reason=e.value.reason, ranks=e.value.missing_ranks)
            finally:
                may_push.set()
        return session.wait(timeout=60).last_rank
    assert [last for last, _ in ranks(3, give, 1, fresh_name())] == [2, 2, 2]
    assert told == {"reason": "STALLED", "ranks": (2,)}


def test_nccl_1260_which_ranks_do_not_join(endpoint):
    """With thousands of ranks a timeout should say which ones have not joined. A wait of gacc that times out names all of them, on each rank that waits,
    and none that has given its share."""
    may_push, told, asked = threading.Event(), {}, threading.Barrier(2)

    def give(opt, m, rank):
        session = opt.session
        if rank >= 2:
            assert may_push.wait(60)
        session.fill({"weight": torch.full((1, 1), 3.0).numpy()})
        session.push()
        if rank < 2:
            try:
                with pytest.raises(gacc.GaccError) as e:
                    session.wait(timeout=1)
                told[rank] = e.value.reason, e.value.missing_ranks
                asked.wait(60)
            finally:
                may_push.set()
        return session.wait(timeout=60).applied
    assert [applied for applied, _ in ranks(4, give, 1, fresh_name())] == [True] * 4
    assert told == {rank: ("STALLED", (2, 3)) for rank in (0, 1)}


def test_nccl_1730_healthy_for_as_long_as_it_hangs(monkeypatch):
    """The health report said OK until the collective's timeout. After stall_warn the state of a job in gacc is STALLED; its description and an event name
    the rank. Nothing ends because of it, and when the rank comes, the step is taken."""
    from harness import Daemon, wait_until
    job, seen = fresh_name(), []
    with Daemon(allow=[r" RankLate "]) as node:
        monkeypatch.setenv("GACC_ENDPOINT", node.endpoint)

        def look():
            with gacc.connect() as client:
                late = [e for e in client.events(job) if e.reason == "RankLate"]
                return client.job(job), late

        def give(opt, m, rank):
            if rank == 1:
                wait_until("the event", lambda: look()[1])
                seen.append(look())
            mean(m, [2.0]).backward()
            opt.step()
            return opt.last.outcome
        assert [told for told, _ in ranks(2, give, 1, job, spec={"timeouts": {"stall_warn": 0.5}})] == ["APPLIED"] * 2
        described, late = seen[0]
        assert described.state == "STALLED" and list(described.missing_ranks) == [1] and "rank 1" in late[0].message


def trained(world, micro_size, job=None):
    """Eight batches in each of three windows, dealt to `world` ranks."""
    def give(opt, m, rank):
        for window in range(3):
            for micro in range(micro_size):
                b = batch(window, micro * world + rank)
                loss_of(m, b).backward()
                opt.step(weight=len(b[0]))
        return opt.last.grad_norm
    return ranks(world, give, micro_size, fresh_name(), model)


def test_deepspeed_5583_the_same_batch_cut_another_way(endpoint):
    """The same number of samples in a step, as 1 x 4, 2 x 2 or 4 x 1 ranks and micro-batches, gave other losses and norms. With gacc they agree to what
    f32 can: the divisor is the same."""
    results = [trained(world, 8 // world)[0] for world in (1, 2, 4)]
    for norm, m in results[1:]:
        assert norm == pytest.approx(results[0][0], rel=1e-5) and difference(m, results[0][1]) < 1e-6


def test_espnet_4136_fewer_ranks_and_more_accumulation(endpoint):
    """The loss was multiplied by the number of ranks and divided by the accumulation, so 2 ranks x 2 micro-batches had half the gradient of 4 x 1. What
    gacc divides by is what came: 1, 2 and 4 ranks have the same step."""
    values = [1.0, 2.0, 4.0, 9.0]

    def espnet(world):
        k, m = 4 // world, scalar()
        for value in values:
            (mean(m, [value]) * world / k / world).backward()  # / world: the all-reduced average
        return m.weight.grad.item()
    assert [espnet(world) for world in (4, 2, 1)] == [16, 8, 4]

    def give(opt, m, rank):
        for micro in range(4 // opt.session.world_size):
            mean(m, [values[micro * opt.session.world_size + rank]]).backward()
            opt.step()
    for world in (4, 2, 1):
        assert [m.weight.item() for _, m in ranks(world, give, 4 // world, fresh_name())] == [-4] * world


def test_torchtitan_1720_the_same_run_twice(endpoint):
    """Two runs of one configuration on the same machine had other curves. gacc adds in the order of micro-batches and ranks, not in that of arrival:
    the same bits, each time, whoever comes first."""
    runs = [trained(3, 2) for _ in range(3)]
    assert len({norm for run in runs for norm, _ in run}) == 1
    assert all(difference(m, runs[0][0][1]) == 0 for run in runs for _, m in run)
