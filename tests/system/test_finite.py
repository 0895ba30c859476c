# SPDX-License-Identifier: Apache-2.0
"""Parameters that become inf or NaN end the job, which says where, when and what to go back to; they are not trained on."""
import numpy as np
import pytest

from harness import Daemon, GaccError, Rank, wait_until
from test_kills import Aim
from training import Team

F32, F16, BF16 = "f32", "f16", "bf16"
ALLOW = [" ParamsNonfinite job=", " Ended job=", " InitFailed job=", " RankLost job=", " CheckpointFailed job="]


@pytest.fixture(scope="module")
def node():
    with Daemon(supervise=True, conf={"limits.jobs": 64, "limits.jobs_per_user": 64}, allow=ALLOW) as d:
        yield d


def ended(d, job):
    wait_until("the job's end", lambda: d.get_job(job).state in (7, 8, 9, 10))
    return d.state(job), d.get_job(job).reason


def overflow(team, gradient, windows, between=lambda: None):
    """Windows of this gradient in tensor "b" alone; the last one overflows, and nobody is told that it was a step."""
    def window():
        return team.window([[(1.0, {"a": np.zeros(3), "b": np.full(40, gradient)})]])
    for _ in range(windows - 1):
        assert window().result.outcome == 1
        between()
    with pytest.raises(GaccError) as e:
        window()
    assert e.value.reason == "JOB_ENDED" and "inf or NaN" in e.value.text, e.value
    return ended(team.daemon, team.job)


ADAM = {"type": "adam", "lr": 3e38, "beta1": 0.0, "beta2": 0.999, "eps": 1e-8}
CASES = {  # optimizer, dtype, gradient, in which window
    "sgd": ({"type": "sgd", "lr": 1e38}, F32, 10, 1),
    "momentum": ({"type": "sgd", "lr": 1e-3, "momentum": 1e30}, F32, 1e10, 2),
    "adam": (ADAM, F32, 1, 2),
    "adamw": ({**ADAM, "type": "adamw"}, F32, 1, 2),
    "lamb": ({**ADAM, "type": "lamb"}, F32, 1, 2),
    "f16 copy": ({"type": "sgd", "lr": 1e5}, F16, 1, 1),
    "bf16 copy": ({"type": "sgd", "lr": 3.4e38}, BF16, 1, 1),
    "v": ({"type": "adam", "lr": 0.1, "weight_decay": 3e38, "beta1": 0.9, "beta2": 0.999, "eps": 1}, F32, 1, 2),
}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.replace(" ", "-"))
@pytest.mark.parametrize("last", (False, True), ids=("goes-on", "last-step"))
def test_an_update_that_overflows_ends_the_job(node, case, last):
    optimizer, dtype, gradient, windows = CASES[case]
    spec = {"optimizer": optimizer, "ranks": 1, "micro_size": 1, "steps": windows if last else 0}
    team = Team(node, spec, [("a", [3], dtype), ("b", [40], dtype)])
    state, reason = overflow(team, gradient, windows)
    assert state == "FAILED"
    assert reason == (f"window {windows - 1}, step {windows}: 40 values of the parameters are inf or NaN, the first in tensor \"b\"; "
                      "there is no checkpoint to restore")
    assert node.get_job(team.job).counters.applied == windows
    team.close()


def test_an_engine_killed_while_parameters_overflow(one_thread):
    """The first values overflow, and the engine is killed later in the update: the next one finishes it, and finds them."""
    one_thread.allow += ALLOW
    n, aim = 1 << 23, Aim(3, 0.004)
    while aim.goes_on(3):
        job = one_thread.submit({"optimizer": {"type": "sgd", "lr": 1e38}, "ranks": 1, "micro_size": 1, "slots_per_rank": 1})
        rank = Rank(one_thread, job, 0, [("a", [1000]), ("b", [n])], 1)
        rank.start({"a": np.zeros(1000, np.float32), "b": np.zeros(n, np.float32)})
        engine = one_thread.engine_pid(job)
        rank.push({"a": np.full(1000, 10.0), "b": np.zeros(n)})
        wait_until("the update's begin", lambda: rank.status().seq & 1 or rank.status().window, every=0)
        aim.wait()
        one_thread.kill_engine(job, engine)
        aim.note(rank.status().seq & 1)
        assert ended(one_thread, job) == (
            "FAILED", "window 0, step 1: 1000 values of the parameters are inf or NaN, the first in tensor \"a\"; there is no checkpoint to restore")
        rank.close()
    assert aim.hits >= 3, aim.shots


