# SPDX-License-Identifier: Apache-2.0
"""Jobs with accumulate: none: no accumulators, and every step has the bits that it has with them, over kills of engines, too."""
import numpy as np
import pytest

from batches import OPTIMIZERS, gradients
from harness import Daemon, GaccError, Rank
from training import Team

TENSORS = [("w", [700, 160]), ("b", [33]), ("brain", [61, 997], "bf16"), ("half", [517], "f16")]


@pytest.fixture
def d():
    with Daemon() as daemon:
        yield daemon


def spec(accumulate, **more):
    return {"ranks": 1, "micro_size": 1, "max_micro_size": 1, "accumulate": accumulate, "optimizer": OPTIMIZERS["adamw"], **more}


def steps(daemon, s, windows=4, between=lambda team: None):
    """(outcome, digest, norm) of each step, and the parameters after the last one. The third window has tensors that are absent."""
    seen = []
    with Team(daemon, s, TENSORS) as team:
        for w in range(windows):
            between(team)
            grads = gradients(w, TENSORS)
            if w == 2:
                del grads["b"], grads["brain"]
            r = team.window([[(1.5 + w, grads)]]).result
            seen.append((r.outcome, r.params_digest, r.grad_norm))
        params = {name: a.tobytes() for name, a in team[0].params().items()}
    return seen, params


@pytest.mark.parametrize("more", [{}, {"optimizer": OPTIMIZERS["lamb"]}, {"gradient_dtype": "bf16", "clip_norm": 0.5}, {"slots_per_rank": 1},
                                  {"param_groups": [{"pattern": "brain", "frozen": True}]}, {"loss_scale": 1024.0}], ids=str)
def test_each_step_has_the_bits_of_one_with_accumulators(d, more):
    assert steps(d, spec("none", **more)) == steps(d, spec("sum", **more))


def test_while_engines_are_killed(d):
    def kill(team):
        d.kill_engine(team.job, d.engine_pid(team.job))

    assert steps(d, spec("none"), 6, kill) == steps(d, spec("sum"), 6)


def test_there_is_no_accumulator(d):
    used = {}
    for accumulate in "sum", "none":
        with Team(d, spec(accumulate), TENSORS) as team:
            used[accumulate] = {b.kind: b.bytes for b in d.client.node.ListBuffers().buffers if b.job == team.job}
    elements = sum(-(-int(np.prod(t[1])) // 32) * 32 for t in TENSORS)
    assert used["sum"].pop("accumulator") >= 2 * 4 * elements
    assert used["none"] == used["sum"]


@pytest.mark.parametrize("more,words", [
    ({"ranks": 2}, "for one rank, this job has 2"),
    ({"micro_size": 2, "max_micro_size": 2}, "add up micro-batches in the trainer"),
    ({"max_micro_size": 3}, "max_micro_size 3, both must be 1"),
    ({"optimizer": {"type": "client"}}, "the reduced gradient is read from an accumulator"),
    ({"accumulate_dtype": "f64"}, "accumulate_dtype f64"),
])
def test_what_needs_accumulators(d, more, words):
    with pytest.raises(GaccError) as e:
        d.submit(spec("none", **more))
    assert e.value.reason == "INVALID_SPEC" and words in str(e.value)


def test_gradients_do_not_come_in_messages(d):
    job = d.submit(spec("none"))
    with pytest.raises(GaccError) as e:
        Rank(d, job, 0, TENSORS, ranks=1, inline=True)
    assert e.value.reason == "NOT_SUPPORTED" and "slots that the trainer maps" in str(e.value)
    with Rank(d, job, 0, TENSORS, ranks=1) as r:
        r.start({t[0]: np.zeros(t[1], np.float32) for t in TENSORS})
        assert r.registered.keeps_slot
        r.inline = True
        with pytest.raises(GaccError) as e:
            r.push(gradients(0, TENSORS))
        assert e.value.reason == "NOT_SUPPORTED" and "do not come in a stream" in str(e.value)


def test_an_open_window_is_not_saved(d):
    with Team(d, spec("none"), TENSORS) as team:
        with pytest.raises(GaccError) as e:
            d.client.jobs.SaveCheckpoint(job=str(team.job), inside_window=True, request_id=bytes(15) + b"1")
        assert e.value.reason == "NOT_SUPPORTED" and "no sum to save" in str(e.value)
        team.window([[(1.0, gradients(0, TENSORS))]])
        d.client.jobs.SaveCheckpoint(job=str(team.job), request_id=bytes(15) + b"2", wait=True)


def test_zero_after_is_when_the_window_is_over(d):
    with Team(d, spec("none"), TENSORS) as team:
        r = team[0]
        grads = {n: g.astype(np.float32) for n, g in gradients(1, TENSORS).items()}
        wire, _ = team.as_sent(grads)
        r.push(wire, zero_after=True)
        r.wait_step()  # whose answer comes behind that
        assert not any(np.any(a) for a in r.slot(0).values())
