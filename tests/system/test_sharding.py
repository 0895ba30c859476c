# SPDX-License-Identifier: Apache-2.0
"""Jobs with sharding: full: each part has a share of the optimizer state and updates that share of the parameters. Every step has the bits that the
same parts give unsharded, over kills of engines and gaccd, too.

GACC_SHARD_KILLS: how many kills each job has at least (12). GACC_SEED: as in test_parts_kills.py.
"""
import os

import numpy as np
import pytest

import test_parts_kills
from batches import OPTIMIZERS, gradients
from cli import Cli
from cluster import Cluster
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
    assert steps(d, s, 4) == steps(d, {**s, "sharding": "none"}, 4)


@pytest.mark.parametrize("more", [{"master": "none"}, {"accumulate_dtype": "f64"}, {"param_groups": GROUPS}, {"gradient_dtype": "bf16"},
                                  {"init": [{"pattern": "*", "type": "normal", "a": 0.0, "b": 0.1}], "seed": 7}], ids=lambda m: next(iter(m)))
def test_whatever_the_numbers_are(d, more):
    s = spec(3, **more)
    if "init" in more:  # drawn on each part
        assert steps(d, s, 3)[0] == steps(d, {**s, "sharding": "none"}, 3)[0]
    assert steps(d, s, 3) == steps(d, {**s, "sharding": "none"}, 3)


def test_a_small_arena_leaves_parts_without_a_share(d):
    s = spec(4)
    assert steps(d, s, 3, SMALL) == steps(d, {**s, "sharding": "none"}, 3, SMALL)


def test_one_part_is_not_sharded(d):
    s = spec(1, optimizer=OPTIMIZERS["lamb"])
    assert steps(d, s, 2) == steps(d, {**s, "sharding": "none"}, 2)


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
    for sharding in "none", "full":
        with Team(d, spec(4, sharding), TENSORS) as team:
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
    less = {k: n - used["full", "kinds"].get(k, 0) for k, n in used["none", "kinds"].items()}
    assert {k for k, n in less.items() if n} == {"master", "optimizer state"} and sum(less.values()) == sum(saved)


# ---- what is refused ----


@pytest.mark.parametrize("more,words", [
    ({"sharding": "hybrid"}, "hybrid (full within groups of parts) is not supported yet"),
    ({"shard_threshold": 1000}, "shares are cut from the flat arena"),
    ({"optimizer": OPTIMIZERS["lamb"]}, "ratios are of whole tensors"),
    ({"optimizer": {"type": "client"}}, "the trainers hold the parameters"),
])
def test_what_cannot_be_sharded(d, more, words):
    with pytest.raises(GaccError) as e:
        d.submit(spec(**{"sharding": "full", **more}))
    assert e.value.reason == "INVALID_SPEC" and words in str(e.value)


def test_what_needs_the_whole_sum_is_refused(d):
    with Team(d, spec(2), TENSORS) as team:
        team.window(work(0, TENSORS))
        cli = Cli(d.dir, d.endpoint)
        cli.run("norms", team.job, code=2)
        assert "no part has the whole sum" in cli.err


# ---- kills ----


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_engine_that_is_killed_costs_no_step(d, which):
    def kill(team, w):
        pids = wait_until("all engines", lambda: (p := [x.engine_pid for x in d.get_job(team.job).parts]) and all(p) and p)
        if w:
            d.kill_engine(team.job, pids[which])
    s = spec(3)
    assert steps(d, s, 4, between=kill) == steps(d, {**s, "sharding": "none"}, 4)


@pytest.mark.parametrize("parts,tensors", [(2, TENSORS), (3, TENSORS), (3, SMALL)], ids=["2", "3", "small"])
def test_kills_change_no_bit(parts, tensors, monkeypatch):
    """Of engines and of gaccd, at any time."""
    monkeypatch.setattr(test_parts_kills, "KILLS", KILLS)
    with Daemon(supervise=True, allow=["CommunicatorLost", "AttemptFailed"]) as node:
        killer, s = test_parts_kills.Killer(node, f"sharded {parts} {len(tensors)}"), spec(parts)
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
        assert seen == [digest for _, digest, _ in steps(node, {**s, "sharding": "none", "name": "without"}, len(seen), tensors)[0]]


def test_parts_on_several_nodes():
    """The bits of each step are those of one node, over kills of the nodes' gaccds and of engines."""
    with Cluster(2, conf={"coll.stall": "1s"}, allow=["AttemptFailed", "CommunicatorLost"]) as c:
        for node in c.nodes.values():
            node.engines_killed = True
        s = {**spec(4), "nodes": "a,b"}
        place = [c.node_of_rank(r, 4, 4, ["a", "b"]) for r in range(4)]
        with Team(c["a"], s, TENSORS, place=place) as team:
            seen = []
            for w in range(6):
                if w in (2, 4):
                    c.kill("b" if w == 2 else "a")
                if w in (1, 3):
                    os.kill(c["b"].engine_pids()[w // 2], 9)
                seen.append(team.window(work(w % 3, TENSORS)).result.params_digest)
        assert seen == [digest for _, digest, _ in steps(c["a"], {**s, "nodes": "", "sharding": "none", "name": "here"}, 6)[0]]
