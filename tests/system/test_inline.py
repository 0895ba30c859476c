# SPDX-License-Identifier: Apache-2.0
"""Streams of gradients and parameters: what is left of one when its session is fenced, its client stops, or bytes are missing."""
import concurrent.futures
import contextlib
import os
import pathlib
import queue
import subprocess
import sys

import grpc
import numpy as np
import pytest

from harness import GaccError, Rank, known_types, next_line, wait_until

pytestmark = pytest.mark.smoke
COUNTED, DUPLICATE, ALREADY_COMMITTED = 1, 2, 3
TENSORS = [("w", [2, 3]), ("b", [1])]
SGD = {"ranks": 1, "micro_size": 1, "slots_per_rank": 1, "optimizer": {"type": "sgd", "lr": 1}, "reduction": "sum"}
ZEROS = {"w": np.zeros((2, 3)), "b": np.zeros(1)}


def grads(value):
    return [np.full(6, value, np.float32), np.full(1, value, np.float32)]


class Stream:
    """A PushInline or PutParametersInline whose messages are sent one by one, as the test wants them."""

    def __init__(self, rank, method, timeout=60, **header):
        self.rank, self.method, self.messages = rank, method, queue.Queue()
        self.first = {"header": rank.push_request(**header)} if method == "PushInline" else {"session": rank.session}
        stub = getattr(rank.gacc, method).stub
        self.future = stub.future(iter(self.messages.get, None), timeout=timeout, wait_for_ready=True)

    def send(self, data, offset=0, **fields):
        message = getattr(self.rank.client.types, self.method + "Request")
        self.messages.put(message(**self.first, offset=offset, data=bytes(data), **fields))
        self.first = {}

    def close(self):
        """The last message has been sent."""
        self.messages.put(None)

    def result(self, timeout=20):
        try:
            return self.future.result(timeout)
        except grpc.RpcError as e:
            raise self.rank.client.error_of(self.method, e) from None

    def refused(self, reason):
        with pytest.raises(GaccError) as e:
            self.result()
        assert e.value.reason == reason, e.value
        self.close()  # its thread of gRPC ends
        return e.value.text


