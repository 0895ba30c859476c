# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: what is saved, when, what a job makes of it, and what is refused."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from harness import Daemon, GaccError, Rank, build_dir, to_bf16, wait_until
from launching import launched
from saving_job import COMPLETE, OPTIMIZERS, SHAPES, Job, d, delete_checkpoint, gradients, read_safetensors  # noqa: F401 (fixture)

pytestmark = pytest.mark.sanitize


# ---- what is in it ----


def test_the_files_hold_the_parameters(d):
    job = Job(d)
    job.step(2)
    job.push(0, 0)
    k = job.save(inside_window=True)
    assert (k.state, k.applied_step, k.window, k.carried_micros) == (COMPLETE, 2, 2, 1), k
    folder = pathlib.Path(k.path)
    assert folder.name == f"step-2-{k.id}-{d.get_job(job.id).uuid[:8]}" and oct(folder.stat().st_mode & 0o7777) == "0o750"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["carry"]["count"] == 1 and manifest["inside_window"] and manifest["last"]["window"] == 1
    sums = {line.split()[1]: line.split()[0] for line in subprocess.run(
        ["sha256sum", *[f["name"] for f in manifest["files"]]], cwd=folder, capture_output=True, text=True).stdout.splitlines()}
    assert sums == {f["name"]: f["sha256"] for f in manifest["files"]} and len(sums) == 4
    model = read_safetensors(folder / "model.safetensors")
    params = job.params()
    assert set(model) == set(SHAPES)  # the tied tensor is its target
    for name, (dtype, shape, data) in model.items():
        assert data == params[name] and shape == SHAPES[name], name
    assert [model[n][0] for n in SHAPES] == ["F32", "F32", "F16", "BF16"]
    optimizer = read_safetensors(folder / "optimizer.safetensors")
    assert set(optimizer) == {f"{n}.{s}" for n in SHAPES for s in ("exp_avg", "exp_avg_sq")} | {"half.master", "brain.master"}
    master = np.frombuffer(optimizer["brain.master"][2], np.float32)
    assert to_bf16(master).tobytes() == params["brain"]
    carry = np.frombuffer(read_safetensors(folder / "carry.safetensors")["w"][2], np.float32)
    assert (carry == gradients(2, 0, 0)["w"].ravel()).all()
    window = read_safetensors(folder / "window.safetensors")
    assert np.frombuffer(window["state"][2], np.uint64).tolist() == [1, 0, 0, 0]
    assert np.frombuffer(window["weight"][2], np.float64)[0] == 1
    job.leave()


# ---- going on from it ----


@pytest.mark.parametrize("case", ["sgd", "momentum", "adamw", "lamb", "f64", "no master", "loss scale"])
def test_training_goes_on_with_the_same_bits(d, case):
    spec = {"optimizer": OPTIMIZERS.get(case, OPTIMIZERS["adamw"]),
            "schedule": {"type": "cosine", "warmup_steps": 2, "total_steps": 9, "min_factor": 0.1}, "clip_norm": 1.0}
    if case == "f64":
        spec["accumulate_dtype"] = "f64"
    if case == "no master":
        spec["master"] = "none"
    if case == "loss scale":
        spec |= {"loss_scale": 8, "dynamic_loss_scale": {"enabled": True, "growth_interval": 2, "hysteresis": 1}}
    job = Job(d, **spec)
    job.step(3)
    job.push(0, 0), job.push(1, 0), job.push(0, 1)  # inside window 3
    k = job.save(inside_window=True)
    again = Job(d, name="again", restore_from=k.path, **spec)
    assert [r.missing for r in again.ranks] == [[], [1]]
    assert all((r.window, r.resumed.applied_step) == (3, 3) for r in again.ranks)
    assert again.params() == job.params() and again.ranks[0].loss_scale == job.ranks[0].loss_scale
    assert again.ranks[0].resumed.last.applied_step == 3
    job.push(1, 1), again.push(1, 1)
    a, b = [[r.wait_step() for r in j.ranks][0].result for j in (job, again)]
    for f in ("window", "applied_step", "total_weight", "micro_count", "grad_norm", "lr", "mean_loss", "params_digest",
              "next_loss_scale"):
        assert getattr(a, f) == getattr(b, f), f
    a, b = job.step(3), again.step(3)
    assert a.params_digest == b.params_digest and a.lr == b.lr and a.next_loss_scale == b.next_loss_scale
    assert again.params() == job.params()
    assert d.get_job(again.id).counters == d.get_job(job.id).counters
    job.leave(), again.leave()


