# SPDX-License-Identifier: Apache-2.0
"""Push.lr: a window's learning rate that its trainers give; durable with the window, refused when two ranks differ."""

import numpy as np
import pytest

from harness import Daemon, GaccError, Rank, wait_until
from saving_job import SHAPES, Job
from training import Team

W = [("w", [4])]
SCHEDULE = {"type": "cosine", "warmup_steps": 4, "total_steps": 20}
F = np.float32


@pytest.fixture(scope="module")
def node():
    with Daemon() as d:
        yield d


def sgd(ranks=2, micro_size=1, **spec):
    return {"ranks": ranks, "micro_size": micro_size, "optimizer": {"type": "sgd", "lr": 1.0}, "schedule": SCHEDULE, **spec}


def ones():
    return {"w": np.ones(4, F)}


def scheduled(step):
    """The schedule's learning rate of the step with this number; the base is 1."""
    return step / 4 if step < 4 else (1 + np.cos(np.pi * (step - 4) / 16)) / 2


def history(d, job):
    return list(d.client.jobs.History(job=str(job)))[::-1]


def refused(call, *texts, **fields):
    with pytest.raises(GaccError) as e:
        call(**fields)
    assert e.value.reason == "LR_MISMATCH" and e.value.code == "FAILED_PRECONDITION", e.value
    for text in texts:
        assert text in e.value.text, e.value


@pytest.mark.parametrize("inline", [(), (0, 1)], ids=["mapped", "inline"])
def test_it_takes_the_schedules_place_for_its_window(node, inline):
    """Parameters move by exactly lr; windows without one have the schedule's, which has gone on meanwhile."""
    given = [0, 0.5, 0, 0.125, 0.25, 0]
    with Team(node, sgd(micro_size=2), W, inline=inline) as team:
        at = np.zeros(4, F)
        for window, lr in enumerate(given):
            want = lr or scheduled(window)
            result = team.window([[(1.0, ones())] * 2] * 2, lr=lr).result
            assert result.lr == pytest.approx(want, rel=1e-15) and (not lr or result.lr == lr)
            at = at - F(want)
            assert (team.params()["w"] == at).all()
        wait_until("the history", lambda: len(history(node, team.job)) == len(given))
        assert [h.result.lr for h in history(node, team.job)] == [lr or pytest.approx(scheduled(i), rel=1e-15)
                                                                  for i, lr in enumerate(given)]


@pytest.mark.parametrize("first,other", [(0.5, 0.25), (0.5, 0), (0, 0.5)])
def test_another_value_in_the_window_is_refused(node, first, other):
    """By the order of counting, not of arrival: rank 1's push is parked when rank 0's sets the window's learning rate."""
    def text(lr):
        return f"{lr:g}" if lr else "schedule's"

    with Team(node, sgd(3), W) as team:
        a, b, c = team.ranks
        early = b.push_async(ones(), lr=other)
        wait_until("rank 1's push", lambda: node.get_job(team.job).ranks[1].last_push_unix_nanos)
        a.push(ones(), lr=first)
        refused(early.result, "rank 1", "rank 0", text(first))
        refused(c.push, "rank 2", "rank 0", text(other), text(first), grads=ones(), lr=other)
        assert [r.micro_count for r in node.get_job(team.job).ranks][1:] == [0, 0]
        b.micro = c.micro = 0
        b.push(ones(), lr=first)
        c.push(ones(), lr=first)
        result = [r.wait_step() for r in team.ranks][0].result
        assert result.lr == pytest.approx(first or scheduled(0)) and result.micro_count == 3
        team.window([[(1.0, ones())]] * 3, lr=other)  # the next window is free again


def test_a_refused_micro_batch_gives_nothing(node):
    with Team(node, sgd(nonfinite="reject_micro"), W) as team:
        node.allow.append(rf" (MicroRejected|MicroVoid) job={team.job} ")
        assert team[0].push({"w": np.full(4, np.nan, F)}, lr=0.5).result == 4
        team[1].push(ones(), lr=0.25)
        assert [r.wait_step() for r in team.ranks][0].result.lr == 0.25


def test_it_is_durable_with_the_window(supervised):
    """Engine and gaccd are killed between the push and the commit; what the window has been given outlives both."""
    with Team(supervised, sgd(), W) as team:
        for window, lr in enumerate([0.5, 0.125]):
            team[0].push(ones(), lr=lr)
            supervised.kill_engine(team.job)
            supervised.kill_gaccd()
            supervised.wait_ready()
            for wrong in (0, 0.75):
                refused(team[1].push, "rank 1", "rank 0", f"{lr:g}", grads=ones(), lr=wrong)
            team[1].push(ones(), lr=lr)
            result = [r.wait_step() for r in team.ranks][0].result
            assert (result.window, result.lr, result.micro_count) == (window, lr, 2)
        supervised.kill_gaccd()
        supervised.wait_ready()
        assert supervised.get_job(team.job).last.lr == 0.125
        assert (team.params()["w"] == F(-0.625)).all()
        assert team.window([[(1.0, ones())]] * 2).result.lr == pytest.approx(scheduled(2))


def test_a_checkpoint_inside_the_window_has_it(tmp_path):
    with Daemon() as d:
        job = Job(d, checkpoint={"dir": str(tmp_path)})
        grads = {n: np.zeros(s, F) for n, s in SHAPES.items()}
        job.ranks[0].push(grads, lr=0.375)
        path = job.save(inside_window=True).path
        again = Job(d, name="again", restore_from=path)
        assert [r.missing for r in again.ranks] == [[1], [0, 1]]
        refused(again.ranks[1].push, "rank 1", "rank 0", "0.375", grads=grads, lr=0.5)
        for rank in (1, 0, 1):  # rank 0's first is in
            again.ranks[rank].push(grads, lr=0.375)
        assert [r.wait_step() for r in again.ranks][0].result.lr == 0.375
        for j in (job, again):
            d.allow.append(rf" job={j.id} ")
            d.cancel(j.id)
            j.leave()


def test_groups_that_name_their_tensors(node):
    """As an optimizer's param_groups list tensors: each with a learning rate of its own, and names are no patterns."""
    tensors = [("a", [4]), ("a[0]", [4]), ("a0", [4])]
    groups = [{"tensors": ["a[0]"], "lr_scale": 0.5}, {"pattern": "a?", "tensors": ["a"], "lr_scale": 0.25}]
    with Team(node, {"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1.0}, "param_groups": groups}, tensors) as team:
        team.window([[(1.0, {n: np.ones(4, F) for n, _ in tensors})]])
        assert {n: float(p[0]) for n, p in team.params().items()} == {"a": -0.25, "a[0]": -0.5, "a0": -0.25}
    node.allow.append(" Ended job=")
    job = node.submit({"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1.0}, "param_groups": [{"tensors": ["b"], "lr_scale": 0.5}]})
    with pytest.raises(GaccError) as e:
        Rank(node, job, 0, tensors, 1).register()
    assert e.value.reason == "INVALID_SPEC" and 'param_groups[0].tensors: there is no tensor "b"' in str(e.value)
    node.cancel(job)
