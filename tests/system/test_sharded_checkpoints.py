# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of jobs with sharding: full or hybrid: each part saves its share of the optimizer state, and a job with any parts goes on from them, sharded
or not."""
import contextlib
import json
import os
import pathlib
import re
import resource
import threading
import time

import numpy as np
import pytest

from batches import OPTIMIZERS, gradients
from cluster import Cluster
from harness import Daemon, GaccError, wait_until
from saving_job import COMPLETE, FAILED, read_safetensors, whole_state
from test_sharding import GROUPS, SMALL, TENSORS, d, hybrid, spec, without  # noqa: F401 (fixture)
from training import Team


class Saved(Team):
    """A job that can be saved; its ranks work in this process."""

    def save(self, **fields):
        return self.daemon.client.jobs.SaveCheckpoint(job=str(self.job), **{"wait": True, "request_id": os.urandom(16), **fields}).checkpoint

    def saved(self):
        return list(self.daemon.client.jobs.ListCheckpoints(job=str(self.job)).checkpoints)

    def steps(self, first, n, tensors=TENSORS):
        """(digest, norm) of n steps from step `first` on."""
        ranks = self.spec["ranks"]
        seen = [self.window([[(1.0 + rank, gradients(1000 * (w % 3) + rank, tensors))] for rank in range(ranks)]).result for w in range(first, first + n)]
        return [(r.window, r.applied_step, r.outcome, r.params_digest, r.grad_norm) for r in seen]

    @classmethod
    def of(cls, daemon, s, n):
        with cls(daemon, s, TENSORS) as job:
            return job.steps(0, n)


def manifest_of(path):
    return json.loads((pathlib.Path(path) / "manifest.json").read_text())


def state_of(path):
    """The model's and the optimizer's tensors, name -> bytes, put together from all files as docs/operations.md says."""
    folder = pathlib.Path(path)
    files = {f["name"]: read_safetensors(folder / f["name"]) for f in manifest_of(path)["files"] if f["name"].startswith(("model", "optimizer"))}
    state = {**files["model.safetensors"], **whole_state(files)}
    assert len(state) == len(files["model.safetensors"]) + len(whole_state(files))
    return {name: data for name, (_, _, data) in state.items()}


def elements(tensors):
    return {t[0]: int(np.prod(t[1])) for t in tensors}


# ---- what is in it ----


def test_each_part_saves_its_share_and_the_model_is_there_once(d):
    with Saved(d, spec(3), TENSORS) as job:
        job.steps(0, 2)
        k = job.save()
        assert (k.state, k.applied_step, k.window, k.carried_micros) == (COMPLETE, 2, 2, 0), k
        m = manifest_of(k.path)
        shares = [f"optimizer-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
        assert (m["version"], m["shares"], [f["name"] for f in m["files"]]) == (4, 3, ["model.safetensors", *shares])
        assert sorted(p.name for p in pathlib.Path(k.path).iterdir()) == sorted(["manifest.json", "model.safetensors", *shares])
        assert k.bytes == sum(f["bytes"] for f in m["files"])
        sizes = [sum(len(data) // 4 for x, (_, _, data) in read_safetensors(pathlib.Path(k.path) / f).items() if ".exp_avg_sq" in x) for f in shares]
        assert max(sizes) - min(sizes) <= 2 * 8192 and all(sizes), sizes
        state, n = state_of(k.path), elements(TENSORS)
        assert {x: len(v) for x, v in state.items() if x.endswith(("exp_avg", "exp_avg_sq"))} == {
            f"{x}.{s}": 4 * n[x] for x in n for s in ("exp_avg", "exp_avg_sq")}
        assert {x for x in state if x.endswith("master")} == {"brain.master", "half.master"}
        assert {x: state[x] for x in n} == {x: a.tobytes() for x, a in job.params().items()}
        partial = [p.name for p in pathlib.Path(k.path).parent.iterdir() if "partial" in p.name]
        assert not partial


def test_the_state_is_that_of_a_job_that_is_not_sharded(d):
    seen = []
    for s in spec(4), spec(4, "none"), hybrid(2):
        with Saved(d, {**s, "param_groups": GROUPS}, TENSORS) as job:
            job.steps(0, 3)
            seen.append(state_of(job.save().path))
    assert seen[0] == seen[1] == seen[2]


def test_one_group_saves_for_all(d):
    with Saved(d, hybrid(2), TENSORS) as job:
        job.steps(0, 2)
        m = manifest_of(job.save().path)
        shards = [f"optimizer-0000{i}-of-00004.safetensors" for i in (1, 2)]
        assert m["shares"] == 4 and [f["name"] for f in m["files"]] == ["model.safetensors", *shards]


# ---- going on from it ----


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
@pytest.mark.parametrize("after", ["full", "none"])
@pytest.mark.parametrize("before", ["full", "none"])
def test_the_same_parts_go_on_with_the_same_bits(d, before, after, optimizer):
    s = spec(3, before, optimizer=OPTIMIZERS[optimizer], param_groups=GROUPS)
    with Saved(d, s, TENSORS) as job:
        job.steps(0, 2)
        k = job.save()
        expected = job.steps(2, 3)
        params = {x: a.tobytes() for x, a in job.params().items()}
    with Saved(d, without(s, sharding=after, name="again", restore_from=k.path), TENSORS) as again:
        assert again.steps(2, 3) == expected
        assert {x: a.tobytes() for x, a in again.params().items()} == params


@pytest.mark.parametrize("s", [spec(4, "none"), spec(4), hybrid(2)], ids=["none", "full", "groups"])
def test_the_state_is_charged_once(s):
    """A checkpoint is taken for 2.6 MiB, and there are 3 for each user: another one does not fit in."""
    with Daemon(conf={"limits.state_per_user": "3MiB"}) as d, Saved(d, s, TENSORS) as job:
        job.steps(0, 1)
        k = job.save()
        assert k.state == COMPLETE, k
        d.allow.append(" CheckpointFailed job=")
        again = job.save()
        takes = float(re.search(r"this one takes ([\d.]+) MiB", again.message)[1])
        assert again.state == FAILED and abs(takes - 2.6) <= 0.11, again


@pytest.mark.parametrize("before,after", [(hybrid(2), spec(4)), (hybrid(2), hybrid(2)), (hybrid(2), spec(4, "none")), (spec(4), hybrid(2))],
                         ids=["full", "groups", "none", "from full"])
def test_groups_go_on_with_the_same_bits(d, before, after):
    with Saved(d, before, TENSORS) as job:
        job.steps(0, 2)
        k = job.save()
        expected = job.steps(2, 3)
    with Saved(d, {**after, "name": "again", "restore_from": k.path}, TENSORS) as again:
        assert again.steps(2, 3) == expected


@pytest.mark.parametrize("more", [{"master": "none"}, {"accumulate_dtype": "f64"}, {"gradient_dtype": "bf16"}], ids=lambda m: next(iter(m)))
def test_whatever_the_numbers_are(d, more):
    with Saved(d, spec(4, **more), TENSORS) as job:
        job.steps(0, 2)
        k = job.save()
        expected = job.steps(2, 2)
    with Saved(d, spec(4, **more, name="again", restore_from=k.path), TENSORS) as again:
        assert again.steps(2, 2) == expected


DIVISIONS = [(4, "full", 2, "full", 2), (2, "full", 4, "full", 4), (4, "full", 4, "none", 4), (3, "none", 2, "full", 3), (3, "full", 1, "none", 1),
             (1, "none", 4, "full", 5), (2, "full", 3, "full", 6)]


@pytest.mark.parametrize("parts,sharding,then,sharded,ranks", DIVISIONS)
@pytest.mark.parametrize("groups", [[], GROUPS], ids=["", "groups"])
def test_other_parts_and_ranks_have_the_same_state(d, parts, sharding, then, sharded, ranks, groups):
    with Saved(d, spec(parts, sharding, param_groups=groups), TENSORS) as job:
        job.steps(0, 2)
        k = job.save()
        job.steps(2, 1)
    s = spec(then, sharded, ranks=ranks, param_groups=groups, name="again", restore_from=k.path)
    with Saved(d, s, TENSORS) as again:
        back = again.save()
        assert (back.state, back.applied_step, manifest_of(back.path).get("shares", 0)) == (COMPLETE, 2, then if sharded == "full" else 0)
        assert state_of(back.path) == state_of(k.path)
        again.steps(2, 2)


@pytest.mark.parametrize("sharding", ["full", "none"])
def test_digests_of_other_cuts_are_not_compared(d, sharding):
    """A group that begins inside a chunk of the update is cut where shares begin, so that the same parameters have another digest. Of f32 alone:
    with masters digests of sharded jobs are not compared in any case."""
    tensors, groups = [("b", [33]), ("w", [700, 160])], [{"pattern": "b", "lr_scale": 0.5}]
    with Saved(d, spec(2, sharding, param_groups=groups), tensors) as job:
        job.steps(0, 2, tensors)
        k = job.save()
    with Saved(d, spec(3, sharding, param_groups=groups, name="again", restore_from=k.path), tensors) as again:
        back = again.save()
        assert state_of(back.path) == state_of(k.path)
        assert manifest_of(back.path)["params_digest"] != manifest_of(k.path)["params_digest"]
        again.steps(2, 1, tensors)


def test_a_chain_of_divisions_changes_no_bit(d):
    """Saved and restored without a step between, before the first one, too: only the manifests differ."""
    path, states = "", []
    for s in spec(2), spec(4, "none"), spec(3), hybrid(2), spec(1, "none"), spec(4), hybrid(2), spec(2, "none"):
        with Saved(d, {**s, "name": f"after {len(states)}", **({"restore_from": path} if path else {})}, TENSORS,
                   {t[0]: np.ones(t[1], np.float32) if len(t) < 3 else gradients(5, TENSORS)[t[0]] for t in TENSORS}) as job:
            path = job.save().path
            states.append(state_of(path))
    assert all(s == states[0] for s in states)


def test_a_small_arena_leaves_parts_without_a_file(d):
    with Saved(d, spec(4), SMALL) as job:
        job.steps(0, 2, SMALL)
        k = job.save()
        expected = job.steps(2, 2, SMALL)
        m = manifest_of(k.path)
        assert m["shares"] == 4 and [f["name"] for f in m["files"]] == ["model.safetensors", "optimizer-00004-of-00004.safetensors"]
    with Saved(d, spec(4, name="again", restore_from=k.path), SMALL) as again:
        assert again.steps(2, 2, SMALL) == expected
    with Saved(d, spec(2, "none", name="whole", restore_from=k.path), SMALL) as whole:
        assert state_of(whole.save().path) == state_of(k.path)


def test_without_a_state_there_are_no_shares(d):
    tensors = TENSORS[:2]  # no masters either
    with Saved(d, spec(2, optimizer=OPTIMIZERS["sgd"]), tensors) as job:
        job.steps(0, 2, tensors)
        k = job.save()
        expected = job.steps(2, 1, tensors)
        assert [f["name"] for f in manifest_of(k.path)["files"]] == ["model.safetensors"]
    with Saved(d, spec(2, optimizer=OPTIMIZERS["sgd"], name="again", restore_from=k.path), tensors) as again:
        assert again.steps(2, 1, tensors) == expected


# ---- when ----


def test_the_policy_saves_while_training_goes_on(d):
    s = spec(3, steps=8, checkpoint={"every_steps": 2, "keep": 2, "at_end": True})
    states = {}
    with Saved(d, s, TENSORS) as job:
        for w in range(8):
            job.steps(w, 1)
            if w % 2:
                wait_until("its checkpoint", lambda: any(k.applied_step == w + 1 and k.state == COMPLETE for k in job.saved()))
                states[w + 1] = job.saved()[-1].path
        wait_until("the end", lambda: d.state(job.job) == "COMPLETED")
        kept = wait_until("two of them", lambda: (k := job.saved()) and len(k) == 2 and k)
        assert [k.applied_step for k in kept] == [6, 8]
        assert not pathlib.Path(states[2]).exists() and len(state_of(states[8])) > len(TENSORS)


# ---- inside a window ----


def push(job, rank, window):
    r = job.ranks[rank]
    r.push(job.as_sent(gradients(1000 * (window % 3) + rank, TENSORS))[0], weight=1.0 + rank)


def close_window(job, ranks, window):
    for rank in ranks:
        push(job, rank, window)
    r = [x.wait_step() for x in job.ranks][0].result
    return (r.window, r.applied_step, r.params_digest, r.grad_norm, r.micro_count)


@pytest.mark.parametrize("after", ["full", "none"])
def test_an_open_window_goes_on(d, after):
    """With the same parts; the sum that each part has is saved as without sharding."""
    s = spec(2)
    with Saved(d, s, TENSORS) as job:
        job.steps(0, 2)
        for rank in (0, 2):
            push(job, rank, 2)
        k = job.save(inside_window=True)
        m = manifest_of(k.path)
        by_part = [f"{n}-0000{i}-of-00002.safetensors" for i in (1, 2) for n in ("optimizer", "carry", "window")]
        assert (k.carried_micros, m["version"], m["shares"], [p["count"] for p in m["parts"]]) == (2, 4, 2, [1, 1])
        assert [f["name"] for f in m["files"]] == ["model.safetensors", *by_part]
        expected = close_window(job, (1, 3), 2), job.steps(3, 1)
    with Saved(d, {**s, "sharding": after, "name": "again", "restore_from": k.path}, TENSORS) as again:
        assert [r.missing for r in again.ranks] == [[], [0], [], [0]]
        assert (close_window(again, (1, 3), 2), again.steps(3, 1)) == expected


def test_an_open_window_of_groups_goes_on(d):
    with Saved(d, hybrid(2), TENSORS) as job:
        job.steps(0, 2)
        for rank in (0, 2):
            push(job, rank, 2)
        k = job.save(inside_window=True)
        expected = close_window(job, (1, 3), 2), job.steps(3, 1)
    with Saved(d, hybrid(2, name="again", restore_from=k.path), TENSORS) as again:
        assert [r.missing for r in again.ranks] == [[], [0], [], [0]]
        assert (close_window(again, (1, 3), 2), again.steps(3, 1)) == expected


def test_an_open_window_of_other_parts_begins_anew(d):
    with Saved(d, spec(2), TENSORS) as job:
        job.steps(0, 1)
        push(job, 0, 1)
        k = job.save(inside_window=True)
    d.allow.append(" CarryDropped job=")
    with Saved(d, spec(4, name="again", restore_from=k.path), TENSORS) as again:
        assert [r.missing for r in again.ranks] == [[0]] * 4
        assert state_of(again.save().path) == state_of(k.path)
        assert again.steps(1, 1)[0][:3] == (1, 2, 1)
    assert any("they are of 2 parts, the job has 4" in line for line in d.events("CarryDropped"))


# ---- files that are not what they were ----


def altered(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def shorter(path):
    path.write_bytes(path.read_bytes()[:-4])


@pytest.mark.parametrize("which", [1, 2, 3])
@pytest.mark.parametrize("what", [altered, shorter, pathlib.Path.unlink], ids=["altered", "shorter", "missing"])
@pytest.mark.parametrize("then", [(3, "full"), (2, "full"), (1, "none")], ids=lambda t: f"{t[0]} {t[1]}")
def test_a_file_that_is_not_the_manifests_is_named(d, which, what, then):
    with Saved(d, spec(3), TENSORS) as job:
        job.steps(0, 1)
        folder = pathlib.Path(job.save().path)
    name = f"optimizer-0000{which}-of-00003.safetensors"
    what(folder / name)
    d.allow += [" RestoreFailed job=", " JobFailed job=", " job="]
    job = None
    with contextlib.suppress(GaccError):
        job = d.submit(spec(then[0], then[1], name="again", restore_from=str(folder)))
    lines = wait_until("its failure", lambda: d.events("RestoreFailed"))
    assert any(name in line for line in lines), lines
    if job is not None:
        wait_until("its end", lambda: d.state(job) == "FAILED")


@pytest.mark.parametrize("which,words", [(2, "does not go on where the shares before it end"), (3, " elements of ")])
def test_a_share_that_the_manifest_leaves_out_is_missed(d, which, words):
    """Whoever wrote such a manifest: the state would have zeros in it."""
    with Saved(d, spec(3), TENSORS) as job:
        job.steps(0, 1)
        folder = pathlib.Path(job.save().path)
    m = manifest_of(folder)
    m["files"] = [f for f in m["files"] if f"0000{which}-of" not in f["name"]]
    (folder / "manifest.json").write_text(json.dumps(m))
    d.allow.append(" job=")
    job = d.submit(spec(2, name="again", restore_from=str(folder)))
    wait_until("its end", lambda: d.state(job) == "FAILED")
    assert all(words in line for line in d.events("RestoreFailed")), d.log()


# ---- deaths and full disks while it is written ----


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_engine_dies_while_the_parts_save(d, which):
    """The checkpoint is made with its successor, or fails and leaves nothing behind; training goes on with the same bits."""
    d.allow.append(" CheckpointFailed job=")
    with Saved(d, spec(3), TENSORS) as job:
        seen = job.steps(0, 1)
        for w in range(1, 5):
            waiting = threading.Thread(target=lambda: saved.append(job.save()))
            saved = []
            waiting.start()
            d.kill_engine(job.job, wait_until("its engine", lambda: d.get_job(job.job).parts[which].engine_pid))
            waiting.join()
            if saved[0].state == COMPLETE:
                assert len(manifest_of(saved[0].path)["files"]) == 4
            seen += job.steps(w, 1)
        k = job.save()
        complete = [c for c in job.saved() if c.state == COMPLETE]
        assert k.state == COMPLETE and len(list(pathlib.Path(k.path).parent.iterdir())) == len(complete)
    assert seen == Saved.of(d, spec(3, "none", name="without"), 5)
    with Saved(d, spec(2, name="again", restore_from=k.path), TENSORS) as again:
        assert state_of(again.save().path) == state_of(k.path)


@pytest.mark.parametrize("which", [0, 1])
def test_a_full_disk_at_one_part_fails_the_checkpoint_and_nothing_else(d, which):
    d.allow += [" CheckpointFailed job=", "checkpoint: "]
    with Saved(d, spec(2), TENSORS) as job:
        job.steps(0, 1)
        pid = d.get_job(job.job).parts[which].engine_pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (100, hard))
        k = job.save()
        assert (k.state, k.path) == (FAILED, "") and "File too large" in k.message and (not which or "part 1" in k.message), k
        wait_until("the sweep", lambda: not list((d.dir / "state/checkpoints" / str(job.job)).iterdir()))
        job.steps(1, 1)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
        assert job.save().state == COMPLETE


def test_gaccd_dies_while_the_parts_save():
    """At any time: what is in the list can be restored, and nothing else is left but what is in the list or whole."""
    with Daemon(supervise=True, allow=["CommunicatorLost", "AttemptFailed", "CheckpointFailed"]) as d, Saved(d, spec(3), TENSORS) as job:
        job.steps(0, 1)
        for i in range(6):
            with contextlib.suppress(GaccError, ConnectionError):
                job.save(wait=False)
            time.sleep(0.004 * i)
            d.kill_gaccd()
            d.wait_ready()
            job.steps(1 + i, 1)
        k = job.save()
        assert k.state == COMPLETE
        folder = pathlib.Path(k.path).parent
        assert not [p for p in folder.iterdir() if "partial" in p.name]
        for path in folder.iterdir():
            m = manifest_of(path)
            assert m["shares"] == 3 and {f["name"] for f in m["files"]} | {"manifest.json"} == {p.name for p in path.iterdir()}
            assert len(state_of(path)) == 4 + 4 * 2 + 2


def test_parts_on_several_nodes_save_into_one_directory():
    """Which all of them see; a job on one node goes on from it."""
    with Cluster(2, conf={"coll.stall": "1s"}, allow=["AttemptFailed", "CommunicatorLost"]) as c:
        s = {**spec(4), "nodes": "a,b"}
        place = [c.node_of_rank(r, 4, 4, ["a", "b"]) for r in range(4)]
        with Saved(c["a"], s, TENSORS, place=place) as job:
            job.steps(0, 2)
            k = job.save()
            assert (k.state, manifest_of(k.path)["shares"]) == (COMPLETE, 4), k
            expected = job.steps(2, 2)
        with Saved(c["a"], {**s, "nodes": "", "name": "again", "restore_from": k.path}, TENSORS) as again:
            assert again.steps(2, 2) == expected
