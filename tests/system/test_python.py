# SPDX-License-Identifier: Apache-2.0
"""The Python package's session, gacc.attach(): what it computes, what it refuses, and how it waits. How it
begins is in test_python_start.py, its deaths in test_python_kills.py."""
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from harness import Daemon, descriptors, free_port, from_bf16, next_line, said_by_a_fork, to_bf16, wait_until
from python_package import environment, gacc

SGD = {"type": "sgd", "lr": 1.0}


def attached(daemon, spec, tensors, initial, **how):
    """The only rank of a new job, ready."""
    job = daemon.submit({"ranks": 1, "micro_size": 1, "optimizer": SGD, **spec})
    session = gacc.attach(job, 0, 1, endpoint=daemon.endpoint, **how)
    session.register(tensors)
    session.upload(initial)
    session.ready(30)
    return session


@pytest.fixture
def one(daemon):
    """A session with one tensor of 4 elements, of a job that goes on for ever."""
    session = attached(daemon, {"micro_size": 2}, {"w": ("f32", (4,))}, [np.zeros(4)])
    yield session
    session.detach()


# ---- arithmetic ----


@pytest.mark.parametrize("how", [{}, {"mailbox": False}, {"shared_memory": False}], ids=["mailbox", "grpc", "inline"])
def test_weights_divide(daemon, how):
    """g = 6 with weight 2 and g = 9 with weight 4: (2*6 + 4*9) / 6 = 8 (docs/integrate.md, section 5), and what the step tells."""
    session = attached(daemon, {"micro_size": 2, "clip_norm": 9.0}, {"a": ("f32", (2, 3)), "b": ("f32", ())}, {"a": np.ones((2, 3)), "b": 5}, **how)
    assert (session.has_mailbox, session.is_inline) == (not how, "shared_memory" in how)
    with session:
        for micro, (g, weight) in enumerate([(6, 2), (9, 4)]):
            assert session.missing == [0, 1][micro:] and session.window == 0
            views = session.slot()
            assert views["a"].shape == (2, 3) and views["b"].shape == ()
            views["a"][...], views["b"][...] = 0, g
            pushed = session.push(weight=weight, loss=g)
            assert (pushed.result, pushed.micro_count, pushed.counted) == ("counted", micro + 1, True)
        step = session.wait()
        assert (step.outcome, step.applied, step.applied_step, step.total_weight, step.micro_count, step.divisor) == ("APPLIED", True, 1, 6, 2, 6)
        assert (step.grad_norm, step.lr, step.mean_loss, step.job_done) == (8, 1, 8, False)
        assert session.parameters["b"] == -3 and (session.parameters["a"] == 1).all()
        assert (session.window, session.missing, session.applied_step) == (1, [0, 1], 1)
        with pytest.raises(ValueError):
            session.parameters["a"][0, 0] = 1


def test_pushes_and_waits_go_through_the_mailbox(one, monkeypatch):
    monkeypatch.setattr(one._link, "call", lambda method, *a, **k: pytest.fail(f"{method} by RPC"))
    for _ in range(20):
        one.slot()["w"][:] = 1
        one.push()
        one.fill([np.ones(4)])
        one.push()
        one.wait()
    assert (one.parameters["w"] == -20).all()


def test_16_bit_parameters_and_gradients(daemon):
    rng = np.random.default_rng(3)
    start = rng.standard_normal(33).astype(np.float32)
    session = attached(daemon, {}, [gacc.Tensor("h", "f16", (33,)), ("b", np.float32, (33,)), ("x", "bfloat16", (33,))],
                       {"h": start, "b": start, "x": start})
    with session:
        before = session.parameters
        assert {n: str(v.dtype) for n, v in before.items()} == {"h": "float16", "b": "float32", "x": "uint16"}
        np.testing.assert_array_equal(before["x"], to_bf16(start))
        np.testing.assert_array_equal(before["h"], start.astype(np.float16))
        assert session.fill([np.ones(33), None, np.ones(33)]) == ["h", "x"]
        session.push(present=["h", "x"])
        session.wait()
        np.testing.assert_array_equal(session.parameters["b"], start)
        np.testing.assert_array_equal(session.parameters["h"], (start.astype(np.float16).astype(np.float32) - 1).astype(np.float16))
        want = to_bf16(from_bf16(to_bf16(start)) - 1)
        np.testing.assert_array_equal(session.parameters["x"], want)
        np.testing.assert_array_equal(gacc.dtypes.from_bf16(want), from_bf16(want))