def equal_results(jobs):
    a, b = [[r.wait_step() for r in j.ranks][0].result for j in jobs]
    for f in ("window", "applied_step", "total_weight", "micro_count", "grad_norm", "lr", "mean_loss", "params_digest"):
        assert getattr(a, f) == getattr(b, f), f


def test_updates_go_on_with_the_checkpoint():
    with Daemon(supervise=True) as d:
        spec = {"schedule": {"type": "cosine", "total_steps": 20, "min_factor": 0.1}, "clip_norm": 1.0}
        job = Job(d, **spec)

        def update(window, **values):
            d.client.jobs.Update(job=str(job.id), window=window, values=d.client.types.JobValues(**values))

        update(1, micro_size=3, lr=0.03)
        job.step(2, micros=3)  # windows 0 (two micro-batches a rank) and 1
        update(4, lr=0.001), update(4, clip_norm=0.25), update(5, micro_size=1), update(5, clip_value=0.01)
        job.push(0, 0), job.push(1, 0), job.push(0, 1)
        k = job.save(inside_window=True)
        update(3, lr=0.5)  # not of the checkpoint
        manifest = json.loads((pathlib.Path(k.path) / "manifest.json").read_text())
        assert manifest["version"] == 2 and manifest["micro_size"] == 3
        assert manifest["updates"][0] == {"window": 2, "values": {"micro_size": 3, "lr": 0.03}} and len(manifest["updates"]) == 5
        again = Job(d, name="again", restore_from=k.path, **spec)
        assert [r.missing for r in again.ranks] == [[2], [1, 2]]
        d.kill_gaccd()  # the updates are in its journal, not only in the manifest
        delete_checkpoint(k.path)
        d.wait_ready()
        again.ranks[0].gacc.WaitReady(session=again.ranks[0].session)
        assert len(d.get_job(again.id).updates) == 4 and d.get_job(again.id).micro_size == 3
        d.client.jobs.Update(job=str(again.id), window=3, values=d.client.types.JobValues(lr=0.5))
        for window, micros in ((2, 3), (3, 3), (4, 3), (5, 1), (6, 1)):
            for j in (job, again):
                for micro in range(micros):
                    for rank in range(2):
                        if micro >= j.ranks[rank].micro:
                            j.push(rank, micro)
            equal_results((job, again))
            assert again.ranks[0].window == window + 1
        assert again.params() == job.params()
        job.leave(), again.leave()


def test_a_new_specification_wins_over_the_updates(d):
    job = Job(d)
    d.client.jobs.Update(job=str(job.id), values=d.client.types.JobValues(lr=0.03, micro_size=3))
    d.client.jobs.Update(job=str(job.id), window=9, values=d.client.types.JobValues(lr=0.04))
    job.step(2, micros=3)
    path = job.save().path
    lr = {**OPTIMIZERS["adamw"], "lr": 0.5}
    again = Job(d, name="again", restore_from=path, optimizer=lr, start=False)
    j = d.get_job(again.id)
    assert j.micro_size == 3 and not j.updates  # what it leaves alone is as it was
    [line] = d.events("UpdatesDropped")
    assert "(lr 0.01 -> 0.5)" in line
    d.allow += ["RestoreFailed job=", " Ended job="]
    refused(d, "INVALID_SPEC", "micro_size is 3, must be 1..2", name="b", restore_from=path, max_micro_size=2)
    manifest = pathlib.Path(path) / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "updates": content["updates"][::-1]}))
    refused(d, "MALFORMED", "its updates are not in the order of their windows", name="c", restore_from=path)
    job.leave()


