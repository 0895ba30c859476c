# SPDX-License-Identifier: Apache-2.0
"""What becomes of a window: which are applied, skipped, dropped or refused, and what they do to counters, schedules and parameters.
"""
import numpy as np
import pytest

from batches import ADAM, CLIENT, OPTIMIZERS, TENSORS, check_reduced, expect, gradients, job, micros
from harness import Daemon, GaccError, wait_until
from reference import Optimizer, Reduced, schedule_factor
from training import Team, draw


@pytest.fixture(scope="module")
def node():
    with Daemon(conf={"limits.jobs": 64, "limits.jobs_per_user": 64}) as d:
        yield d


# ---- counters and schedules ----

SCHEDULES = {
    "warmup": {"type": "linear_warmup", "warmup_steps": 3, "warmup_start_factor": 0.25},
    "cosine": {"type": "cosine", "warmup_steps": 2, "total_steps": 6, "min_factor": 0.1},
    "step": {"type": "step", "step_size": 2, "gamma": 0.3},
    "warmup step": {"type": "step", "warmup_steps": 2, "step_size": 1, "gamma": 0.5},
}


def bad_window(counts=(2, 2), value=np.inf):
    batch = micros(9, counts)
    batch[-1][-1][1]["layer.bias"][3] = value
    return batch


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.replace(" ", "-"))
def test_schedules_move_with_applied_steps_only(node, schedule):
    """Skipped and empty windows advance the window, not the step, not the learning rate, not Adam's t."""
    spec = job(2, 2, optimizer={"type": "adamw", **ADAM, "weight_decay": 0.1}, schedule=SCHEDULES[schedule])
    params = {n: draw(i, s).astype(np.float32) for i, (n, s) in enumerate(TENSORS)}
    with Team(node, spec, TENSORS, params) as team:
        expect(team, "StepSkipped")
        reference, window = Optimizer(spec, team.values()), 0
        for what in "ASAEAESAAAAA":
            before = {n: p.tobytes() for n, p in team.params().items()}
            batch = {"A": micros(window, (2, 1), low=0.5), "S": bad_window(), "E": [[], []]}[what]
            result = team.window(batch).result
            assert result.window == window
            window += 1
            if what == "A":
                assert result.outcome == 1
                factor = schedule_factor(SCHEDULES[schedule], reference.applied)
                assert result.lr == pytest.approx(ADAM["lr"] * factor, rel=1e-14)
                reference.step(Reduced(spec, team.sent, team.shapes).grads)
                for name, p in reference.params.items():
                    p.check(team.params()[name], name)
            else:
                assert result.outcome == {"S": 2, "E": 3}[what]
                assert {n: p.tobytes() for n, p in team.params().items()} == before
            assert result.applied_step == reference.applied
        assert node.get_job(team.job).applied_step == reference.applied == 8
        assert node.get_job(team.job).window == 12


def test_a_job_ends_after_its_steps(node):
    """`steps` counts applied ones; no window opens after the last."""
    spec = job(2, 2, optimizer=OPTIMIZERS["sgd"], steps=2)
    with Team(node, spec, TENSORS) as team:
        expect(team, "StepSkipped")
        assert not team.window(micros(0, (2, 2))).job_done
        assert not team.window(bad_window()).job_done
        assert team.window(micros(2, (2, 2))).job_done
        wait_until("COMPLETED", lambda: node.state(team.job) == "COMPLETED")
        with pytest.raises(GaccError) as e:
            team[0].push(gradients(0))
        assert e.value.reason == "JOB_ENDED"
        assert node.get_job(team.job).applied_step == 2


# ---- windows that are not as they should be ----


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan], ids=str)
@pytest.mark.parametrize("gradient", ["f32", "bf16"])
def test_nonfinite_skip_step(node, value, gradient):
    """One bad number in one micro-batch of one rank: no rank's parameters move, and the next window is a good one."""
    spec = job(2, 2, optimizer=OPTIMIZERS["momentum"], nonfinite="skip_step", gradient_dtype=gradient)
    with Team(node, spec, TENSORS) as team:
        expect(team, "StepSkipped")
        reference = Optimizer(spec, team.values())
        for window in range(3):
            before = {n: p.tobytes() for n, p in team.params().items()}
            result = team.window(bad_window(value=value) if window == 1 else micros(window, (2, 2))).result
            assert result.outcome == (2 if window == 1 else 1)
            if window == 1:
                assert {n: p.tobytes() for n, p in team.params().items()} == before
                assert result.applied_step == 1
                [event] = [e for e in node.get_job(team.job).events if e.reason == "StepSkipped"]
                assert event.message == "window 1 is skipped: gradients that are not finite came from rank 1 (micro-batch 1)"
                continue
            reference.step(Reduced(spec, team.sent, team.shapes).grads)
            for name, p in reference.params.items():
                p.check(team.params()[name], name)


