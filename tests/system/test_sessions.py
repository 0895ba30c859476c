# SPDX-License-Identifier: Apache-2.0
"""What a trainer may say and when: every rule of the session, by its reason in the error."""
import contextlib
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from harness import Daemon, GaccError, Rank, wait_until

pytestmark = pytest.mark.smoke
COUNTED, DUPLICATE, ALREADY_COMMITTED = 1, 2, 3
APPLIED, EMPTY = 1, 3
TENSORS = [("w", [2, 3]), ("b", [1])]
SGD = {"optimizer": {"type": "sgd", "lr": 1}, "reduction": "sum"}


@contextlib.contextmanager
def refused(reason, code=None):
    """The call inside must fail with this reason; the exception's fields are then in the yielded dict."""
    seen = {}
    with pytest.raises(GaccError) as e:
        yield seen
    assert e.value.reason == reason, e.value
    assert code is None or e.value.code == code, e.value
    seen.update(text=e.value.text, detail=e.value.detail)


def grads(value):
    return [np.full(6, value, np.float32), np.full(1, value, np.float32)]


@pytest.fixture
def job(daemon):
    """make(ranks=.., micro_size=.., ..) submits a job and returns its ranks, ready, with zeros for parameters."""
    made = []

    def make(ranks=1, micro_size=2, inline=False, **spec):
        job_id = daemon.submit({**SGD, "ranks": ranks, "micro_size": micro_size, **spec})
        trainers = [Rank(daemon, job_id, r, TENSORS, ranks, inline=inline) for r in range(ranks)]
        made.extend(trainers)
        for t in trainers:
            t.start({"w": np.zeros((2, 3)), "b": np.zeros(1)})
        return trainers

    yield make
    for t in made:
        t.close()


def gone(daemon):
    """Trainers of this test go without a word."""
    daemon.allow.append(" RankLost job=")


# ---- pushes ----


@pytest.mark.parametrize("inline", [False, True], ids=["mapped", "inline"])
def test_a_push_counts_once(job, inline):
    [r] = job(inline=inline)
    assert r.push(grads(1), weight=0.5, data_key=7).result == COUNTED
    again = r.push(grads(100), micro=0, weight=9, data_key=7)
    assert (again.result, again.micro_count, again.micro_size) == (DUPLICATE, 1, 2)
    assert r.push(grads(100), micro=0, weight=9).result == DUPLICATE  # without a key, it is taken for the same
    r.push(grads(2), weight=1.5)
    step = r.wait_step().result
    assert (step.outcome, step.total_weight, step.micro_count, step.applied_step) == (APPLIED, 2, 2, 1)
    assert (r.params()["w"] == -(0.5 * 1 + 1.5 * 2)).all()
    r.detach()


def test_other_samples_under_the_same_index_are_refused(job):
    first, second = job(ranks=2)
    first.push(grads(1), weight=2, data_key=7)
    with refused("DATA_KEY_MISMATCH", "INVALID_ARGUMENT"):
        first.push(grads(5), micro=0, weight=2, data_key=8)
    parked = first.push_async(grads(1), micro=1, slot=1, weight=1, data_key=9)  # its turn is after rank 1's first
    wait_until("the push to be parked", lambda: first.client.jobs.Get(job=first.job).job.ranks[0].state == 4)
    with refused("DATA_KEY_MISMATCH", "INVALID_ARGUMENT"):
        first.push(micro=1, slot=0, weight=1, data_key=10)
    for _ in range(2):
        second.push(grads(1), weight=1)
    answer = parked.result()
    assert (answer.result, answer.parked_for_rank) == (COUNTED, 1) and answer.parked_ns > 0
    assert first.wait_step().result.total_weight == second.wait_step().result.total_weight == 5
    assert (first.params()["w"] == -5).all()
    for r in (first, second):
        r.detach()


@pytest.mark.parametrize("inline", [False, True])
def test_a_trainer_that_waits_for_long_repeats_its_push_as_often_as_it_likes(job, inline):
    """Each time it gives its call up and makes another, as libgacc does each minute while it waits for a straggler. Whether gaccd
    sees the end of the old call or the new call first is open."""
    first, second = job(ranks=2, inline=inline)
    if second.wants_mailbox:
        second.gacc = second.gacc.rpc  # a cell of a mailbox is not given up
    for _ in range(30):
        with refused("", "DEADLINE_EXCEEDED"):
            second.push(grads(1), micro=0, retry=False, timeout=0.05)
    first.push(grads(1), micro=0)
    second.push(grads(1), micro=0)
    first.push(grads(1), micro=1)
    second.push(grads(1), micro=1)
    assert first.wait_step().result.micro_count == second.wait_step().result.micro_count == 4
    for r in (first, second):
        r.detach()