def test_values_of_a_job_change_only_when_it_is_known_where_it_begins():
    with Daemon(conf={"limits.jobs_per_user": 1}) as d:
        job = Job(d)
        job.step(2)
        waits = d.submit(launched("sleep", 1000, ranks=2, micro_size=2, steps=0, optimizer=OPTIMIZERS["adamw"], restore_from=job.save().path))
        def update():
            return d.client.jobs.Update(job=str(waits), values=d.client.types.JobValues(lr=0.5)).window
        with pytest.raises(GaccError) as e:
            update()
        assert (e.value.code, e.value.reason) == ("FAILED_PRECONDITION", "NOT_READY")
        assert f"job {waits} has not read its checkpoint yet" in e.value.text and not d.get_job(waits).updates
        d.cancel(job.id)
        job.leave()
        wait_until("its turn", lambda: d.get_job(waits).window == 2)
        assert update() == 3
        d.cancel(waits)
        wait_until("the launcher's end", lambda: not d.launchers())


def test_a_boundary_is_saved_without_the_open_window(d):
    job = Job(d)
    job.step(2)
    job.push(0, 0)
    k = job.save()
    assert (k.applied_step, k.window, k.carried_micros) == (2, 2, 0)
    assert not (pathlib.Path(k.path) / "carry.safetensors").exists()
    again = Job(d, name="again", restore_from=k.path)
    assert [r.missing for r in again.ranks] == [[0, 1], [0, 1]]
    assert again.params() == job.params()
    job.leave(), again.leave()


def test_another_number_of_ranks_begins_the_window_anew(d):
    job = Job(d)
    job.step(2)
    job.push(0, 0), job.push(1, 0)
    k = job.save(inside_window=True)
    d.allow.append(" CarryDropped job=")
    again = Job(d, ranks=3, name="again", restore_from=k.path)
    [line] = d.events("CarryDropped")
    assert "2 micro-batches of window 2 are dropped" in line and "2 ranks" in line and "has 3" in line
    assert [r.missing for r in again.ranks] == [[0, 1]] * 3 and again.params() == job.params()
    assert again.step().micro_count == 6
    job.leave(), again.leave()


def test_a_restored_job_survives_gaccd_and_engine():
    with Daemon(supervise=True) as d:
        job = Job(d)
        job.step(2)
        job.push(0, 0)
        k = job.save(inside_window=True)
        again = Job(d, name="again", restore_from=k.path, start=False)
        d.kill_gaccd()
        d.wait_ready()
        wait_until("the restore", lambda: d.get_job(again.id).window == 2)
        again.attach()
        d.kill_engine(again.id)
        assert again.ranks[0].gacc.WaitReady(session=again.ranks[0].session).missing == [1]
        d.kill_gaccd()
        d.wait_ready()
        for j in (job, again):
            j.push(1, 0), j.push(0, 1), j.push(1, 1)
        a, b = [[r.wait_step() for r in j.ranks][0].result for j in (job, again)]
        assert a.params_digest == b.params_digest and b.applied_step == 3
        job.leave(), again.leave()


# ---- when ----


def test_the_policy(d):
    job = Job(d, checkpoint={"every_steps": 2, "keep": 2, "at_end": True}, steps=7)
    seen = {}
    for step in range(1, 8):
        job.step()
        if step % 2 == 0:
            wait_until("a checkpoint", lambda: any(k.applied_step == step and k.state == COMPLETE for k in job.saved()))
            seen[step] = job.params()
    wait_until("the end", lambda: d.state(job.id) == "COMPLETED")
    kept = job.saved()
    assert [(k.applied_step, k.state) for k in kept] == [(6, COMPLETE), (7, COMPLETE)]
    folder = pathlib.Path(kept[0].path).parent
    assert sorted(p.name for p in folder.iterdir()) == sorted(pathlib.Path(k.path).name for k in kept)
    model = read_safetensors(pathlib.Path(kept[0].path) / "model.safetensors")
    assert {n: t[2] for n, t in model.items()} == {n: seen[6][n] for n in model}
    job.leave()
    with pytest.raises(GaccError) as e:
        job.save()
    assert e.value.reason == "JOB_ENDED"


