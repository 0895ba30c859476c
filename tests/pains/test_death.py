# SPDX-License-Identifier: Apache-2.0
"""Threads about processes that end inside a window: resumed, preempted, killed. Ranks are processes; each returns what its last step was made of, and how
many backward passes it has run."""
import os
import signal
import time

import pytest
from loops import batch, fresh_name, gacc, loss_of, model
from ranks import Rank

WINDOWS, K = 3, 4


def train(rank, world, job, kill=None, sig=signal.SIGKILL, last=WINDOWS, pause=0.0):
    """Windows 0 to last - 1, data by (window, micro, rank). kill: (window, micro) after which this process is sent `sig`, while it does something else
    than train: an evaluation that looks at no flag."""
    m, passes = model(), 0
    with gacc.torch.Optimizer(m, "adamw", lr=0.02, micro_size=K, job=job, rank=rank, world=world) as opt:
        while opt.window < last:
            window = opt.window
            for micro in opt.missing:
                b = batch(window, micro, rank)
                loss = loss_of(m, b)
                loss.backward()
                passes += 1
                opt.step(weight=len(b[0]), loss=loss)
                if kill == (window, micro):
                    os.kill(os.getpid(), sig)
                    time.sleep(60)
        step = opt.last
        return passes, step and (step.applied_step, step.micro_count, step.grad_norm, step.mean_loss, step.params_digest)


@pytest.fixture(scope="module")
def undisturbed(node):
    """{world: what the last step was}, of runs in which nobody dies."""
    ends = {}
    for world in (1, 2, 3):
        job = fresh_name()
        results = [r.result() for r in [Rank(node, train, r, world, job) for r in range(world)]]
        assert all(r == (WINDOWS * K, results[0][1]) for r in results)
        ends[world] = results[0][1]
    return ends


def ends_and_comes_back(node, world, kill, sig=signal.SIGKILL):
    """The last rank dies and is started again; results of all, the successor last."""
    job = fresh_name()
    running = [Rank(node, train, r, world, job, kill if r == world - 1 else None, sig) for r in range(world)]
    assert running[-1].ended() == -sig
    running[-1] = Rank(node, train, world - 1, world, job)
    return [r.result() for r in running]


def test_transformers_22143_resume_inside_a_window(node, undisturbed):
    """After a resume inside a window the gradients from before it were lost, and the next step was made of the rest. gacc has them: the successor gives
    what is missing, and the parameters have the bits of the run without a death."""
    assert ends_and_comes_back(node, 1, (1, 1)) == [(2 + K, undisturbed[1])]


def test_onetrainer_1465_the_first_step_after_a_resume(node, undisturbed):
    """The first loss that was logged after a resume was that of the trailing micro-batches alone, a spike in every curve. With gacc loss, norm and
    divisor of the step are those of the whole window, whoever gave its parts."""
    assert ends_and_comes_back(node, 1, (WINDOWS - 1, 2)) == [(1, undisturbed[1])]
    assert undisturbed[1][1] == K


def test_trainner_redux_96_partial_windows_that_are_thrown_away(node, undisturbed):
    """The mend was to throw away what a partial window had, and to compute it again. In gacc nothing that was counted is computed twice: passes of both
    processes together are those of one."""
    kill = (1, 2)
    (passes, step), = ends_and_comes_back(node, 1, kill)
    assert step == undisturbed[1] and kill[0] * K + kill[1] + 1 + passes == WINDOWS * K


def test_speculators_859_stopping_at_window_boundaries_alone(node, undisturbed):
    """Checkpoints are made at the ends of windows only, so a job is stopped there or loses work. gacc does not care where a trainer stops: after each
    micro-batch of a window the next process goes on from exactly there."""
    job, passes = fresh_name(), []
    for kill in [(0, 0), (0, 1), (0, 3), (1, 0), (1, 2), None]:
        rank = Rank(node, train, 0, 1, job, kill)
        if kill:
            assert rank.ended() == -signal.SIGKILL
        else:
            passes = rank.result()
    assert passes == (1 + K, undisturbed[1])


def test_spd_741_sigterm_that_no_loop_looks_for(node, undisturbed):
    """The flag of the SIGTERM handler was looked at in one loop only, and the save before preemption fired 0 of 6 times. With gacc there is nothing to
    save at the end: a process that SIGTERM ends in an evaluation, without a handler, has lost nothing."""
    assert ends_and_comes_back(node, 1, (1, 3), signal.SIGTERM) == [(K, undisturbed[1])]


def test_pocket_tts_277_one_rank_is_preempted_and_the_others_wait_in_a_collective(node, undisturbed):
    """Ranks had to agree to stop, because one that leaves alone leaves the others in a collective until they are killed, too. In gacc the others wait for
    its successor, and nobody is started again but the one."""
    results = ends_and_comes_back(node, 3, (1, 1), signal.SIGTERM)
    assert results == [(WINDOWS * K, undisturbed[3])] * 2 + [(2 + K, undisturbed[3])]


def test_ray_63968_dead_before_the_last_step(node, undisturbed):
    """A run died one step before its end, and what came after the last checkpoint was trained again. gacc's job is where it was: one micro-batch is
    left to do."""
    assert ends_and_comes_back(node, 1, (WINDOWS - 1, K - 2)) == [(1, undisturbed[1])]


def test_torchft_192_the_survivors_gradients(node, undisturbed):
    """When one replica fails, the gradients that the others have accumulated are zeroed and computed again. In gacc the survivors run each backward pass
    once, and only what the dead rank had not given is computed."""
    first, second = ends_and_comes_back(node, 2, (1, 2))
    assert first == (WINDOWS * K, undisturbed[2]) and second == (1 + K, undisturbed[2])