def test_pushes_come_in_order_into_free_slots(job):
    first, second = job(ranks=2, micro_size=3)
    with refused("OUT_OF_ORDER", "INVALID_ARGUMENT") as e:
        first.push(grads(1), micro=1)
    assert "0 of 3 is expected next" in e["text"]
    with refused("WINDOW_FULL", "FAILED_PRECONDITION"):
        first.push(grads(1), micro=3)
    with refused("BAD_SLOT", "INVALID_ARGUMENT"):
        first.push_async(slot=2).result()
    first.micro = 0
    first.push(grads(1))
    parked = first.push_async(grads(1), slot=1)
    wait_until("the push to be parked", lambda: first.client.jobs.Get(job=first.job).job.ranks[0].state == 4)
    with refused("SLOT_BUSY", "FAILED_PRECONDITION"):
        first.push_async(slot=1).result()
    for _ in range(3):
        second.push_async(grads(1), slot=0).result() if second.micro < 2 else second.push_async(grads(1), slot=0)
    parked.result()
    first.push(grads(1), micro=2)
    assert first.wait_step().result.micro_count == 6
    second.wait_step()
    for r in (first, second):
        r.detach()


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("-inf"), float("nan")])
def test_weights_are_finite_and_positive(job, weight):
    [r] = job()
    with refused("BAD_WEIGHT", "INVALID_ARGUMENT"):
        r.push(grads(1), weight=weight)
    assert r.push(grads(1)).micro_count == 1  # nothing was counted
    r.detach()


def test_arguments_that_do_not_fit(job):
    [r] = job()
    with refused("LOSS_SCALE_MISMATCH", "FAILED_PRECONDITION"):
        r.push(grads(1), loss_scale=2)
    with refused("INVALID_ARGUMENT"):
        r.push(grads(1), present=[True] * 9)
    with refused("INVALID_ARGUMENT"):
        r.push(grads(1), present=[True, True, True])  # a bit for a tensor that there is not
    with refused("NOT_CURRENT_WINDOW", "FAILED_PRECONDITION"):
        r.push(grads(1), window=1)
    with refused("NOT_CURRENT_WINDOW", "FAILED_PRECONDITION"):
        r.wait_step(window=1)
    with refused("NOT_CURRENT_WINDOW", "FAILED_PRECONDITION"):
        r.flush(window=1)
    assert r.push(grads(1)).micro_count == 1
    r.detach()


def test_absent_tensors_and_zeroed_slots(job):
    [r] = job(micro_size=3)
    r.push(grads(1), slot=0, present=[True, False])
    r.push(grads(2), slot=0, zero_after=True)
    assert all((view == 0).all() for view in r.slot(0).values())
    r.push(slot=0)  # the zeros
    r.wait_step()
    assert (r.params()["w"] == -3).all() and (r.params()["b"] == -2).all()
    r.detach()


# ---- windows ----


def test_late_pushes_hear_whether_they_are_in(job):
    first, second = job(ranks=2)
    first.push(grads(1))
    second.push(grads(1))
    first.push(grads(1))
    second.flush()
    for r in (first, second):
        assert r.wait_step().result.micro_count == 3
    late = second.push(grads(100), window=0, micro=0)
    assert (late.result, late.window) == (ALREADY_COMMITTED, 0)
    with refused("WINDOW_CLOSED", "FAILED_PRECONDITION") as e:
        second.push(grads(100), window=0, micro=1)
    assert "not counted" in e["text"]
    assert (second.params()["w"] == -3).all()
    for r in (first, second):
        r.detach()


def test_flush_is_for_the_whole_window(job, daemon):
    gone(daemon)
    first, second = job(ranks=2)
    assert first.push(grads(1)).micro_count == 1
    assert first.flush().micro_count == 1
    assert first.flush().micro_count == 1  # again, after a lost reply
    with refused("FLUSHED", "FAILED_PRECONDITION"):
        first.push(grads(1))
    again = Rank(daemon, int(first.job), 0, TENSORS, 2)  # the flush outlives the session
    ready = again.start()
    assert (ready.flushed, list(ready.missing), ready.window) == (True, [], 0)
    for _ in range(2):
        second.push(grads(1))
    assert again.wait_step().result.micro_count == second.wait_step().result.micro_count == 3
    assert again.push(grads(1)).micro_count == 1  # the next window is open to it
    again.detach()
    second.detach()
    again.close()