def test_a_checkpoint_that_cannot_be_deleted_keeps_no_others(d):
    """Its user has put a link in its place."""
    d.allow += ["CheckpointNotDeleted job=", "checkpoint: deleting"]
    job = Job(d, checkpoint={"keep": 2})
    paths = []
    for step in range(6):
        job.step()
        paths.append(pathlib.Path(job.save().path))
        if step == 1:
            paths[0].rename(d.dir / "moved")
            paths[0].symlink_to(d.dir / "moved")
    wait_until(lambda: f"{job.saved()}", lambda: [k.path for k in job.saved()] == [str(paths[i]) for i in (0, 4, 5)])
    assert [p.exists() for p in paths] == [True, False, False, False, True, True]
    assert (d.dir / "moved/manifest.json").exists()
    assert "symbolic link" in d.events("CheckpointNotDeleted")[0]


def test_requests_are_idempotent(d):
    job = Job(d)
    job.step()
    request = os.urandom(16)
    k = job.save(request_id=request)
    assert job.save(request_id=request).id == k.id and len(job.saved()) == 1
    later = job.save(wait=False)
    assert later.id == k.id + 1
    wait_until("the second", lambda: [c.state for c in job.saved()] == [COMPLETE, COMPLETE])
    job.leave()


def test_the_list_survives_gaccd():
    with Daemon(supervise=True) as d:
        job = Job(d)
        job.step()
        request = os.urandom(16)
        k = job.save(request_id=request)
        d.kill_gaccd()
        d.wait_ready()
        assert job.saved() == [k]
        job.step()
        assert job.save(request_id=request) == k
        assert job.save().id == k.id + 1
        job.leave()


def test_a_list_comes_in_pages(d):
    """Whoever keeps every checkpoint gets them all, and no answer is larger than a page."""
    job = Job(d, ranks=1)
    for _ in range(1003):
        assert job.save().state == COMPLETE

    def ids(**page):
        return [k.id for k in d.client.jobs.ListCheckpoints(job=str(job.id), **page).checkpoints]

    assert ids() == ids(limit=2000) == list(range(4, 1004))
    assert ids(before_id=4) == [1, 2, 3] and ids(before_id=1) == []
    assert ids(limit=2) == [1002, 1003] and ids(before_id=1002, limit=3) == [999, 1000, 1001]
    listed = subprocess.run([build_dir() / "bin/gaccctl", "--endpoint", d.endpoint, "checkpoint", "list", str(job.id), "-o", "json"],
                            capture_output=True, text=True, check=True).stdout
    assert [k["id"] for k in json.loads(listed)["checkpoints"]] == list(range(1, 1004))
    job.leave()


def test_a_half_deleted_checkpoint_is_not_listed():
    """The manifest goes first. gaccd died before it had deleted the rest and recorded that."""
    with Daemon(supervise=True) as d:
        job = Job(d)
        job.step()
        half, whole = job.save(), job.save()
        (pathlib.Path(half.path) / "manifest.json").unlink()
        d.kill_gaccd()
        d.wait_ready()
        assert job.saved() == [whole]
        wait_until("the rest is deleted", lambda: not pathlib.Path(half.path).exists())
        job.leave()


# ---- what is refused ----


def refused(d, reason, text, **spec):
    with pytest.raises(GaccError) as e:
        d.submit({"ranks": 2, "micro_size": 2, "optimizer": OPTIMIZERS["adamw"], **spec})
    assert e.value.reason == reason and text in e.value.text, e.value


