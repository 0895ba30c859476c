# SPDX-License-Identifier: Apache-2.0
"""Tensor sets that come in several calls: order, repeats, other ranks, what ends them, what they may cost, and many tensors."""
import itertools
import os
import time

import numpy as np
import pytest

from gacc_client import F32
from harness import Daemon, GaccError, Rank, wait_until

SGD = {"ranks": 2, "micro_size": 1, "init": [{"pattern": "*", "type": 2}], "optimizer": {"type": "sgd", "lr": 0.5}}
SHAPE = [3]
TEN = [(f"t{i}", SHAPE) for i in range(10)]


def give(r, first, n, total=None, tensors=None, **fields):
    tensors = tensors or r.tensors
    return r.gacc.RegisterTensors(session=r.session, tensors=tensors[first:first + n], first=first,
                                  total=len(tensors) if total is None else total, timeout=300, **fields)


def received(r):
    """What gaccd says that it has of this session."""
    return r.gacc.RegisterTensors(session=r.session, total=len(r.tensors)).received


def finish(r, answer):
    """The rest of register() and start(), with a layout in parts."""
    r.registered = answer
    parts = list(answer.layout)
    while len(parts) < len(r.tensors):
        part = r.gacc.RegisterTensors(session=r.session, layout_first=len(parts), layout_limit=65536).layout
        assert part
        parts += part
    r.layout = dict(zip(r.names, parts))
    r.map()
    return r.ready()


@pytest.fixture(scope="module")
def d():
    with Daemon() as daemon:
        yield daemon


def ranks_of(d, tensors=TEN, **spec):
    job = d.submit({**SGD, **spec})
    return job, Rank(d, job, 0, tensors, 2), Rank(d, job, 1, tensors, 2)


def train(ranks):
    for i, r in enumerate(ranks):
        r.push([np.full(SHAPE, i + 1, np.float32)] * len(r.tensors))
    for r in ranks:
        assert r.wait_step().result.outcome == 1
        assert all((p == 1 - 0.5 * 1.5).all() for p in r.params().values())


def test_portions_make_one_set(d):
    _, a, b = ranks_of(d)
    with a, b:
        assert received(a) == 0
        answer = give(a, 0, 4)
        assert answer.received == 4 and not answer.layout and not answer.slot_bytes
        assert give(b, 0, 3).received == 3 and give(a, 4, 5).received == 9
        assert (received(a), received(b)) == (9, 3)
        assert give(a, 0, 4).received == 4  # the answer was lost
        with pytest.raises(GaccError, match="rank 1: this portion begins with tensor 5, .* tensor 3 is expected") as e:
            give(b, 5, 5)
        assert e.value.reason == "OUT_OF_ORDER"
        with pytest.raises(GaccError, match="no rank has declared the tensor set yet"):
            b.gacc.RegisterTensors(session=b.session)
        whole = give(a, 9, 1)
        assert whole.received == 10 and len(whole.layout) == 10 and whole.slots
        assert give(a, 9, 1) == whole  # a repeat of the last one
        assert give(b, 3, 3).received == 6  # what is left is compared with the job's
        part = give(b, 6, 4, layout_first=2, layout_limit=3)
        assert list(part.layout) == list(whole.layout)[2:5] and part.fingerprint == whole.fingerprint and part.received == 10
        assert not b.gacc.RegisterTensors(session=b.session, layout_first=10).layout
        for r, answer in ((a, whole), (b, b.gacc.RegisterTensors(session=b.session, layout_limit=4))):
            finish(r, answer)
        train([a, b])


def test_what_comes_in_one_call_and_in_portions_is_the_same(d):
    for portions_first in (False, True):
        _, a, b = ranks_of(d)
        with a, b:
            give(b, 0, 4)
            if portions_first:
                give(b, 4, 6)
            a.register()
            if not portions_first:
                with pytest.raises(GaccError, match="tensor 0 is expected"):
                    give(b, 4, 6)  # the first four were never compared with the set of rank 0
                assert received(b) == 0
                give(b, 0, 4)
            finish(b, give(b, 0, 10))
            a.ready()
            train([a, b])


def test_the_first_tensor_that_differs_is_named(d):
    _, a, b = ranks_of(d)
    with a, b:
        other = [*b.tensors[:7], b._tensor("other", [3]), *b.tensors[8:]]
        give(a, 0, 9)
        give(b, 0, 5, tensors=other)
        with pytest.raises(GaccError, match="rank 1: tensor 7 is named 't7' in one set and 'other' in the other") as e:
            give(b, 5, 5, tensors=other)
        assert e.value.reason == "LAYOUT_MISMATCH" and received(b) == 5
        with pytest.raises(GaccError, match="rank 1: total is 11, the job's set has 10 tensors"):
            give(b, 5, 1, total=11)
        give(a, 9, 1)
        with pytest.raises(GaccError, match="rank 1: tensor 7 is named"):
            give(b, 5, 5, tensors=other)
        finish(a, give(a, 0, 10))
        finish(b, give(b, 5, 5))
        train([a, b])


def test_a_new_process_of_the_rank_begins_anew(d):
    job, a, b = ranks_of(d)
    with b:
        give(a, 0, 9)
        with Rank(d, job, 0, [("x", SHAPE), *TEN[1:]], 2) as successor:
            with pytest.raises(GaccError) as e:
                give(a, 9, 1)
            assert e.value.reason == "SESSION_FENCED"
            with pytest.raises(GaccError, match="tensor 0 is expected"):
                give(successor, 9, 1)
            give(successor, 0, 9)  # the set of the earlier session is forgotten
            b.tensors[0] = successor.tensors[0]
            b.names[0] = "x"
            give(b, 0, 10)
            assert give(successor, 9, 1).received == 10
        a.close()