def test_operator_flush_closes_with_what_is_counted(job, daemon):
    """A window of three of four micro-batches: the mean is over these three."""
    first, second = job(ranks=2, reduction="weighted_mean")
    first.push(grads(1), weight=3)
    second.push(grads(4), weight=1)
    waiting = first.push_async(grads(2), weight=2, slot=1)
    waiting.result()
    assert daemon.client.jobs.Flush(job=first.job).window == 0
    step = first.wait_step().result
    assert (step.outcome, step.micro_count, step.total_weight, step.divisor) == (APPLIED, 3, 6, 6)
    want = np.float32(0) - np.float32(11) * (np.float32(1) / np.float32(6))
    assert np.allclose(first.params()["w"], want, rtol=1e-6)
    with refused("WINDOW_CLOSED"):
        second.push(grads(100))
    second.wait_step()
    assert daemon.client.jobs.Flush(job=first.job).window == 1
    assert first.wait_step().result.outcome == EMPTY
    assert second.wait_step().result.applied_step == 1
    for r in (first, second):
        r.detach()


def test_operator_flush_with_a_push_that_waits_for_its_turn(job, daemon):
    """It is in the sum or it is told that it is not, never both."""
    first, second = job(ranks=2)
    first.push(grads(1))
    parked = first.push_async(grads(1), slot=1)
    wait_until("the push to be parked", lambda: daemon.get_job(first.job).ranks[0].state == 4)
    daemon.client.jobs.Flush(job=first.job)
    try:
        told = parked.result().result
    except GaccError as e:
        told = e.reason
    count = first.wait_step().result.micro_count
    assert (told, count) in ((COUNTED, 2), ("WINDOW_CLOSED", 1))
    assert (first.params()["w"] == -count).all()
    second.wait_step()
    for r in (first, second):
        r.detach()


def test_leaving_and_coming_back(job, daemon):
    first, second = job(ranks=2)
    second.push_async(grads(1))
    for _ in range(2):
        first.push_async(grads(1)).result()
    second.micro = 1
    second.detach(done=True)
    assert first.wait_step().result.micro_count == 3
    for _ in range(2):  # alone from now on
        first.push(grads(1))
    assert first.wait_step().result.micro_count == 2
    back = Rank(daemon, int(first.job), 1, TENSORS, 2)
    ready = back.start()
    assert (ready.window, ready.flushed, list(ready.missing)) == (2, True, [])  # it counts from the next window on
    for _ in range(2):
        first.push(grads(1))
    assert first.wait_step().result.micro_count == back.wait_step().result.micro_count == 2
    for micro in range(2):
        first.push(grads(1))
        back.push(grads(1))
    assert first.wait_step().result.micro_count == back.wait_step().result.micro_count == 4
    assert (back.params()["w"] == -11).all()
    first.detach()
    back.detach()
    wait_until("the job's end", lambda: daemon.state(first.job) == "COMPLETED")
    back.close()


def test_the_job_ends_with_its_last_step(job, daemon):
    [r] = job(micro_size=1, steps=2)
    r.push(grads(1))
    assert not r.wait_step().job_done
    r.push(grads(1))
    assert r.wait_step().job_done
    wait_until("the job's end", lambda: daemon.state(r.job) == "COMPLETED")
    assert r.wait_step(window=1).job_done  # after a lost reply
    assert r.push(grads(1), window=1, micro=0).result == ALREADY_COMMITTED
    with refused("JOB_ENDED", "FAILED_PRECONDITION"):
        r.push(grads(1), window=2)
    with refused("JOB_ENDED"):
        r.wait_step(window=2)
    assert (r.params()["w"] == -2).all()
    r.detach()


# ---- attach ----


def test_attach_says_what_does_not_fit(daemon):
    job_id = daemon.submit({**SGD, "ranks": 2, "micro_size": 1})
    r = Rank(daemon, job_id, 0, TENSORS, attach=False)
    with refused("INVALID_ARGUMENT") as e:
        r.attach(ranks=3)
    assert "world_size is 3, the job has 2 ranks" in e["text"]
    with refused("RANK_OUT_OF_RANGE", "INVALID_ARGUMENT"):
        r.attach(ranks=2, rank=2)
    with refused("JOB_NOT_FOUND", "NOT_FOUND"):
        r.attach(ranks=2, job="4711")
    with refused("VERSION_SKEW", "FAILED_PRECONDITION"):
        r.attach(ranks=2, protocol_min=2, protocol_max=3)
    with refused("INVALID_ARGUMENT"):
        r.attach(ranks=2, nonce=b"short")
    r.close()
    daemon.cancel(job_id)


