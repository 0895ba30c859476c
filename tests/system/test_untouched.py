# SPDX-License-Identifier: Apache-2.0
"""untouched: skip: a tensor that no micro-batch of a window has touched is not stepped, as torch.optim leaves out a parameter whose
.grad is None. Against float64 programs of a few lines, and over deaths of engine and gaccd."""
import numpy as np
import pytest

from harness import GaccError
from saving_job import SHAPES, Job
from training import Team, draw

TENSORS = [("w", [40, 30]), ("head", [50, 21]), ("bias", [21])]
NAMES = [t[0] for t in TENSORS]
LR, B1, B2, EPS, DECAY = 0.05, 0.9, 0.99, 1e-8, 0.1
OPTIMIZERS = {
    "adamw": {"type": "adamw", "lr": LR, "beta1": B1, "beta2": B2, "eps": EPS, "weight_decay": DECAY},
    "sgd": {"type": "sgd", "lr": LR, "momentum": 0.9, "dampening": 0.5, "weight_decay": DECAY},
    "lamb": {"type": "lamb", "lr": LR, "beta1": B1, "beta2": B2, "eps": EPS, "weight_decay": DECAY},
}
WITHOUT_HEAD = [1, 2, 4]  # windows in which nobody touches it; in window 5 only the last rank's last micro-batch does
WINDOWS = 7


class Plain:
    """One parameter as torch.optim (apex for LAMB) steps it: its state begins with its first gradient."""

    def __init__(self, kind, p):
        self.kind, self.p, self.t = kind, np.asarray(p, np.float64), 0
        self.m = self.v = np.zeros_like(self.p)

    def step(self, g):
        self.t += 1
        if self.kind == "sgd":
            g = g + DECAY * self.p
            self.m = g if self.t == 1 else 0.9 * self.m + 0.5 * g
            self.p = self.p - LR * self.m
            return
        self.m, self.v = B1 * self.m + (1 - B1) * g, B2 * self.v + (1 - B2) * g * g
        d = self.m / (1 - B1 ** self.t) / (np.sqrt(self.v) / np.sqrt(1 - B2 ** self.t) + EPS)
        if self.kind == "adamw":
            self.p = self.p * (1 - LR * DECAY) - LR * d
            return
        d = d + DECAY * self.p
        self.p = self.p - LR * np.linalg.norm(self.p) / np.linalg.norm(d) * d


def first_params():
    return {n: draw((99, i), s).astype(np.float32) for i, (n, s) in enumerate(TENSORS)}


def micro(window, rank, k, last):
    grads = {n: draw((window, rank, k, i), s).astype(np.float32) for i, (n, s) in enumerate(TENSORS)}
    if window in WITHOUT_HEAD or (window == 5 and not last):
        del grads["head"]
    return (1.0 + rank + k, grads)


def micros(window, ranks, n):
    return [[micro(window, r, k, (r, k) == (ranks - 1, n - 1)) for k in range(n)] for r in range(ranks)]


def spec(kind, ranks, **more):
    return {"ranks": ranks, "micro_size": 2, "optimizer": OPTIMIZERS[kind], "untouched": "skip", **more}


def mean(window, name):
    """The averaged gradient of a window; None: nobody has touched it."""
    all_ = [m for rank in window for m in rank]
    if not any(name in grads for _, grads in all_):
        return None
    return sum(w * np.asarray(grads[name], np.float64) for w, grads in all_ if name in grads) / sum(w for w, _ in all_)


def check(team, plain, before, window):
    got = team.params()
    for n in NAMES:
        g = mean(window, n)
        if g is None:
            assert got[n].tobytes() == before[n].tobytes(), f"{n} has moved"
        else:
            plain[n].step(g)
        assert np.abs(got[n] - plain[n].p).max() < 2e-6, n
    return {n: a.copy() for n, a in got.items()}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_it_is_torchs_step(daemon, kind, ranks):
    before = first_params()
    plain = {n: Plain(kind, p) for n, p in before.items()}
    with Team(daemon, spec(kind, ranks), TENSORS, before) as team:
        for w in range(WINDOWS):
            window = micros(w, ranks, 2)
            assert team.window(window).result.outcome == 1
            before = check(team, plain, before, window)


