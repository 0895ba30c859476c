# SPDX-License-Identifier: Apache-2.0
"""Jobs with sharding: full or hybrid: each part has a shard of the optimizer state and updates that shard of the parameters. Every step has the bits
that the same parts give unsharded, over kills of engines and gaccd, too.

GACC_SHARD_KILLS: how many kills each job has at least (12). GACC_SEED: as in test_parts_kills.py.
"""
import os
import threading
import time

import numpy as np
import pytest

import test_parts_kills
from batches import OPTIMIZERS, gradients
from cluster import Cluster
from failpoint_job import Control
from harness import Daemon, GaccError, wait_until
from training import Team

# more than one message to each part, in several groups of dtypes; "brain" begins inside a share
TENSORS = [("w", [700, 160]), ("b", [33]), ("brain", [61, 997], "bf16"), ("half", [517], "f16")]
SMALL = [("w", [40, 30]), ("b", [3])]
GROUPS = [{"pattern": "b", "lr_scale": 1.0, "override_weight_decay": True}, {"pattern": "half", "lr_scale": 0.5}]
KILLS = int(os.environ.get("GACC_SHARD_KILLS", "12"))


@pytest.fixture
def d():
    with Daemon(conf={"coll.stall": "2s"}, allow=["AttemptFailed", "CommunicatorLost"]) as daemon:
        daemon.engines_killed = True
        yield daemon


def spec(parts=2, sharding="full", **more):
    return {"ranks": 4, "micro_size": 1, "parts": parts, "sharding": sharding, "optimizer": OPTIMIZERS["adamw"], **more}


def without(s, **more):
    """The same job, not sharded."""
    return {**s, "sharding": "none", "shard_size": 0, **more}


def hybrid(size, parts=4, **more):
    return spec(parts, "hybrid", shard_size=size, **more)


def work(window, tensors):
    return [[(1.0 + rank, gradients(1000 * window + rank, tensors))] for rank in range(4)]


def steps(daemon, s, windows, tensors=TENSORS, between=lambda team, w: None):
    """(digest, norm) of each step, and the parameters after the last one, which are the same on all parts."""
    seen = []
    with Team(daemon, s, tensors) as team:
        for w in range(windows):
            between(team, w)
            result = team.window(work(w % 3, tensors)).result
            seen.append((result.outcome, result.params_digest, result.grad_norm))
        params = [{name: a.tobytes() for name, a in r.params().items()} for r in team.ranks]
    assert all(p == params[0] for p in params)
    return seen, params[0]


@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam decay", "adamw"])
def test_each_step_has_the_bits_of_one_that_is_not_sharded(d, parts, optimizer):
    s = spec(parts, optimizer=OPTIMIZERS[optimizer], clip_norm=0.5)
    assert steps(d, s, 4) == steps(d, without(s), 4)


@pytest.mark.parametrize("parts,size", [(4, 2), (4, 1), (4, 4), (2, 1), (3, 3)])
def test_groups_of_parts_have_the_same_bits(d, parts, size):
    s = hybrid(size, parts, clip_norm=0.5)
    assert steps(d, s, 4) == steps(d, without(s), 4)


@pytest.mark.parametrize("more", [{"master": "none"}, {"accumulate_dtype": "f64"}, {"param_groups": GROUPS}, {"gradient_dtype": "bf16"},
                                  {"init": [{"pattern": "*", "type": "normal", "a": 0.0, "b": 0.1}], "seed": 7}], ids=lambda m: next(iter(m)))
def test_whatever_the_numbers_are(d, more):
    for s in spec(3, **more), hybrid(2, **more):
        if "init" in more:  # drawn on each part
            assert steps(d, s, 3)[0] == steps(d, without(s), 3)[0]
        assert steps(d, s, 3) == steps(d, without(s), 3)