def test_what_does_not_fit_is_refused(d):
    job = Job(d)
    job.step()
    job.push(0, 0)
    path = pathlib.Path(job.save(inside_window=True).path)
    d.allow += ["AllocationFailed job=", " Ended job=", "RestoreFailed job="]
    tensors = [{"name": "w", "shape": [37, 6], "dtype": 1}]
    refused(d, "LAYOUT_MISMATCH", "tensor", name="a", restore_from=str(path), tensors=tensors)
    refused(d, "INVALID_SPEC", "optimizer adamw", name="b", restore_from=str(path), optimizer=OPTIMIZERS["momentum"])
    refused(d, "INVALID_SPEC", "steps is 1, and the checkpoint has 1 applied steps: nothing is left to do; raise steps", name="steps",
            restore_from=str(path), steps=1)
    refused(d, "INVALID_SPEC", "master: f32", name="b2", restore_from=str(path), master="none")
    refused(d, "INVALID_SPEC", "restore_from", name="c", restore_from="relative")
    refused(d, "INVALID_SPEC", "restore_from", name="d", restore_from="/a/../b")
    refused(d, "INVALID_SPEC", "checkpoint.dir", name="e", checkpoint={"dir": "x"})
    refused(d, "INVALID_SPEC", "optimizer client", name="f", restore_from=str(path), optimizer={"type": "client"})
    refused(d, "INVALID_ARGUMENT", "No such file", name="g", restore_from=str(path.parent / "step-9-9"))
    manifest = (path / "manifest.json").read_text()
    for old, new, says in (('"version": 1', '"version": 7', "version 7"), ('"files"', '"file"', "files"), ("{", "", "manifest.json:")):
        (path / "manifest.json").write_text(manifest.replace(old, new, 1))
        refused(d, "VERSION_SKEW" if "7" in new else "MALFORMED", says, name=f"h{says[:2]}", restore_from=str(path))
    (path / "manifest.json").write_text(manifest)
    model = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(model[:-1])
    refused(d, "MALFORMED", "model.safetensors", name="i", restore_from=str(path))
    (path / "model.safetensors").write_bytes(model[:-1] + bytes([model[-1] ^ 1]))
    broken = d.submit({"ranks": 2, "micro_size": 2, "optimizer": OPTIMIZERS["adamw"], "name": "j", "restore_from": str(path)})
    wait_until("its failure", lambda: d.state(broken) == "FAILED")
    assert "model.safetensors: its SHA-256 is not the manifest's" in d.get_job(broken).reason
    (path / "model.safetensors").write_bytes(model)
    (path / "optimizer.safetensors").rename(path / "o")
    (path / "optimizer.safetensors").symlink_to("/etc/passwd")
    refused(d, "INVALID_ARGUMENT", "optimizer.safetensors", name="k", restore_from=str(path))
    job.leave()


def test_a_reducing_job_has_nothing_to_save(d):
    job = Job(d, optimizer={"type": "client"})
    with pytest.raises(GaccError) as e:
        job.save()
    assert e.value.reason == "NOT_SUPPORTED"
    job.leave()