def test_tied_tensors_are_one(daemon):
    session = attached(daemon, {}, [("w", "f32", (3,)), ("u", "f32", (2,)), ("tied", "f32", (3,), "w")], [np.zeros(3), np.zeros(2)])
    with session:
        assert list(session.slot()) == ["w", "u"]
        session.fill({"w": np.ones(3), "u": np.ones(2)})
        session.push()
        session.wait()
        assert (session.parameters["tied"] == -1).all()


def test_a_set_of_many_tensors(daemon):
    """More than one message may name."""
    n = 25_001
    session = attached(daemon, {}, {f"t{i}": ("f32", (1 + i % 3,)) for i in range(n)}, [np.full(1 + i % 3, i) for i in range(n)])
    with session:
        assert session.parameters["t25000"].shape == (2,) and session.parameters["t25000"][1] == 25_000
        session.fill([np.full(1 + i % 3, i) for i in range(n)])
        session.push()
        session.wait()
        assert not any(v.any() for v in session.parameters.values())


def test_the_optimizer_of_the_trainer(daemon):
    session = attached(daemon, {"optimizer": {"type": "client"}, "clip_norm": 1.0}, {"w": ("f32", (2,))}, [np.zeros(2)])
    with session:
        for window in range(3):
            session.fill([[3, 4]])
            session.push()
            step = session.wait()
            np.testing.assert_allclose(session.reduced["w"], [0.6, 0.8], rtol=1e-5)
            session.acknowledge(step)


@pytest.mark.parametrize("slots", [1, 2])
def test_a_slot_that_is_the_sum(daemon, slots):
    """accumulate: none. It is the daemon's until the window is over."""
    session = attached(daemon, {"accumulate": "none", "slots_per_rank": slots, "steps": 4}, {"w": ("f32", (4,))}, [np.zeros(4)])
    with session:
        while not session.done:
            session.fill([np.ones(4)])
            session.push()
            if slots == 1:
                with pytest.raises(gacc.GaccError) as e:
                    session.slot()
                assert e.value.reason == "SLOT_BUSY"
            else:
                session.slot()["w"][:] = 7
            session.wait()
        assert (session.parameters["w"] == -4).all()


def test_the_learning_rate_of_a_push(one):
    for _ in range(2):
        one.fill([np.ones(4)])
        one.push(lr=0.25)
    assert one.wait().lr == 0.25 and (one.parameters["w"] == -0.25).all()
    one.fill([np.ones(4)])
    one.push(lr=0.5)
    with pytest.raises(gacc.GaccError) as e:
        one.push(lr=0.25)
    assert e.value.reason == "LR_MISMATCH" and one.missing == [1]
    one.push(lr=0.5)
    one.wait()


def test_a_short_window_steps_with_its_own_divisor(one):
    one.fill([np.full(4, 3)])
    one.push(weight=2)
    one.flush()
    assert one.missing == []
    step = one.wait()
    assert (step.divisor, step.micro_count) == (2, 1) and (one.parameters["w"] == -3).all()


def test_a_window_that_an_operator_closed(one, daemon):
    one.push()
    daemon.client.jobs.Flush(job=str(one.job_id))
    wait_until("the window is closed", lambda: daemon.get_job(one.job_id).window == 1)  # a push before that counts
    pushed = one.push()
    assert (pushed.result, pushed.counted, one.missing) == ("closed", False, [])
    assert one.wait().micro_count == 1 and one.missing == [0, 1]