def test_a_small_arena_leaves_parts_without_a_share(d):
    s = spec(4)
    assert steps(d, hybrid(2), 3, SMALL) == steps(d, without(s), 3, SMALL)
    assert steps(d, s, 3, SMALL) == steps(d, without(s), 3, SMALL)


def test_one_part_is_not_sharded(d):
    s = spec(1, optimizer=OPTIMIZERS["lamb"])
    assert steps(d, s, 2) == steps(d, without(s), 2)


def test_a_step_that_is_skipped_gathers_nothing(d):
    s = spec(2)
    d.allow.append(" StepSkipped job=")
    with Team(d, s, TENSORS) as team:
        first = team.window(work(0, TENSORS)).result
        bad = work(1, TENSORS)
        bad[3][0][1]["w"][5, 5] = np.inf
        assert team.window(bad).result.outcome == 2
        after = team.window(work(2, TENSORS)).result
        assert (after.window, after.applied_step, after.outcome) == (first.window + 2, first.applied_step + 1, 1)


# ---- memory ----


def memory(daemon, job):
    return wait_until("its memory", lambda: (j := daemon.get_job(job)).parts and all(p.host_bytes for p in j.parts) and [p.host_bytes for p in j.parts])


def test_memory_of_each_part_is_smaller(d):
    used = {}
    for sharding in "none", "full", "hybrid":
        with Team(d, hybrid(2) if sharding == "hybrid" else spec(4, sharding), TENSORS) as team:
            used[sharding] = memory(d, team.job)
            kinds = {}
            for b in d.client.node.ListBuffers().buffers:
                if b.job == team.job:
                    kinds[b.kind] = kinds.get(b.kind, 0) + b.bytes
            used[sharding, "kinds"] = kinds
    elements = sum(-(-int(np.prod(t[1])) // 32) * 32 for t in TENSORS)
    # m, v and the master are f32: three quarters of each go, but for what shares are rounded to
    saved = [a - b for a, b in zip(used["none"], used["full"])]
    assert all(abs(n - 3 * 4 * elements * 3 / 4) < 3 * 4 * 2 * 8192 for n in saved), (saved, elements)
    halves = [a - b for a, b in zip(used["none"], used["hybrid"])]
    assert all(abs(n - 3 * 4 * elements / 2) < 3 * 4 * 2 * 8192 for n in halves) and halves[:2] == halves[2:], (halves, elements)
    less = {k: n - used["full", "kinds"].get(k, 0) for k, n in used["none", "kinds"].items()}
    assert {k for k, n in less.items() if n} == {"master", "optimizer state"} and sum(less.values()) == sum(saved)


# ---- what is refused ----


@pytest.mark.parametrize("more,words", [
    ({"sharding": "hybrid"}, "give how many parts hold the optimizer state together"),
    ({"sharding": "hybrid", "shard_size": 3, "parts": 4}, "a divisor of parts (4)"),
    ({"sharding": "hybrid", "shard_size": 8, "parts": 4}, "a divisor of parts (4)"),
    ({"shard_size": 2}, "with full a group is all parts"),
    ({"sharding": "hybrid", "shard_size": 2, "optimizer": OPTIMIZERS["lamb"]}, "ratios are of whole tensors"),
    ({"shard_threshold": 1000}, "shares are cut from the flat arena"),
    ({"optimizer": OPTIMIZERS["lamb"]}, "ratios are of whole tensors"),
    ({"optimizer": {"type": "client"}}, "the trainers hold the parameters"),
])
def test_what_cannot_be_sharded(d, more, words):
    with pytest.raises(GaccError) as e:
        d.submit(spec(**{"sharding": "full", **more}))
    assert e.value.reason == "INVALID_SPEC" and words in str(e.value)


# ---- kills ----


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_an_engine_that_is_killed_costs_no_step(d, which):
    def kill(team, w):
        pids = wait_until("all engines", lambda: (p := [x.engine_pid for x in d.get_job(team.job).parts]) and all(p) and p)
        if w:
            d.kill_engine(team.job, pids[which])
    s = hybrid(2) if which == 3 else spec(3)
    assert steps(d, s, 4, between=kill) == steps(d, without(s), 4)


@pytest.mark.parametrize("s,tensors", [(spec(2), TENSORS), (spec(3), TENSORS), (spec(3), SMALL), (hybrid(2), TENSORS)], ids=["2", "3", "small", "groups"])
def test_kills_change_no_bit(s, tensors, monkeypatch):
    """Of engines and of gaccd, at any time."""
    monkeypatch.setattr(test_parts_kills, "KILLS", KILLS)
    with Daemon(supervise=True, allow=["CommunicatorLost", "AttemptFailed"]) as node:
        killer = test_parts_kills.Killer(node, f"sharded {s} {len(tensors)}")
        seen = []
        with Team(node, s, tensors) as team:
            killer.start()
            try:
                while len(seen) < 30 or (killer.killed < KILLS and not killer.error):
                    seen.append(team.window(work(len(seen) % 3, tensors)).result.params_digest)
            finally:
                killer.over.set()
                killer.join()
        assert killer.error is None and killer.killed >= KILLS
        assert seen == [digest for _, digest, _ in steps(node, without(s, name="without"), len(seen), tensors)[0]]


@pytest.mark.failpoints
def test_pieces_are_given_while_the_rest_is_updated(d):
    """The main thread of one engine sleeps at the end of its update. Its share is on its way by then."""
    control = Control(d.dir / "run/failpoints.sock")
    seen = {}

    def look():
        wait_until("the end of an update", lambda: control.hits()["engine_share_updated"][1])
        seen["pieces"] = wait_until("pieces of both parts", lambda: control.hits()["engine_share_piece"][0] == 2, 2)

    with Team(d, spec(2), TENSORS) as team:
        control.do("arm engine_share_updated sleep 4000 count 1")
        looks = threading.Thread(target=look)
        looks.start()
        team.window(work(0, TENSORS))
        looks.join()
    control.close()
    assert seen["pieces"]


@pytest.mark.failpoints
@pytest.mark.parametrize("s", [spec(2), spec(1, "none")], ids=["2", "1"])
def test_a_slow_update_is_no_stall(s):
    """It takes several times as long as other parts, the coordinator and gaccd wait for an engine that does nothing."""
    tensors = [("w", [64, 128])]  # so small that one part has all to update, in eight pieces
    with Daemon(conf={"coll.stall": "1s", "engine.timeout": "1s", "engine.threads": 1}) as d:
        control = Control(d.dir / "run/failpoints.sock")
        with Team(d, s, tensors) as team:
            team.window(work(0, tensors))
            control.do("arm engine_chunk_done sleep 450 count 8")
            begun = time.monotonic()
            team.window(work(1, tensors))
            assert time.monotonic() - begun > 3
            assert d.get_job(team.job).engine_restarts == 0
        control.close()


@pytest.mark.parametrize("s", [spec(4), hybrid(2)], ids=["full", "groups"])
def test_parts_on_several_nodes(s):
    """The bits of each step are those of one node, over kills of the nodes' gaccds and of engines."""
    with Cluster(2, conf={"coll.stall": "1s"}, allow=["AttemptFailed", "CommunicatorLost"]) as c:
        for node in c.nodes.values():
            node.engines_killed = True
        s = {**s, "nodes": "a,b"}
        place = [c.node_of_rank(r, 4, 4, ["a", "b"]) for r in range(4)]
        with Team(c["a"], s, TENSORS, place=place) as team:
            seen = []
            for w in range(6):
                if w in (2, 4):
                    c.kill("b" if w == 2 else "a")
                if w in (1, 3):
                    os.kill(c["b"].engine_pids()[w // 2], 9)
                seen.append(team.window(work(w % 3, TENSORS)).result.params_digest)
        assert seen == [digest for _, digest, _ in steps(c["a"], without(s, nodes="", name="here"), 6)[0]]