def test_a_set_that_is_wrong_as_a_whole_can_be_given_again(d):
    _, a, b = ranks_of(d)
    with a, b:
        twice = [*a.tensors[:9], a.tensors[0]]
        give(a, 0, 9)
        give(b, 0, 5)
        with pytest.raises(GaccError, match="tensors 0 and 9 are both named 't0'") as e:
            give(a, 9, 1, tensors=twice)
        assert e.value.reason == "INVALID_ARGUMENT"
        assert (received(a), received(b)) == (0, 0)
        for fields, text in ((dict(first=1, total=0), "a portion of a tensor set needs total"),
                             (dict(first=9, total=10), "2 tensors from tensor 9 on, but total is 10"),
                             (dict(first=0, total=1000001), "1000001 tensors, must be 1 to 1000000")):
            with pytest.raises(GaccError, match=text) as e:
                a.gacc.RegisterTensors(session=a.session, tensors=a.tensors[:2], **fields)
            assert e.value.reason == "INVALID_ARGUMENT"
        finish(a, give(a, 0, 10))


def test_what_is_collected_has_a_bound_for_each_user():
    with Daemon(conf={"limits.request_memory": "64MiB"}) as d:  # 32 MiB for portions, so 16 MiB for one user
        long = [(f"{i:0200x}", [1]) for i in range(80000)]
        job, a, b = ranks_of(d, long)
        other, c, e = ranks_of(d, long)
        with a, b, c, e:
            give(a, 0, 15000)
            give(a, 15000, 15000)  # 289 bytes each
            give(b, 0, 15000)      # no second copy
            with pytest.raises(GaccError, match="rank 0: the tensors that this user's jobs register in portions") as error:
                for at in range(30000, 75000, 15000):
                    give(a, at, 15000)
            assert error.value.reason == "RESOURCE_EXHAUSTED"
            have = received(a)
            assert have in (30000, 45000)
            with pytest.raises(GaccError):
                give(c, 0, 15000)
            assert received(c) == 0
            d.cancel(job)
            wait_until("the memory is given back", lambda: give_or_none(c), 10)


def give_or_none(r):
    try:
        return give(r, 0, 15000).received
    except GaccError as e:
        assert e.reason == "RESOURCE_EXHAUSTED"
        return None


# ---- a large set ----

N = int(os.environ.get("GACC_TENSORS", "300000"))  # a million in tests/long.sh large
PORTION = 50_000


def portions(r, from_):
    types = r.client.types
    at = from_
    while at < N:
        yield types.RegisterTensorsRequest(session=r.session, first=at, total=N, layout_limit=1, tensors=[
            types.TensorSpec(name=f"t{i}", dtype=F32, shape=[1])  # with longer names they would be too many for a safetensors file
            for i in range(at, at + PORTION)])
        at += PORTION


def declare(r):
    """Goes on from what gaccd has."""
    for request in portions(r, r.gacc.RegisterTensors(session=r.session, total=N).received):
        answer = r.gacc.RegisterTensors(request, timeout=300)
    return answer


def test_a_large_set():
    """Two ranks, a restart of gaccd in between, a step with the right bits, and a checkpoint from which another job goes on."""
    spec = {**SGD, "slots_per_rank": 1}
    with Daemon(supervise=True) as d:
        job = d.submit(spec)
        a = Rank(d, job, 0, [], 2)
        for request in itertools.islice(portions(a, 0), 3):
            assert a.gacc.RegisterTensors(request).received == request.first + PORTION
        d.kill_gaccd()
        d.wait_ready()
        with pytest.raises(GaccError):
            a.gacc.RegisterTensors(request)
        a.attach(2)
        b = Rank(d, job, 1, [], 2)
        with a, b:
            start = time.monotonic()
            a.registered, b.registered = declare(a), declare(b)
            print(f"declared in {time.monotonic() - start:.1f} s, longest turn {d.client.node.GetNode().longest_turn_ns / 1e6:.1f} ms")
            layout = []
            while len(layout) < N:
                layout += a.gacc.RegisterTensors(session=a.session, layout_first=len(layout), layout_limit=N).layout
            at = np.array([t.slot_offset for t in layout])
            assert (np.diff(at) == 128).all() and at[-1] + 4 <= a.registered.slot_bytes
            where = at // 4

            def step(ranks):
                for i, r in enumerate(ranks):
                    slot = np.frombuffer(r.memory[1, 0], np.float32)
                    slot[where] = np.arange(N) % 64 + i
                    r.push()
                for r in ranks:
                    assert r.wait_step(timeout=120).result.outcome == 1
                    yield np.frombuffer(r.memory[2, 0], np.float32)[where]

            for r in (a, b):
                r.map()
                r.ready(timeout=120)
            mean = (np.arange(N) % 64 + 0.5).astype(np.float32)
            assert all((p == 1 - np.float32(0.5) * mean).all() for p in step([a, b]))
            k = d.client.jobs.SaveCheckpoint(job=str(job), request_id=os.urandom(16), wait=True, timeout=300).checkpoint
            assert not k.message, k
            d.kill_gaccd()
            d.wait_ready(120)
            assert all((p == 1 - mean).all() for p in step([a, b]))
            print(f"longest turn of the second gaccd {d.client.node.GetNode().longest_turn_ns / 1e6:.1f} ms")
        job = d.submit({**spec, "restore_from": k.path})
        with Rank(d, job, 0, [], 2) as a, Rank(d, job, 1, [], 2) as b:
            for r in (a, b):
                r.registered = declare(r)
                r.map()
                r.ready(timeout=120)
            assert all((p == 1 - mean).all() for p in step([a, b]))
            print(f"longest turn, with the restored job {d.client.node.GetNode().longest_turn_ns / 1e6:.1f} ms")
