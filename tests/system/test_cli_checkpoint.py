# SPDX-License-Identifier: Apache-2.0
"""gaccctl checkpoint: what is saved, listed and restored, where, and by whom."""
import os
import pathlib
import re
import subprocess

import numpy as np

from cli import GACCCTL, LINEAR, cluster, columns, folder, json_names, one_rank, step  # noqa: F401 (fixtures)
from harness import Client, wait_until



def parameters_of(cluster, job):
    return cluster.run("logs", job, "--rank", 0, "--tail", 1).split()[-1]


def test_checkpoint_save_list_restore(cluster, tmp_path):
    """A job restored from the middle, by id, with other steps, ends with the bits of the one that went through."""
    path = tmp_path / "saved.yaml"
    path.write_text("spec: {ranks: 2, steps: 20, micro_size: 4, batch: 8, optimizer: {type: sgd, lr: 0.01, momentum: 0.5}, "
                    f"checkpoint: {{every_steps: 10}}, launch: {{mode: daemon, command: [{LINEAR}]}}}}")
    cluster.run("submit", "-f", path, "--wait")
    job = cluster.json("jobs", "-a")["jobs"][0]["id"]
    saved = cluster.json("checkpoint", "list", job)["checkpoints"]
    assert set(saved[0]) == json_names(Client(cluster.endpoint).types.Checkpoint.DESCRIPTOR)
    middle = next(c for c in saved if c["applied_step"] == 10)
    assert middle["state"] == "COMPLETE" and pathlib.Path(middle["path"], "manifest.json").exists()
    row = next(x for x in columns(cluster.run("checkpoint", "list", job).replace(" s ", " ").replace(" B", "")) if x["STEP"] == "10")
    assert (row["ID"], row["STATE"], row["PATH"]) == (str(middle["id"]), "COMPLETE", middle["path"])
    spec = cluster.json("checkpoint", "restore", job, "--id", middle["id"], "--name", "again", "--dry-run")
    assert spec["restore_from"] == middle["path"] and spec["name"] == "again" and spec["optimizer"]["momentum"] == 0.5
    out = cluster.run("checkpoint", "restore", job, "--id", middle["id"], "--wait")
    assert "step 11 " in out and "step 10 " not in out
    again = int(re.match(r"job (\d+) ", out)[1])
    assert parameters_of(cluster, again) == parameters_of(cluster, job)
    cluster.run("checkpoint", "restore", middle["path"], "-f", path, "--set", "steps=11", "--wait")
    spec = cluster.json("checkpoint", "restore", middle["path"], "--dry-run", "--set", "optimizer.lr=0.5")
    assert spec["restore_from"] == middle["path"] and (spec["name"], spec["optimizer"]["lr"], spec["steps"]) == ("saved", 0.5, 20)
    again = int(re.match(r"job (\d+) ", cluster.run("checkpoint", "restore", middle["path"], "--wait"))[1])
    assert parameters_of(cluster, again) == parameters_of(cluster, job)
    cluster.run("checkpoint", "restore", tmp_path, code=4)
    assert f"{tmp_path} is no checkpoint: there is no manifest.json in it" in cluster.err
    (tmp_path / "manifest.json").write_text("{}")
    cluster.run("checkpoint", "restore", tmp_path, code=1)
    cluster.run("checkpoint", "restore", job, "--id", 99, code=4)
    cluster.run("checkpoint", "restore", "/nonexistent", "-f", path, code=4)


NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []  # no mode keeps root from reading


def test_what_this_user_may_not_read(cluster, folder):
    """Exit status 6, and who it is that cannot read what: a directory on the way, the checkpoint's directory, a file."""
    closed, there = folder / "closed", folder / "there"
    for p in closed, there:
        p.mkdir()
    (closed / "job.yaml").write_text("spec: {}")
    (there / "manifest.json").write_text("{}")
    folder.chmod(0o755)
    closed.chmod(0), (there / "manifest.json").chmod(0)
    who = r"\S+ \(uid %d\) may not read it, or not enter a directory on the way" % (65534 if NOBODY else os.geteuid())
    for words, what in ((("checkpoint", "restore", closed), f"{closed}/manifest.json"), (("checkpoint", "restore", closed / "x"), closed / "x"),
                        (("checkpoint", "restore", there), there / "manifest.json"), (("submit", "-f", closed / "job.yaml"), closed / "job.yaml")):
        done = subprocess.run([str(w) for w in (*NOBODY, GACCCTL, *words)], env=cluster.env, text=True, capture_output=True, timeout=30)
        assert done.returncode == 6 and re.search(f"{re.escape(str(what))}: {who}", done.stderr), (words, done)
    closed.chmod(0o755)


def test_a_checkpoint_in_an_unusual_place(cluster, folder, monkeypatch):
    """A path with spaces and quotes, given as it is, relative, and through a link: what is saved and restored is at its real place."""
    place, link = folder / "a b  ü'\"c", folder / "link"
    place.mkdir()
    link.symlink_to(place)
    monkeypatch.chdir(place)
    job = cluster.submit("--set", f"checkpoint.dir={place}", "--set", "steps=0")
    with one_rank(cluster, job) as r:
        step(r, 1)
        path = cluster.json("checkpoint", "save", job)["path"]
    assert path.startswith(str(place))
    name = pathlib.Path(path).name
    for given in path, f"./{name}", f"../link/{name}/", link / name:
        assert cluster.json("checkpoint", "restore", given, "--dry-run")["restore_from"] == path
    again = int(cluster.run("checkpoint", "restore", f"./{name}"))
    wait_until("the restore", lambda: cluster.json("describe", f"job/{again}")["applied_step"] == 1)
    pathlib.Path(path, "model.safetensors").rename(folder / "gone")
    cluster.run("checkpoint", "restore", f"./{name}", code=2)
    assert "model.safetensors: No such file or directory" in cluster.err
    cluster.run("cancel", job), cluster.run("cancel", again)


def test_checkpoint_of_a_job_that_runs(cluster):
    job = cluster.submit("--set", "steps=0", micro_size=2)
    with one_rank(cluster, job) as r:
        step(r, 1, micros=2)
        r.push([np.ones(3, np.float32)])
        out = cluster.run("checkpoint", "save", job, "--inside-window")
        found = re.fullmatch(r"checkpoint (\d+) is COMPLETE: step 1, (\S+)\n", out)
        one, = [c for c in cluster.json("checkpoint", "list", job)["checkpoints"] if c["id"] == int(found[1])]
        assert one["carried_micros"] == 1 and one["path"] == found[2]
        assert "see: gaccctl checkpoint list" in cluster.run("checkpoint", "save", job, "--no-wait")
        r.push([np.ones(3, np.float32)])
        r.wait_step()
        wait_until("the second", lambda: [c for c in cluster.json("checkpoint", "list", job)["checkpoints"]
                                          if not c["carried_micros"] and c["state"] == "COMPLETE"])
    cluster.run("cancel", job)