def test_all_ranks_have_the_same_tensors(daemon):
    job_id = daemon.submit({**SGD, "ranks": 2, "micro_size": 1})
    first, second = Rank(daemon, job_id, 0, TENSORS), Rank(daemon, job_id, 1, [("w", [2, 3]), ("b", [2])])
    first.register()
    with refused("LAYOUT_MISMATCH", "INVALID_ARGUMENT") as e:
        second.register()
    assert "rank 1" in e["text"] and "tensor 1 'b'" in e["text"]
    daemon.cancel(job_id)
    for r in (first, second):
        r.close()


def test_a_new_session_fences_the_old_one(job, daemon):
    [old] = job()
    old.push(grads(1), weight=2)
    nonce = os.urandom(16)
    new = Rank(daemon, int(old.job), 0, TENSORS, 1, nonce=nonce)
    assert new.attached.generation == old.attached.generation + 1
    token = new.session.token
    assert new.attach(1, nonce=nonce).session.token == token  # the same attach, after a lost reply
    for call in (lambda: old.push(grads(100)), old.wait_step, old.flush, old.ready, old.detach, old.map, old.get_bytes):
        with refused("SESSION_FENCED"):
            call()
    with refused("SESSION_FENCED", "ABORTED"):
        old.attach(1, resume_generation=old.attached.generation)
    assert list(new.start().missing) == [1]
    new.push(grads(1))
    assert new.wait_step().result.total_weight == 3
    new.detach()
    new.close()


def test_a_waiting_call_of_a_fenced_session_is_answered(job, daemon):
    first, second = job(ranks=2)
    first.push(grads(1))
    waiting = first.pool.submit(first.wait_step)
    parked = first.push_async(grads(1), slot=1)
    wait_until("the push to be parked", lambda: daemon.get_job(first.job).ranks[0].state == 4)
    new = Rank(daemon, int(first.job), 0, TENSORS, 2)
    for call in (waiting, parked):
        with refused("SESSION_FENCED"):
            call.result(10)
    assert list(new.start().missing) == [1]
    for r in (second, new, second):
        r.push(grads(1))
    assert new.wait_step().result.micro_count == 4
    second.wait_step()
    for r in (new, second):
        r.detach()
    new.close()


def test_tokens_are_not_guessed(job):
    [r] = job()
    for token in (b"", b"\0" * 16, os.urandom(16), r.session.token + b"x"):
        r_session = r.client.types.Session(id=r.session.id, token=token)
        with refused("SESSION_UNKNOWN", "ABORTED"):
            r.gacc.Flush(session=r_session)
    with refused("SESSION_UNKNOWN"):
        r.gacc.Flush(session=r.client.types.Session(id=4711 << 20, token=r.session.token))
    with refused("SESSION_UNKNOWN"):
        r.gacc.Flush()
    r.detach()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_stolen_session_is_of_no_use_to_another_user():
    with Daemon(conf={"listen.mode": "0666"}) as d:
        d.dir.chmod(0o755)
        job_id = d.submit({**SGD, "ranks": 1, "micro_size": 1})
        with Rank(d, job_id, 0, TENSORS) as r:
            r.start({"w": np.zeros((2, 3)), "b": np.zeros(1)})
            thief = subprocess.run(
                [sys.executable, pathlib.Path(__file__).parent / "trainers/stranger.py", d.endpoint,
                 r.attached.attach_socket, str(job_id), str(r.session.id), r.session.token.hex()],
                stdout=subprocess.PIPE, timeout=60, text=True, env={**os.environ, "GACC_TEST": str(d.dir)}, check=True)
            denied = "PERMISSION_DENIED PERMISSION_DENIED"
            assert thief.stdout.splitlines() == [
                f"push {denied}", f"ready {denied}", f"parameters {denied}", "map - PERMISSION_DENIED", f"detach {denied}",
                *(f"{call} NOT_FOUND JOB_NOT_FOUND" for call in ("attach", "get", "flush", "cancel"))]
            assert r.push(grads(1)).micro_count == 1  # none of it had an effect


# ---- who is late ----