def test_zero_steps_it_with_a_zero_gradient(daemon):
    """What jobs that do not ask for it get, so that the test above can fail: weight decay and moments move it."""
    before = first_params()
    plain = {n: Plain("adamw", p) for n, p in before.items()}
    with Team(daemon, {**spec("adamw", 1), "untouched": "zero"}, TENSORS, before) as team:
        for w in range(3):
            window = micros(w, 1, 2)
            team.window(window)
            for n in NAMES:
                g = mean(window, n)
                plain[n].step(np.zeros_like(plain[n].p) if g is None else g)
                assert np.abs(team.params()[n] - plain[n].p).max() < 2e-6


def push(rank, micro_batch):
    weight, grads = micro_batch
    rank.push(grads, weight=weight, present=[n in grads for n in NAMES])


@pytest.mark.parametrize("more", [{}, {"parts": 2}, {"parts": 2, "sharding": "full"}], ids=str)
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_it_outlives_engine_and_gaccd_inside_the_window(supervised, kind, more):
    d = supervised
    before = first_params()
    plain = {n: Plain(kind, p) for n, p in before.items()}
    with Team(d, spec(kind, 2, **more), TENSORS, before) as team:
        for w in range(WINDOWS):
            window = micros(w, 2, 2)
            for k in range(2):
                for r in range(2):
                    push(team[r], window[r][k])
                    if (k, r) == (0, 1) and w % 2:
                        d.kill_engine(team.job)
                    if (k, r) == (1, 0) and w % 3 == 1:
                        d.kill_gaccd()
                        d.wait_ready()
            assert {s.result.outcome for s in team._all(lambda r: r.wait_step())} == {1}
            before = check(team, plain, before, window)


@pytest.mark.parametrize("more", [{}, {"parts": 2}, {"parts": 2, "sharding": "full"}], ids=str)
@pytest.mark.parametrize("inside", [False, True])
def test_a_checkpoint_has_it(daemon, tmp_path, inside, more):
    """What each tensor has taken part in, and what the open window has touched."""
    grads = {n: np.full(s, 0.5, np.float32) for n, s in SHAPES.items()}
    few = {n: grads[n] for n in ("w", "b")}

    def give(job, which):
        for r in job.ranks:
            r.push(which, present=[n in which for n in r.names])

    def go_on(job):
        if not inside:
            give(job, few)
        give(job, few if not inside else {"b": grads["b"]})  # what else the window has touched, its carry knows alone
        [r.wait_step() for r in job.ranks]
        give(job, grads)
        give(job, grads)
        [r.wait_step() for r in job.ranks]
        return {n: a.tobytes() for n, a in job.ranks[0].params().items()}

    one = Job(daemon, untouched="skip", checkpoint={"dir": str(tmp_path)}, **more)
    for which in (grads, few):
        give(one, which)
        give(one, which)
        [r.wait_step() for r in one.ranks]
    if inside:
        one.ranks[0].push({"b": grads["b"]}, present=[n == "b" for n in one.ranks[0].names])
        one.ranks[1].push(grads, present=[n in grads for n in one.ranks[1].names])
    path = one.save(inside_window=inside).path
    again = Job(daemon, untouched="skip", restore_from=path, name="again", **more)
    assert go_on(again) == go_on(one)
    one.leave(), again.leave()


def test_a_sum_goes_on_only_in_a_job_with_the_same_rule(daemon, tmp_path):
    one = Job(daemon, untouched="skip", checkpoint={"dir": str(tmp_path)})
    for r in one.ranks:
        r.push({n: np.ones(s, np.float32) for n, s in SHAPES.items()})
    path = one.save(inside_window=True).path
    daemon.allow.append(" CarryDropped job=")
    again = Job(daemon, restore_from=path, name="again")
    [line] = daemon.events("CarryDropped")
    assert "with other values of untouched" in line
    one.leave(), again.leave()


def test_the_client_decides_for_itself(daemon):
    with pytest.raises(GaccError) as e:
        daemon.submit({"ranks": 1, "micro_size": 1, "optimizer": {"type": "client"}, "untouched": "skip"})
    assert e.value.reason == "INVALID_SPEC" and "the trainers take the step" in str(e.value)