def test_a_repeated_push_counts_once(one):
    one.fill([np.ones(4)])
    one.push(micro=0)
    assert one.push(micro=0).result == "duplicate" and one.missing == [1]


def test_the_first_rank_makes_the_job_and_the_others_join_it(daemon):
    spec = {"name": "made", "micro_size": 1, "steps": 1, "optimizer": {"type": "adamw"}, "param_groups": [{"pattern": "b*", "weight_decay": 0}]}
    ranks = [gacc.attach(spec=spec, rank=r, world_size=2, endpoint=daemon.endpoint) for r in range(2)]
    assert ranks[0].job_id == ranks[1].job_id and ranks[0].spec.ranks == 2 and ranks[0].spec.optimizer.weight_decay == 0.01
    for r in ranks:
        r.detach()
    daemon.client.jobs.Cancel(job="made")
    daemon.allow.append(" Ended job=")


def test_over_the_network(tmp_path, monkeypatch):
    """With a token; gradients travel in messages, and gaccd knows when this process is gone."""
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    address = f"127.0.0.1:{free_port()}"
    with Daemon(conf={"listen.tcp": address, "listen.token_file": token}) as daemon:
        with pytest.raises(gacc.GaccError) as e:
            gacc.connect(address).jobs()
        assert e.value.reason == "UNAUTHENTICATED"
        monkeypatch.setenv("GACC_TOKEN_FILE", str(token))
        daemon.allow += [" RankLost job=", " Ended job="]
        with gacc.connect(address) as client:
            job = client.submit(name="far", ranks=1, micro_size=2, optimizer=SGD)
            session = gacc.attach(job, 0, 1, endpoint=address)
            session.register({"w": ("f32", (3_000_000,)), "b": ("bf16", (3,))})
            session.upload([np.ones(3_000_000), np.ones(3)])
            for g in 1, 2:
                session.fill([np.full(3_000_000, g), np.full(3, g)])
                session.push(weight=g)
            session.wait()
            assert session.is_inline and np.allclose(session.parameters["w"], 1 - 5 / 3)
            assert (from_bf16(session.parameters["b"]) == from_bf16(to_bf16(np.float32(-2 / 3)))).all()
            session.close()
            wait_until("it is lost", lambda: client.job(job).ranks[0].state == 6)
            client.cancel(job)


# ---- refusals ----


def test_a_slot_whose_push_may_still_be_read_is_not_given_out(daemon):
    """Rank 1's push waits for rank 0 and is interrupted. What is repeated as it is uses its slot, what is computed anew the other one."""
    job = daemon.submit({"ranks": 2, "micro_size": 1, "optimizer": SGD})
    first, second = (gacc.attach(job, r, 2, endpoint=daemon.endpoint) for r in range(2))
    for r in (first, second):
        r.register({"w": ("f32", (1,))})
        r.upload([[0]])
    at = lambda session: session.slot()["w"].ctypes.data  # noqa: E731
    own = at(second)
    second.fill([[1]])
    for _ in range(2):
        with pytest.raises(gacc.GaccError):
            second.push(timeout=0.2)
    with pytest.raises(gacc.GaccError):
        second.push(weight=-1)  # refused: tells nothing of the first
    assert at(second) == at(second) != own
    second.fill([[1]])
    first.fill([[3]])
    pushing = threading.Thread(target=second.push)
    pushing.start()
    first.push()
    pushing.join(30)
    assert second.wait().micro_count == 2 and first.wait().applied_step == 1 and first.parameters["w"] == -2
    for r in (first, second):
        r.detach()


