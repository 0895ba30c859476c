# SPDX-License-Identifier: Apache-2.0
"""What operators and policies do to a job that runs: pause, new values, loss scale, outliers, norms; over deaths of gaccd."""
import time

import numpy as np
import pytest

from harness import GaccError, Rank, from_bf16, to_bf16, wait_until

W = [("w", [4])]


def sgd(**spec):
    return {"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1.0}, **spec}


def grad(value):
    return [np.full(4, value, np.float32)]


def restart(supervised):
    """SIGKILL; then the next gaccd, with the engine of each job up."""
    supervised.kill_gaccd()
    supervised.wait_ready()


def step(rank, *values, **push):
    """A window with these gradients; its result."""
    for value in values:
        rank.push(grad(value), **push)
    return rank.wait_step().result


def events(supervised, job, reason):
    return [e.message for e in supervised.get_job(job).events if e.reason == reason]


def refused(call, reason, *texts, **fields):
    with pytest.raises(GaccError) as e:
        call(**fields)
    assert e.value.reason == reason, e.value
    for text in texts:
        assert text in e.value.text, e.value
    return e.value


# ---- pause ----


def test_a_pause_outlives_gaccd(supervised):
    job, jobs = supervised.submit(sgd(micro_size=2)), supervised.client.jobs
    with Rank(supervised, job, 0, W) as r:
        r.start({"w": np.zeros(4, np.float32)})
        r.push(grad(1))
        paused = jobs.Pause(job=str(job), reason="disk swap").job
        assert supervised.state(job) == "PAUSED" and "paused by" in paused.reason and "disk swap" in paused.reason
        r.push(grad(1))  # the window may fill
        refused(r.wait_step, "STALLED", "the job is paused", timeout=0.4)
        for _ in range(2):
            error = refused(jobs.Flush, "PAUSED", job=str(job))
            assert error.code == "FAILED_PRECONDITION" and "resume" in error.detail.hint
            now = supervised.get_job(job)
            assert (now.window, now.applied_step, supervised.state(job)) == (0, 0, "PAUSED")
            restart(supervised)
            wait_until("the micro-batches", lambda: supervised.get_job(job).ranks[0].micro_count == 2)
        parked = r.pool.submit(r.wait_step)
        time.sleep(0.3)  # longer than three ticks
        assert not parked.done()
        assert jobs.Resume(job=str(job)).job.state == supervised.get_job(job).state
        assert parked.result(20).result.outcome == 1
        assert supervised.state(job) == "RUNNING" and supervised.get_job(job).window == 1
        assert any("resumed by" in m for m in events(supervised, job, "Resumed"))
        jobs.Pause(job=str(job))
        supervised.cancel(job)
        refused(jobs.Resume, "JOB_ENDED", job=str(job))


# ---- values ----


def test_new_values_hold_from_exactly_their_window(supervised):
    job, jobs = supervised.submit(sgd(max_micro_size=4)), supervised.client.jobs
    update = lambda window, **values: jobs.Update(job=str(job), window=window,  # noqa: E731
                                                  values=supervised.client.types.JobValues(**values)).window
    with Rank(supervised, job, 0, W) as r:
        r.start({"w": np.zeros(4, np.float32)})
        step(r, 1)
        assert update(4, lr=0.5) == 4
        assert update(0, micro_size=2) == 2  # window 1 has begun
        assert update(5, lr=0.25, micro_size=3) == 5
        assert update(3, clip_norm=1.0) == 3
        refused(jobs.Update, "WINDOW_BEGUN", "window 1 has begun", "window 2", job=str(job), window=1,
                values=supervised.client.types.JobValues(lr=1))
        refused(jobs.Update, "INVALID_ARGUMENT", "micro_size is 5, must be 1..4", job=str(job),
                values=supervised.client.types.JobValues(micro_size=5))
        refused(jobs.Update, "INVALID_ARGUMENT", "values is empty", job=str(job))
        pending = supervised.get_job(job).updates
        assert [(u.window, u.values.micro_size) for u in pending] == [(2, 2), (3, 0), (4, 0), (5, 3)]
        assert pending[2].values.WhichOneof("lr_value") == "lr" and pending[2].values.lr == 0.5
        restart(supervised)
        # window: its micro_size, lr, and what clip_norm leaves of a gradient of norm 4
        expected = {1: (1, 1.0, 4), 2: (2, 1.0, 4), 3: (2, 1.0, 1), 4: (2, 0.5, 1), 5: (3, 0.25, 1), 6: (3, 0.25, 1)}
        w = r.params()["w"].astype(np.float64)
        for window, (micro_size, lr, norm) in expected.items():
            wait_until("a restarted gaccd has opened it again", lambda: supervised.get_job(job).window == window)  # noqa: B023
            assert (r.window, r.micro_size) == (window, micro_size) == (window, supervised.get_job(job).micro_size)
            result = step(r, *[2] * micro_size)
            assert (result.outcome, result.lr, result.micro_count, result.grad_norm) == (1, lr, micro_size, 4)
            w -= lr * norm / 2
            assert np.allclose(r.params()["w"], w, rtol=1e-5)
            if window in (3, 4):
                restart(supervised)
        assert not supervised.get_job(job).updates
        assert "from window 6 on" not in " ".join(events(supervised, job, "Updated"))
        jobs.Update(job=str(job), values=supervised.client.types.JobValues(clip_norm=0.0))
        assert events(supervised, job, "Updated")[-1] == "from window 8 on: clip_norm 1 -> 0"
        supervised.cancel(job)
        refused(jobs.Update, "JOB_ENDED", job=str(job), values=supervised.client.types.JobValues(lr=1))


# ---- loss scale ----


def test_the_loss_scale_follows_overflows_and_deaths(supervised):
    spec = sgd(loss_scale=1024, dynamic_loss_scale={"enabled": True, "growth_interval": 2})
    job = supervised.submit(spec)
    supervised.allow.append("StepSkipped")
    with Rank(supervised, job, 0, W) as r:
        r.start({"w": np.zeros(4, np.float32)})
        scale, good, w = 1024.0, 0, 0.0
        for window, bad in enumerate([0, 0, 0, 1, 1, 0, 0, 0, 0]):
            assert r.loss_scale == scale == supervised.get_job(job).loss_scale
            refused(r.push, "LOSS_SCALE_MISMATCH", "scale 3,", f"is {scale:g}", grads=grad(1), loss_scale=3.0)
            result = step(r, np.inf if bad else scale)
            assert (result.outcome, result.skip_reason) == ((2, 1) if bad else (1, 0))
            assert result.loss_scale == scale
            if not bad:
                assert result.grad_norm == 2  # of the unscaled gradient of ones
                w -= 1
            good = 0 if bad else good + 1
            scale *= 0.5 if bad else 2 if good == 2 else 1
            good %= 2
            assert result.next_loss_scale == scale
            assert (r.params()["w"] == w).all()
            if window in (2, 4):  # in the middle of a count
                restart(supervised)
        changes = events(supervised, job, "LossScale")
        assert changes[-1].startswith("1024 -> 2048 from window 9 on")
        counters = supervised.get_job(job).counters
        assert (counters.applied, counters.skipped_nonfinite) == (7, 2)
        supervised.cancel(job)


# ---- outliers and void micro-batches ----


def test_an_outlier_is_skipped(supervised):
    job = supervised.submit(sgd(outlier_skip={"factor": 4, "decay": 0.5, "warmup_steps": 2}))
    supervised.allow.append("StepSkipped")
    with Rank(supervised, job, 0, W) as r:
        r.start({"w": np.zeros(4, np.float32)})
        for value in (30, 1, 1):  # the first is warm-up
            assert step(r, value).outcome == 1
        mean = (60 / 4 + 2 / 2 + 2) / (1 / 4 + 1 / 2 + 1)
        before = r.params()["w"]
        restart(supervised)
        result = step(r, 4.01 * mean / 2)
        assert (result.outcome, result.skip_reason, result.applied_step) == (2, 2, 3)
        assert (r.params()["w"] == before).all()
        text = events(supervised, job, "StepSkipped")[-1]
        assert f"norm {4.01 * mean:.6g}" in text and "4 times" in text and f"({mean:.6g})" in text
        assert step(r, 3.99 * mean / 2).outcome == 1  # the skipped norm has not moved the mean
        counters = supervised.get_job(job).counters
        assert (counters.applied, counters.skipped_outlier) == (4, 1)
        supervised.cancel(job)


def test_a_void_micro_batch_is_named_and_counted(supervised):
    job = supervised.submit(sgd(micro_size=2, nonfinite="reject_micro"))
    supervised.allow += ["MicroRejected", "MicroVoid"]
    with Rank(supervised, job, 0, W) as r:
        r.start({"w": np.zeros(4, np.float32)})
        assert r.push(grad(1)).result == 1
        assert r.push([np.array([1, np.nan, np.inf, 1], np.float32)]).result == 4
        assert r.wait_step().result.micro_count == 1
        event = [e for e in supervised.get_job(job).events if e.reason == "MicroRejected"][-1]
        assert event.object == "rank 0"
        assert event.message == "micro-batch 1 of window 0 has 2 non-finite gradient elements: not counted"
        counters = supervised.get_job(job).counters
        assert (counters.applied, counters.rejected_micros, counters.partial) == (1, 1, 1)
        supervised.cancel(job)


def test_a_non_finite_gradient_can_end_the_job(supervised):
    job = supervised.submit(sgd(nonfinite="error"))
    supervised.allow += ["MicroRejected", "MicroVoid", f"Ended job={job} "]
    with Rank(supervised, job, 0, W) as r:
        r.start({"w": np.zeros(4, np.float32)})
        with pytest.raises(GaccError) as e:
            r.push(grad(np.nan))
        # what a mailbox refuses is asked again by RPC: by then the job may have ended, for the same reason
        assert e.value.reason in ["NONFINITE"] + ["JOB_ENDED"] * bool(r.box) and "nonfinite: error" in e.value.text, e.value
        wait_until("the end", lambda: supervised.state(job) == "FAILED")
        error = refused(r.wait_step, "JOB_ENDED", "rank 0", "micro-batch 0 of window 0")
        assert "non-finite" in error.text
        r.session = None  # nothing to detach from


# ---- norms ----


def test_norms_of_tensors_on_request(supervised):
    """Against numpy: of the averaged, unscaled gradient, before clipping; of the parameters before the step."""
    rng = np.random.default_rng(5)
    shapes = {"a": [300, 7], "b": [1], "half": [50], "tied": [300, 7]}
    tensors = [("a", [300, 7]), ("b", [1]), ("half", [50], "bf16"), ("tied", [300, 7], "f32", "a")]
    job, jobs = supervised.submit(sgd(micro_size=2, loss_scale=8, clip_norm=0.1)), supervised.client.jobs
    refused(jobs.TensorNorms, "NOT_READY", job=str(job))
    draw = lambda: {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items() if n != "tied"}  # noqa: E731
    with Rank(supervised, job, 0, tensors) as r:
        r.start(draw())
        refused(jobs.TensorNorms, "", job=str(job), timeout=0.3)  # gone before a window closes: nobody minds
        for window in range(2):
            params, micros = r.params(), [draw(), draw()]
            asked = [r.pool.submit(jobs.TensorNorms, job=str(job)) for _ in range(2 * (1 - window))]
            time.sleep(0.2 * len(asked))  # they are parked, in any order with the pushes
            if window == 1:
                restart(supervised)  # the callers repeat
                asked = [r.pool.submit(jobs.TensorNorms, job=str(job))]
                time.sleep(0.2)
            for m, weight in zip(micros, (1.0, 3.0)):
                r.push({**{n: 8 * g for n, g in m.items()}, "tied": None}, weight=weight)
            result = r.wait_step().result
            for answer in [a.result(20) for a in asked]:
                assert answer.window == window and [t.name for t in answer.norms] == list(shapes)
                norms = {t.name: t for t in answer.norms}
                total = 0
                for name in ("a", "b", "half"):
                    first, second = ([as_sent(8 * m[name], name) / 8 for m in micros])
                    mean = (first + 3 * second) / 4
                    total += np.sum(mean ** 2)
                    assert norms[name].grad_norm == pytest.approx(np.linalg.norm(mean), rel=1e-5), name
                    before = from_bf16(params[name]) if name == "half" else params[name]
                    # the master of a bf16 parameter begins with the values that were given
                    assert norms[name].param_norm == pytest.approx(np.linalg.norm(before.astype(np.float64)), rel=5e-3), name
                assert norms["tied"].grad_norm == norms["a"].grad_norm and norms["tied"].param_norm == norms["a"].param_norm
                assert result.grad_norm == pytest.approx(total ** 0.5, rel=1e-5)
        late = r.pool.submit(jobs.TensorNorms, job=str(job))
        time.sleep(0.2)
        supervised.cancel(job)
        with pytest.raises(GaccError, match="JOB_ENDED"):
            late.result(20)


def as_sent(gradient, name):
    """What the wire's dtype makes of it, in f64."""
    return (from_bf16(to_bf16(gradient)) if name == "half" else gradient).astype(np.float64)