AS_OTHER = """
import sys
sys.path.insert(0, sys.argv[1])
from gacc_client import Client, GaccError
import os

c = Client(sys.argv[2])
for fields in eval(sys.argv[3]):
    try:
        spec = c.types.spec(name="t" + os.urandom(4).hex(), ranks=1, micro_size=1, optimizer={"type": "sgd", "lr": 1}, **fields)
        print("OK", c.jobs.Submit(spec=spec, request_id=os.urandom(16)).job.id)
    except GaccError as e:
        print(e.reason, e.text)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_nobody_writes_or_reads_where_he_could_not(tmp_path):
    tmp_path.chmod(0o777)
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    for p in (outside, inside):
        p.mkdir()
        p.chmod(0o777)
    (inside / "out").symlink_to(outside)
    with Daemon(conf={"checkpoint.allowed_dirs": f"/nowhere:{inside}", "listen.mode": "0666"}) as d:
        d.allow += ["AllocationFailed job=", " Ended job=", "RestoreFailed job=", "CheckpointFailed job="]
        mine = Job(d)
        mine.step()
        of_root = mine.save().path
        shutil.copytree(of_root, inside / "copy")
        asks = [{"checkpoint": {"dir": str(outside)}}, {"restore_from": str(outside / "x")}, {"checkpoint": {"dir": "/"}},
                {"checkpoint": {"dir": f"{inside}-not"}}, {"restore_from": of_root}, {"restore_from": str(inside / "copy")},
                {"restore_from": str(inside / "out" / "x")}, {"checkpoint": {"dir": str(inside / "%j"), "at_end": True}}]
        d.dir.chmod(0o755)
        for p in (d.socket, d.dir / "g.sock.attach"):
            p.chmod(0o666)
        there = pathlib.Path(__file__).parent

        def ask(asks):
            out = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", AS_OTHER, there,
                                  d.endpoint, repr(asks)], capture_output=True, text=True, env={**os.environ, "HOME": "/"})
            return [line.split() for line in out.stdout.splitlines()] or out

        answers = ask(asks)
        assert [a[0] for a in answers] == ["PERMISSION_DENIED"] * 7 + ["OK"], "\n".join(map(" ".join, answers))
        assert not list(outside.iterdir())
        [there_too] = ask([{"checkpoint": {}}])  # the usual place
        with Rank(d, int(there_too[1]), 0, [("w", [3])], 1) as r:
            r.start({"w": np.zeros(3)})
            k = d.client.jobs.SaveCheckpoint(job=there_too[1], request_id=os.urandom(16), wait=True).checkpoint
            read = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sha256sum", f"{k.path}/model.safetensors"]
            assert subprocess.run(read, capture_output=True).returncode == 0
            for p in (d.dir / "state/checkpoints", pathlib.Path(k.path).parent):  # whose names tell of other users' jobs
                assert subprocess.run([*read[:4], "ls", p], capture_output=True).returncode == 2, p
            r.detach()
        with Rank(d, int(answers[-1][1]), 0, [("w", [3])], 1) as r:  # root may; what is saved belongs to the job's user
            r.start({"w": np.zeros(3)})
            k = d.client.jobs.SaveCheckpoint(job=answers[-1][1], request_id=os.urandom(16), wait=True).checkpoint
            assert k.path.startswith(f"{inside}/") and k.state == COMPLETE, k
            assert {(p.stat().st_uid, p.stat().st_gid) for p in [pathlib.Path(k.path), *pathlib.Path(k.path).iterdir()]} == {(65534, 65534)}
            assert ask([{"restore_from": k.path}])[0][0] == "OK"
            r.detach()
        mine.leave()


# ---- jobs that share a directory ----


def newest_two(job, step):
    """Its checkpoints, when that of `step` is complete and older ones are deleted, each looked at: directory -> step."""
    def there():
        k = job.saved()
        return [c.applied_step for c in k] == [step - 1, step] and k[1].state == COMPLETE and k
    saved = wait_until("the checkpoints", there)
    for k in saved:
        assert json.loads((pathlib.Path(k.path) / "manifest.json").read_text())["job"]["id"] == job.id
    return {k.path: k.applied_step for k in saved}


def test_jobs_may_share_a_directory(tmp_path):
    """No %j in it, the same steps, the same ids: each lists, deletes and restores what is its own, also after an end and a restart."""
    policy = {"dir": str(tmp_path / "ckpt"), "every_steps": 1, "keep": 2}
    with Daemon(supervise=True) as d:
        both = [Job(d, name=name, checkpoint=policy, optimizer=OPTIMIZERS[name]) for name in ("sgd", "adamw")]

        def save_steps(*steps, of):
            for step in steps:
                for job in of:
                    job.step()
                    wait_until("its checkpoint", lambda: [k.state for k in job.saved() if k.applied_step == step] == [COMPLETE])

        save_steps(1, 2, 3, of=both)
        a, b = both
        was, params = newest_two(a, 3), a.params()
        assert not was.keys() & newest_two(b, 3).keys()
        d.cancel(a.id)
        a.leave()
        d.kill_gaccd()
        d.wait_ready()
        save_steps(4, 5, 6, of=[b])
        assert newest_two(a, 3) == was
        there = {*was, *newest_two(b, 6)}
        wait_until("the older ones to be deleted", lambda: {str(p) for p in (tmp_path / "ckpt").glob("step-*")} == there)
        again = Job(d, name="again", checkpoint=policy, optimizer=OPTIMIZERS["sgd"], restore_from=list(was)[-1])
        assert again.params() == params and again.params() != b.params()
        save_steps(4, 5, of=[again])
        newest_two(again, 5)
        assert newest_two(a, 3) == was
        again.leave(), b.leave()