def test_errors_say_what_to_do(one, daemon):
    with pytest.raises(gacc.GaccError) as e:
        one.wait()
    assert (e.value.reason, e.value.hint) == ("NOT_READY", "push them, or call flush()") and "owes 2 micro-batches" in str(e.value)
    with pytest.raises(gacc.GaccError) as e:
        one.push(weight=-1)
    assert e.value.reason == "BAD_WEIGHT" and e.value.hint
    with pytest.raises(gacc.GaccError) as e:
        one.fill({"v": np.ones(4)})
    assert e.value.reason == "INVALID_ARGUMENT"
    with pytest.raises(gacc.GaccError, match="the gradient of 'w' has 3 elements, not 4"):
        one.fill([np.ones(3)])
    with pytest.raises(gacc.GaccError) as e:
        gacc.attach("nobody's", 0, 1, endpoint=daemon.endpoint)
    assert (e.value.reason, e.value.code) == ("JOB_NOT_FOUND", "NOT_FOUND")
    with pytest.raises(gacc.GaccError) as e:
        gacc.attach(one.job_id, 0, 2, endpoint=daemon.endpoint)
    assert "world_size" in str(e.value)


@pytest.mark.parametrize("mailbox", [True, False])
def test_a_push_that_waits_too_long(daemon, mailbox):
    job = daemon.submit({"ranks": 2, "micro_size": 1, "optimizer": SGD, "steps": 1})
    session = gacc.attach(job, 1, 2, endpoint=daemon.endpoint, mailbox=mailbox)
    session.register({"w": ("f32", (1,))})
    session.upload([[0]])
    session.ready()
    session.fill([[1]])
    start = time.monotonic()
    with pytest.raises(gacc.GaccError) as e:
        session.push(timeout=0.7)  # in canonical order it waits for rank 0
    assert 0.6 < time.monotonic() - start < 5 and session.missing == [0]
    assert e.value.code == "DEADLINE_EXCEEDED"
    other = gacc.attach(job, 0, 2, endpoint=daemon.endpoint)
    other.register({"w": ("f32", (1,))})
    other.fill([[1]])
    with pytest.raises(gacc.GaccError):
        session.flush(timeout=0.3)  # the parked push comes first
    pushing = threading.Thread(target=session.push)
    pushing.start()
    time.sleep(0.1)
    other.push()
    pushing.join(30)
    assert session.wait().applied_step == other.wait().applied_step == 1
    other.detach()
    session.detach()


@pytest.mark.parametrize("mailbox", [True, False])
def test_waiting_for_a_window_names_who_is_late(daemon, mailbox):
    """Rank 0 has given its micro-batch, rank 1 has not."""
    job = daemon.submit({"ranks": 2, "micro_size": 1, "optimizer": SGD, "steps": 1})
    ranks = [gacc.attach(job, r, 2, endpoint=daemon.endpoint, mailbox=mailbox) for r in range(2)]
    for r in ranks:
        r.register({"w": ("f32", (1,))})
        r.upload([[0]])
        r.fill([[1]])
    ranks[0].push()
    start = time.monotonic()
    with pytest.raises(gacc.GaccError) as e:
        ranks[0].wait(timeout=0.7)
    assert e.value.reason == "STALLED" and e.value.missing_ranks == (1,) and 0.6 < time.monotonic() - start < 5
    ranks[1].push()
    assert [r.wait().applied_step for r in ranks] == [1, 1] and ranks[0].done
    with pytest.raises(gacc.GaccError) as e:
        ranks[0].wait()
    assert e.value.reason == "JOB_ENDED"
    for r in ranks:
        r.detach()


def test_a_forked_child_is_refused(one):
    def say():
        said = []
        for call in (one.push, one.slot, one.wait, one.detach):
            try:
                call()
                said.append("done")
            except gacc.GaccError as e:
                said.append(e.reason)
        one.close()
        return " ".join(said)
    assert said_by_a_fork(say) == "FORKED FORKED FORKED FORKED"
    one.push()  # the parent's session lives