def full_slot(rank, value):
    """The bytes of a slot, or of the parameters, full of one number."""
    return np.full(max(rank.registered.slot_bytes, rank.registered.param_bytes) // 4, value, np.float32).tobytes()


@contextlib.contextmanager
def ranks(daemon, tensors=TENSORS, **spec):
    """start(inline=..) attaches rank 0 anew, and registers the tensors."""
    made, job = [], daemon.submit({**SGD, **spec})

    def start(rank=0, inline=False, **fields):
        made.append(Rank(daemon, job, rank, tensors, {**SGD, **spec}["ranks"], inline=inline, **fields))
        made[-1].register()
        return made[-1]

    try:
        yield start
    finally:
        for r in made:
            r.close()


def is_busy(rank):
    """The rank's only slot is taken. The stream that asks belongs to another micro-batch."""
    ask = Stream(rank, "PushInline", window=0, micro=7)
    ask.send(b"")
    ask.close()
    with pytest.raises(GaccError) as e:
        ask.result()
    assert e.value.reason in ("SLOT_BUSY", "INVALID_ARGUMENT", "WINDOW_FULL"), e.value
    return e.value.reason == "SLOT_BUSY"


def begun(rank, method):
    """A stream whose first chunk has come: 64 bytes of 777s. If the question whether it has was first in the slot, it is begun again."""
    while True:
        stream = Stream(rank, method)
        stream.send(full_slot(rank, 777)[:64])
        wait_until("the first chunk", lambda: is_busy(rank) or stream.future.done())
        if not stream.future.done():
            return stream
        stream.refused("SLOT_BUSY")


# ---- fenced ----


def test_a_fenced_push_writes_no_more(daemon):
    """Its late chunk must not get into the slot, which is its successor's now."""
    with ranks(daemon) as start:
        old = start(inline=True)
        old.put_params(ZEROS)
        old.ready()
        late = begun(old, "PushInline")
        new = start()
        new.ready()
        new.fill(grads(1))
        late.send(full_slot(old, 777)[:64])
        late.close()
        wait_until("the late chunk", lambda: late.future.done() or (new.slot()["w"] == 777).any())
        assert new.push().result == COUNTED
        new.wait_step()
        assert (new.params()["w"] == -1).all() and (new.params()["b"] == -1).all()
        late.refused("SESSION_FENCED")
        new.detach()


def test_fenced_parameters_are_not_taken(daemon):
    """Nor do they get into the slot, from which the successor gives its own."""
    with ranks(daemon) as start:
        old = start(inline=True)
        late = begun(old, "PutParametersInline")
        new = start()
        new.memory[1, 0][:new.registered.param_bytes] = bytes(new.registered.param_bytes)
        late.send(full_slot(old, 777)[:64])
        wait_until("the late chunk", lambda: late.future.done() or (new.slot()["w"] == 777).any())
        new.gacc.PutParameters(session=new.session, slot=0, offset=0, bytes=new.registered.param_bytes, last=True)
        new.ready()
        new.push(grads(1))
        new.wait_step()
        assert (new.params()["w"] == -1).all() and (new.params()["b"] == -1).all()
        late.refused("SESSION_FENCED")
        new.detach()


def test_a_fenced_stream_leaves_its_slot_at_once(daemon):
    """Its client has stopped, and its connection lives; the successor sends its gradients in a stream, too."""
    with ranks(daemon) as start:
        old = start(inline=True)
        old.put_params(ZEROS)
        old.ready()
        stuck = begun(old, "PushInline")
        new = start(inline=True)
        assert list(new.ready().missing) == [0]
        assert new.push(grads(1), timeout=5).result == COUNTED
        stuck.refused("SESSION_FENCED")
        new.wait_step()
        assert (new.params()["w"] == -1).all()
        new.detach()


# ---- ended in other ways ----


@pytest.mark.parametrize("how", ["cut", "detach", "repeat", "cancel"])
def test_a_stream_that_ends_in_the_middle_counts_nothing(daemon, how):
    with ranks(daemon) as start:
        r = start(inline=True)
        r.put_params(ZEROS)
        r.ready()
        half = begun(r, "PushInline")
        if how == "cut":
            half.future.cancel()
        elif how == "detach":
            r.detach(done=False)
            half.refused("CANCELLED")
        elif how == "cancel":
            daemon.cancel(r.job)
            half.refused("JOB_ENDED")
            return
        if how == "repeat":  # the trainer begins again, as if its connection had died
            assert r.push(grads(1), timeout=5).result == COUNTED
            half.refused("UNAVAILABLE")
        else:
            wait_until("the slot", lambda: not is_busy(r))
            assert r.push(grads(1)).result == COUNTED
        half.close()
        r.wait_step()
        assert (r.params()["w"] == -1).all()
        r.detach()


# ---- what must not be counted ----


def test_a_slot_that_was_not_mapped_is_not_pushed(daemon):
    """It has the gradients of the inline push before, or nothing."""
    with ranks(daemon, micro_size=2) as start:
        r = start(inline=True)
        r.put_params(ZEROS)
        r.ready()
        for _ in range(2):
            with pytest.raises(GaccError) as e:
                r.gacc.Push(r.push_request())
            assert e.value.reason == "BAD_SLOT" and "PushInline" in e.value.detail.hint, e.value
            assert r.push(grads(1)).result == COUNTED
        r.wait_step()
        assert (r.params()["w"] == -2).all()
        r.detach()


def test_a_slot_that_was_not_mapped_is_not_pushed_after_a_restart(supervised):
    """gaccd does not know what its predecessor's clients have mapped, but who has no shared memory cannot have."""
    with ranks(supervised) as start:
        r = start(inline=True)
        r.put_params(ZEROS)
        r.ready()
        supervised.kill_gaccd()
        supervised.wait_ready()
        with pytest.raises(GaccError) as e:
            r.gacc.Push(r.push_request())
        assert e.value.reason == "BAD_SLOT", e.value
        assert r.push(grads(1)).result == COUNTED
        r.wait_step()
        r.detach()


@pytest.mark.parametrize("inline", [False, True], ids=["mapped", "inline"])
def test_parameters_are_complete_when_all_have_come(daemon, inline):
    """w has 24 bytes, b lies behind a gap, which need not come."""
    with ranks(daemon) as start:
        r = start(inline=inline)
        b = r.layout["b"].param_offset
        ones = full_slot(r, 1)

        def give(*pieces):
            if inline:
                stream = Stream(r, "PutParametersInline")
                for i, (at, n) in enumerate(pieces):
                    stream.send(ones[:n], offset=at, last=i == len(pieces) - 1)
                stream.close()
                return stream.result().ready
            r.memory[1, 0][:len(ones)] = ones
            for i, (at, n) in enumerate(pieces):
                answer = r.gacc.PutParameters(session=r.session, slot=0, offset=at, bytes=n, last=i == len(pieces) - 1)
            return answer.ready

        for pieces in ([(b, 4)], [(0, 23), (b, 4)], [(b, 4), (4, 20)]) if inline else ([(b, 4)], [(4, 20)]):
            with pytest.raises(GaccError) as e:
                give(*pieces)
            assert e.value.reason == "INVALID_ARGUMENT" and '"w"' in e.value.text, e.value
        assert give((b, 4), (12, 12), (0, 14))
        r.ready()
        assert (r.params()["w"] == 1).all() and (r.params()["b"] == 1).all()
        r.detach()


def test_a_chunk_of_parameters_may_be_larger_than_a_slot(daemon):
    """Gradients of 16 bits: a slot holds half of the parameters, which come in one chunk. The second tensor lies in both halves."""
    with ranks(daemon, [("w", [2, 3]), ("b", [900])], gradient_dtype="bf16") as start:
        r = start(inline=True)
        n = r.registered.param_bytes
        assert r.registered.slot_bytes == n // 2
        stream = Stream(r, "PutParametersInline")
        stream.send(np.arange(n // 4, dtype=np.float32).tobytes(), last=True)
        stream.close()
        assert stream.result().ready
        r.ready()
        b = r.layout["b"].param_offset // 4
        assert list(r.params()["w"].flat) == list(range(6)) and list(r.params()["b"]) == list(range(b, b + 900))


def test_a_part_of_the_parameters(daemon):
    with ranks(daemon) as start:
        r = start(inline=True)
        r.put_params({"w": np.arange(6), "b": np.full(1, 9)})
        r.ready()
        whole = r.get_bytes()
        assert len(whole) == r.registered.param_bytes
        for offset, n in ((0, 8), (4, 12), (len(whole) - 4, 4), (8, 0)):
            assert r.get_bytes(offset=offset, bytes=n) == whole[offset:offset + n if n else None]
        with pytest.raises(GaccError) as e:
            r.get_bytes(offset=8, bytes=len(whole) - 4)
        assert e.value.reason == "INVALID_ARGUMENT"


# ---- whether its trainer lives ----


@pytest.mark.parametrize("goes_on", [True, False], ids=["whole", "cut"])
def test_parameters_are_those_of_one_rank(daemon, goes_on):
    """The other's wait for them; when they are cut, the other's count, whole."""
    with ranks(daemon, ranks=2) as start:
        a, b = start(0, inline=True), start(1, inline=True)
        n = a.registered.param_bytes
        first, second = begun(a, "PutParametersInline"), Stream(b, "PutParametersInline")
        second.send(full_slot(b, 2)[:n], last=True)
        second.close()
        with pytest.raises(grpc.FutureTimeoutError):
            second.future.result(0.3)
        if goes_on:
            first.send(full_slot(a, 777)[64:n], 64, last=True)
            assert first.result().ready
        else:
            first.future.cancel()
        first.close()
        assert second.result().ready
        assert {name: set(v.flat) for name, v in b.params().items()} == {name: {777 if goes_on else 2} for name in ("w", "b")}


def shown(daemon, rank):
    """The rank as gaccctl status shows it: its state's name, and its pid."""
    job = daemon.get_job(rank.job)
    return known_types().pool.FindEnumTypeByName("gacc.v1.RankState").values_by_number[job.ranks[rank.rank].state].name, job.ranks[rank.rank].pid


def test_an_inline_rank_whose_watch_breaks_is_heard_again(daemon):
    daemon.allow.append(" RankLost job=")
    with ranks(daemon, micro_size=2) as start:
        r = start(inline=True)
        r.put_params(ZEROS)
        r.ready()
        assert shown(daemon, r)[1] == os.getpid()
        watch = r.gacc.WatchSession.stream(session=r.session)
        second = r.gacc.WatchSession.stream(session=r.session)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            heard = [pool.submit(next, stream) for stream in (watch, second)]

            def both_hear():
                daemon.client.jobs.Pause(job=str(r.job))
                daemon.client.jobs.Resume(job=str(r.job))
                return all(h.done() for h in heard)

            wait_until("the session to be watched twice", both_hear)
        watch.cancel()
        r.push(grads(1))  # behind the end of the first watch
        assert not daemon.events("RankLost")
        second.cancel()
        wait_until("the loss", lambda: shown(daemon, r)[0].endswith("LOST"))
        r.push(grads(1))
        wait_until("its return", lambda: not shown(daemon, r)[0].endswith("LOST"))
        assert daemon.events("RankHeard")
        r.wait_step()
        r.detach()


def test_an_inline_rank_that_dies_while_gaccd_is_away_is_lost(supervised):
    supervised.allow.append(" RankLost job=")
    with ranks(supervised, ranks=2) as start:
        other = start(1, inline=True)
        other.put_params(ZEROS)
        attach = ("import sys, time; sys.path.insert(0, sys.argv[1]); from gacc_client import Rank\n"
                  "r = Rank(sys.argv[2], sys.argv[3], 0, [('w', [2, 3]), ('b', [1])], 2, inline=True); r.start(); print('here', flush=True); time.sleep(600)")
        dead = subprocess.Popen([sys.executable, "-c", attach, pathlib.Path(__file__).parent, supervised.endpoint, other.job],
                                stdout=subprocess.PIPE, env={**os.environ, "GACC_TEST": str(supervised.dir)})
        assert next_line(dead)
        supervised.kill_gaccd()
        dead.kill()
        dead.communicate(timeout=60)
        supervised.wait_ready()
        wait_until("the loss", lambda: supervised.get_job(other.job).ranks[0].state == shown_state("LOST") and other.ready())
        assert supervised.get_job(other.job).ranks[0].pid == dead.pid
        assert not shown(supervised, other)[0].endswith("LOST")


def shown_state(name):
    return known_types().pool.FindEnumTypeByName("gacc.v1.RankState").values_by_name[f"RANK_STATE_{name}"].number