def test_a_stall_names_who_is_late(daemon):
    """By rank, pid, micro-batches and seconds: in the answer, in the log, in the job's state."""
    daemon.allow += [" RankLate job=", " Ended job=.*rank 1"]
    daemon.allow.append(" NoRanks job=")  # they come late on a busy machine
    job_id = daemon.submit({**SGD, "ranks": 2, "micro_size": 2, "stall_warn_ms": 400, "stall_abort_ms": 3000})
    first, second = (Rank(daemon, job_id, r, TENSORS, 2) for r in range(2))
    for r in (first, second):
        r.start({"w": np.zeros((2, 3)), "b": np.zeros(1)})
    first.push(grads(1))
    second.push(grads(1))
    first.push(grads(1))
    with refused("STALLED", "DEADLINE_EXCEEDED") as e:
        first.wait_step(timeout=1)
    said = re.search(r"window 0: waiting for rank 1 \(pid (\d+)\) at 1/2 for ([\d.]+) s", e["text"])
    assert said and int(said[1]) == os.getpid() and 0.4 < float(said[2]) < 3, e["text"]
    assert list(e["detail"].missing_ranks) == [1] and "gaccctl status" in e["detail"].hint
    assert daemon.state(job_id) == "STALLED"
    [line] = daemon.events("RankLate")
    assert f"rank 1 (pid {os.getpid()}) at 1/2" in line
    late = daemon.get_job(job_id)
    assert list(late.missing_ranks) == [1] and late.ranks[1].late_ns > 4e8 and late.ranks[0].late_ns == 0
    with refused("JOB_ENDED") as e:  # it waits on, until stall_abort
        first.wait_step()
    assert "rank 1" in e["text"]
    wait_until("the end", lambda: daemon.state(job_id) == "FAILED")
    for r in (first, second):
        r.detach()
        r.close()


def test_a_stall_that_is_over(daemon):
    daemon.allow.append(" RankLate job=")
    daemon.allow.append(" NoRanks job=")
    job_id = daemon.submit({**SGD, "ranks": 2, "micro_size": 1, "stall_warn_ms": 200})
    first, second = (Rank(daemon, job_id, r, TENSORS, 2) for r in range(2))
    for r in (first, second):
        r.start({"w": np.zeros((2, 3)), "b": np.zeros(1)})
    first.push(grads(1))
    wait_until("a warning", lambda: daemon.state(job_id) == "STALLED")
    second.push(grads(1))
    step = first.wait_step().result
    assert step.last_rank == 1 and step.last_lag_ns > 2e8
    second.wait_step()
    wait_until("the stall's end", lambda: daemon.state(job_id) == "RUNNING")
    [back] = daemon.events("RankBack")
    assert re.search(r"rank=1 .*nobody waits any longer for rank 1 in window 0; others had waited for [\d.]+ s", back), back
    for r in (first, second):
        r.detach()
        r.close()


def test_an_attach_beyond_the_limit_of_jobs_says_what_to_do():
    """The jobs before it are abandoned ones, so its specification is not what has to be corrected."""
    with Daemon(conf={"limits.jobs_per_user": 1}) as d:
        d.submit({**SGD, "ranks": 1, "micro_size": 1})
        with refused("RESOURCE_EXHAUSTED") as e:
            d.client.gradient.Attach(job="another", rank=0, world_size=1, nonce=os.urandom(16), protocol_min=1, protocol_max=1,
                                     create_if_missing=d.client.types.spec(name="another", ranks=1, micro_size=1, **SGD))
        assert "limits.jobs_per_user is 1" in e["text"]
        assert "gaccctl cancel JOB" in e["detail"].hint and "create_if_missing" not in e["detail"].hint


def test_a_rank_that_never_came(daemon):
    job_id = daemon.submit({**SGD, "ranks": 2, "micro_size": 1})
    first = Rank(daemon, job_id, 0, TENSORS, 2)
    first.start({"w": np.zeros((2, 3)), "b": np.zeros(1)})
    first.push(grads(1))
    with refused("STALLED") as e:
        first.wait_step(timeout=0.5)
    assert "rank 1 (not attached" in e["text"], e["text"]
    daemon.cancel(job_id)
    first.close()


def test_a_session_without_shared_memory_maps_nothing(job):
    """Its slots could be another process's next: nobody counts it among those that map them."""
    [r] = job(inline=True)
    with pytest.raises(GaccError) as e:
        r.map()
    assert e.value.reason == "INVALID_ARGUMENT" and "wants_shared_memory" in e.value.text and not r.memory
    assert r.push(grads(1)).result == COUNTED