WAITS = """
import signal, sys, gacc
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
session = gacc.attach(sys.argv[1], 1, 2)
session.register({"w": ("f32", (1,))})
session.upload([[0]])
session.ready()
try:
    print("waits", flush=True)
    session.push()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    print(session.push().result, session.wait().applied_step, flush=True)
    session.detach()
"""


@pytest.mark.parametrize("mailbox", [1, 0])
def test_ctrl_c_ends_a_wait(daemon, mailbox):
    """And the session can be used after it: the push is repeated."""
    job = daemon.submit({"ranks": 2, "micro_size": 1, "optimizer": SGD, "steps": 1})
    waiting = subprocess.Popen([sys.executable, "-c", WAITS, str(job)], env=environment(daemon, GACC_MAILBOX=mailbox), stdout=subprocess.PIPE, text=True)
    assert next_line(waiting) == "waits\n"
    time.sleep(0.3)
    start = time.monotonic()
    waiting.send_signal(signal.SIGINT)
    assert next_line(waiting) == "interrupted\n" and time.monotonic() - start < 30  # it would wait for rank 0 for ever
    other = gacc.attach(job, 0, 2, endpoint=daemon.endpoint)
    other.register({"w": ("f32", (1,))})
    other.push()
    assert next_line(waiting) in ("counted 1\n", "duplicate 1\n")
    assert other.wait().micro_count == 2
    other.detach()
    assert waiting.wait(30) == 0


def test_a_session_without_a_detach_leaves_the_rank_to_a_successor(daemon):
    daemon.allow.append(" RankLost job=")
    session = attached(daemon, {"micro_size": 2}, {"w": ("f32", (1,))}, [[0]])
    with pytest.raises(RuntimeError):
        with session:
            session.push()
            raise RuntimeError
    assert daemon.state(session.job_id) == "RUNNING"
    successor = gacc.attach(session.job_id, 0, 1, endpoint=daemon.endpoint)
    successor.register({"w": ("f32", (1,))})
    assert not successor.params_needed and successor.missing == [1]
    with pytest.raises(gacc.GaccError):
        session.push()
    successor.detach()
    wait_until("the job's end", lambda: daemon.state(session.job_id) == "COMPLETED")


def test_a_session_that_is_dropped_ends(daemon):
    """As in a notebook's cell that is run again: nothing of it is left, and the rank is there to be taken."""
    daemon.allow.append(" RankLost job=")
    job = daemon.submit({"ranks": 1, "micro_size": 2, "optimizer": SGD})

    def once():
        session = gacc.attach(job, 0, 1, endpoint=daemon.endpoint)
        session.register({"w": ("f32", (1,))})
        session.upload([[0]])
        return session.missing
    assert once() == [0, 1]
    wait_until("it is lost", lambda: daemon.get_job(job).ranks[0].state == 6)
    before = descriptors(os.getpid())
    for _ in range(10):
        assert once() == [0, 1]
    wait_until("all are closed", lambda: descriptors(os.getpid()) < before + 10)
    with gacc.attach(job, 0, 1, endpoint=daemon.endpoint):
        pass


def test_ranks_as_threads(daemon):
    """A session for each, as the tests of a training program may have it."""
    job = daemon.submit({"ranks": 3, "micro_size": 2, "steps": 5, "optimizer": SGD})
    ends = []

    def train(rank):
        with gacc.attach(job, rank, 3, endpoint=daemon.endpoint) as session:
            session.register({"w": ("f32", (8,))})
            session.upload([np.zeros(8)])
            while not session.done:
                for micro in session.missing:
                    session.fill([np.full(8, rank + micro)])
                    session.push()
                session.wait()
            ends.append(session.parameters["w"].copy())
    threads = [threading.Thread(target=train, args=(r,)) for r in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert len(ends) == 3 and all((e == -5 * 1.5).all() for e in ends)