@pytest.mark.parametrize("reduction", ["weighted_mean", "mean"])
def test_nonfinite_reject_micro(node, reduction):
    """The bad micro-batch is void: it says so, and neither gradient nor weight nor count of it are in the step."""
    spec = job(2, 3, optimizer=CLIENT, nonfinite="reject_micro", reduction=reduction)
    with Team(node, spec, TENSORS) as team:
        expect(team, "MicroVoid", "MicroRejected")
        batch = micros(0, (3, 3))
        batch[1][1][1]["scale"] = np.array(np.nan)
        results = {}

        def push_all(rank):
            for m, (w, g) in enumerate(batch[rank.rank]):
                results[rank.rank, m] = rank.push(team.as_sent(g)[0], weight=w).result
            return rank.wait_step()

        step = team._all(push_all)[0]
        assert [k for k, v in results.items() if v == 4] == [(1, 1)] and set(results.values()) == {1, 4}
        team.sent = [(w, team.as_sent(g)[1]) for r, of_rank in enumerate(batch) for m, (w, g) in enumerate(of_rank)
                     if (r, m) != (1, 1)]
        assert step.result.outcome == 1
        check_reduced(team, step, spec)


@pytest.mark.parametrize("ordering", ["canonical", "arrival"])
def test_nonfinite_error(node, ordering):
    """The job fails, and its reason names rank and micro-batch."""
    spec = job(2, 3, optimizer=OPTIMIZERS["sgd"], nonfinite="error", ordering=ordering)
    with Team(node, spec, TENSORS) as team:
        expect(team, "MicroVoid", "MicroRejected", "Ended")
        team.window(micros(0, (3, 3)))
        before = team.params()
        batch = micros(1, (3, 3))
        for m in range(2):
            futures = [team[r].push_async(team.as_sent(batch[r][m][1])[0]) for r in range(2)]
            for f in futures:
                f.result()
        batch[1][2][1]["scale"] = np.array(np.inf)
        futures = [team[r].push_async(team.as_sent(batch[r][2][1])[0]) for r in range(2)]
        with pytest.raises(GaccError) as e:
            futures[1].result()
        assert e.value.reason in ("NONFINITE", "JOB_ENDED")
        wait_until("FAILED", lambda: node.state(team.job) == "FAILED")
        reason = node.get_job(team.job).reason
        assert "rank 1" in reason and "micro-batch 2" in reason and "window 1" in reason and "non-finite" in reason, reason
        with pytest.raises(GaccError) as e:
            team[0].wait_step()
        assert e.value.reason == "JOB_ENDED" and "rank 1" in e.value.text
        after = team.params()
        assert all(after[n].tobytes() == p.tobytes() for n, p in before.items())


def test_uneven_drop(node):
    """A short window is dropped, parameters stay; the next full one counts."""
    spec = job(2, 3, optimizer=OPTIMIZERS["sgd"], uneven="drop")
    with Team(node, spec, TENSORS) as team:
        expect(team, "StepDropped")
        reference = Optimizer(spec, team.values())
        for window, counts in enumerate([(3, 3), (3, 2), (0, 0), (3, 3)]):
            before = {n: p.tobytes() for n, p in team.params().items()}
            result = team.window(micros(window, counts)).result
            assert result.outcome == {(3, 3): 1, (3, 2): 4, (0, 0): 3}[counts]
            if result.outcome == 1:
                reference.step(Reduced(spec, team.sent, team.shapes).grads)
                for name, p in reference.params.items():
                    p.check(team.params()[name], name)
            else:
                assert {n: p.tobytes() for n, p in team.params().items()} == before
            assert result.applied_step == reference.applied


def test_uneven_error(node):
    """A short window fails the job, and the reason names the rank."""
    spec = job(3, 3, optimizer=OPTIMIZERS["sgd"], uneven="error")
    with Team(node, spec, TENSORS) as team:
        expect(team, "Ended")
        team.window(micros(0, (3, 3, 3)))
        before = team.params()
        with pytest.raises(GaccError) as e:
            team.window(micros(1, (3, 1, 3)))
        assert e.value.reason == "JOB_ENDED"
        wait_until("FAILED", lambda: node.state(team.job) == "FAILED")
        reason = node.get_job(team.job).reason
        assert "window 1" in reason and "rank 1" in reason and "1/3" in reason, reason
        after = team.params()
        assert all(after[n].tobytes() == p.tobytes() for n, p in before.items())