def test_the_checkpoint_to_go_back_to_is_named(node, tmp_path):
    spec = {"optimizer": {"type": "sgd", "lr": 2e38}, "ranks": 1, "micro_size": 1, "checkpoint": {"dir": str(tmp_path), "every_steps": 1, "keep": 9}}
    team = Team(node, spec, [("a", [3]), ("b", [40])])

    def wait_saved():
        wait_until("the checkpoint", lambda: [k.state for k in node.client.jobs.ListCheckpoints(job=str(team.job)).checkpoints] == [2])
    state, reason = overflow(team, 1, 2, wait_saved)
    assert state == "FAILED" and "; restore the checkpoint of step 1: " in reason
    path = reason.partition("of step 1: ")[2]
    assert len(list(tmp_path.rglob("manifest.json"))) == 1, "nothing is saved of what is lost"
    team.close()
    node.kill_gaccd()  # said as before by the next one
    node.wait_ready()
    assert (node.state(team.job), node.get_job(team.job).reason) == (state, reason)
    job = node.submit({**spec, "optimizer": {"type": "sgd", "lr": 1.0}, "restore_from": path})
    again = Rank(node, job, 0, [("a", [3]), ("b", [40])], 1)
    again.start()
    assert (again.params()["b"] == np.float32(-2e38)).all()
    again.push({"a": np.zeros(3), "b": np.zeros(40)})
    assert again.wait_step().result.applied_step == 2
    again.detach()
    again.close()


@pytest.mark.parametrize("value", (np.nan, np.inf), ids=str)
@pytest.mark.parametrize("dtype", (F32, F16, BF16))
def test_initial_parameters_are_finite(node, value, dtype):
    """What is not is refused, and may be given again; a frozen tensor may be a mask."""
    spec = {"optimizer": {"type": "sgd", "lr": 1.0}, "ranks": 1, "micro_size": 1, "param_groups": [{"pattern": "mask", "frozen": True}]}
    job = node.submit(spec)
    rank = Rank(node, job, 0, [("mask", [3], dtype), ("b", [40], dtype)], 1)
    good = {"mask": np.array([0, 1, value]), "b": np.zeros(40)}
    with pytest.raises(GaccError) as e:
        rank.start({**good, "b": np.where(np.arange(40) == 7, value, 1)})
    assert e.value.reason == "NONFINITE" and '1 value of the parameters is inf or NaN, the first in tensor "b"' in e.value.text
    rank.close()
    rank = Rank(node, job, 0, [("mask", [3], dtype), ("b", [40], dtype)], 1)
    rank.start(good)
    rank.push({"mask": np.ones(3), "b": np.ones(40)})
    assert rank.wait_step().result.outcome == 1
    rank.detach()
    rank.close()


def test_init_rules_that_overflow_end_the_job(node):
    job = node.submit({"optimizer": {"type": "sgd", "lr": 1.0}, "ranks": 1, "micro_size": 1,
                       "tensors": [{"name": "w", "dtype": F16, "shape": [4]}], "init": [{"pattern": "*", "type": "normal", "a": 1e6, "b": 1}]})
    assert ended(node, job) == ("FAILED", 'the initial parameters: 4 values of the parameters are inf or NaN, the first in tensor "w"')
    with pytest.raises(GaccError) as e:
        node.submit({"optimizer": {"type": "sgd", "lr": 1.0, "momentum": 1e39}, "ranks": 1, "micro_size": 1})
    assert e.value.reason == "INVALID_SPEC" and "beyond f32's largest number" in e.value.text


def test_a_gradient_that_overflows_is_skipped(node):
    """Its sum is finite, what it is divided by makes it too large: as any other non-finite gradient. Clipped, it is a step."""
    node.allow.append(" StepSkipped job=")
    for clip in (0, 0.5):
        spec = {"optimizer": {"type": "sgd", "lr": 1.0}, "ranks": 1, "micro_size": 1, "reduction": "fixed_divisor", "fixed_divisor": 1e-30, "clip_value": clip}
        with Team(node, spec, [("w", [4])]) as team:
            result = team.window([[(1.0, {"w": np.full(4, 1e9)})]]).result
            assert result.outcome == (1 if clip else 2)
            assert (team.params()["w"] == -clip).all()
