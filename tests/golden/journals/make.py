# SPDX-License-Identifier: Apache-2.0
"""Makes a golden journal: the state_dir of a gaccd that was killed while it had jobs of every kind, and what it had said of them.

    git worktree add /tmp/old COMMIT           # any version; build its gaccd
    GACC_BUILD_DIR=/tmp/old/build/gcc python3 tests/golden/journals/make.py NAME

writes NAME.tar.xz and NAME.json beside this script, for tests/system/test_golden_journals.py. The harness is that of the tree that
was built; tests/system/golden_journal.py is this tree's. Needs the right to mount (root, or user namespaces).
"""
import contextlib
import io
import json
import lzma
import os
import pathlib
import subprocess
import sys
import tarfile
import time

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ["GACC_BUILD_DIR"])
CACHE = (BUILD / "CMakeCache.txt").read_text().splitlines()
TREE = next(line.partition("=")[2] for line in CACHE if line.startswith("CMAKE_HOME_DIRECTORY"))
sys.path[:0] = [TREE + "/tests/system", str(HERE.parents[1] / "system")]

from golden_journal import GoldenDaemon, GoldenJob, told_of  # noqa: E402
from harness import GaccError, Rank, wait_until  # noqa: E402

SGD = {"type": "sgd", "lr": 0.1}


def started(d, name, **spec):
    return GoldenJob(d, name=name, **spec)


def single(d, name, **spec):
    return started(d, name, **{"ranks": 1, "micro_size": 1, "optimizer": SGD, **spec})


def update(d, job, window, **values):
    d.client.jobs.Update(job=str(job.id), window=window, values=d.client.types.JobValues(**values))


def saved(job, inside_window):
    path = job.save(inside_window=inside_window).path
    return {"path": path, "params": job.digest()}


def running(d):
    """In the middle of window 7, with an update for window 8; of its three checkpoints the first is deleted."""
    job = started(d, "running", checkpoint={"keep": 2}, labels=[{"key": "team", "value": "a"}])
    update(d, job, 1, lr=0.02)
    job.step(1), job.save(), job.step(1)
    boundary = saved(job, False)
    job.step(2)
    update(d, job, 6, lr=0.005, clip_norm=0.5)
    update(d, job, 8, micro_size=3, clip_value=0.25)
    for rank, micro in ((0, 0), (1, 0), (0, 1)):
        job.push(rank, micro)
    inside = saved(job, True)
    job.ranks[0].missing, job.ranks[1].missing = [], [1]
    job.step(3)
    for rank, micro in ((0, 0), (1, 0), (0, 1)):
        job.push(rank, micro)
    return job, {"boundary": boundary, "inside": inside}


def scaled(d):
    """Its loss scale was halved in window 1."""
    job = single(d, "scaled", loss_scale=1024, dynamic_loss_scale={"enabled": True, "growth_interval": 3})
    job.step(1, 1)
    job.push(0, 0, scale=float("inf"))
    job.ranks[0].wait_step()
    job.step(1, 1)
    boundary = saved(job, False)
    job.step(2, 1)
    return job, {"boundary": boundary}


def client(d):
    rank = Rank(d, d.submit({"name": "client", "ranks": 1, "micro_size": 1, "optimizer": {"type": "client"}}), 0, [("w", [4])])
    rank.start({"w": [0] * 4})
    rank.push([[1, 2, 3, 4]])
    rank.wait_step()
    rank.ack_step()
    return rank


def ended(d):
    done = single(d, "completed", steps=2, checkpoint={"at_end": True})
    done.step(2, 1)
    wait_until("its end", lambda: d.state(done.id) == "COMPLETED")
    cancelled = single(d, "cancelled")
    cancelled.step(1, 1)
    d.client.jobs.Cancel(job=str(cancelled.id), reason="enough seen")
    failed = single(d, "failed", nonfinite="error")
    failed.step(1, 1)
    with contextlib.suppress(GaccError):
        failed.push(0, 0, scale=float("inf"))
    wait_until("its failure", lambda: d.state(failed.id) == "FAILED")
    for job in (done, cancelled, failed):
        job.leave()
    command = {"command": ["sh", "-c", "echo out of luck; exit 3"], "working_dir": "/"}
    launched = d.submit({"name": "launched", "ranks": 2, "micro_size": 1, "optimizer": SGD, "launch": "daemon", "launch_command": command})
    wait_until("its failure", lambda: d.state(launched) == "FAILED" and not d.launchers())


def never_attached(d):
    waiting = d.submit({"name": "waiting", "ranks": 1, "micro_size": 1, "optimizer": SGD})
    d.client.jobs.Update(job=str(waiting), window=2, values=d.client.types.JobValues(lr=0.5))
    paused = d.submit({"name": "paused", "ranks": 1, "micro_size": 1, "optimizer": SGD})
    d.client.jobs.Pause(job=str(paused), reason="until Monday")


def pack(folder, to):
    """The same bytes for the same files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            info = tar.gettarinfo(path, path.relative_to(folder).as_posix())
            info.mtime = info.uid = info.gid = 0
            info.uname = info.gname = ""
            assert info.isdir() or info.isreg(), path
            with open(path if info.isreg() else os.devnull, "rb") as f:
                tar.addfile(info, f if info.isreg() else None)
    to.write_bytes(lzma.compress(out.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def known(key, folder):
    """Whether that gaccd has this key."""
    (folder / "empty.yaml").touch()
    command = [BUILD / "bin/gaccd", "--config", folder / "empty.yaml", "--print-config"]
    return key in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main(name):
    with GoldenDaemon(start=False, allow=[" Rank", " Ended job=", " Micro(Void|Rejected) ", " StepSkipped "]) as d:
        if known("journal_reserve", d.dir):
            d.conf["limits.journal_reserve"] = 1 << 20
        d.start()
        job, checkpoints = running(d)
        ended(d)
        other, more = scaled(d)
        holders = [client(d), *job.ranks, *other.ranks]
        never_attached(d)
        begun = GoldenJob(d, name="restored", start=False, restore_from=checkpoints["inside"]["path"])
        begun.attach()
        begun.push(1, 1)
        holders += begun.ranks
        for rank in begun.ranks:
            rank.wait_step()
        time.sleep(1)  # what is not synchronous is on the disk: history, log files
        jobs = d.client.jobs.List(all=True).jobs
        told = {"incarnation": d.client.node.GetNode().incarnation, "checkpoints": {"running": checkpoints, "scaled": more},
                "jobs": {j.spec.name: told_of(d.client, j.id) for j in sorted(jobs, key=lambda j: j.id)}}
        d.kill_gaccd()
        wait_until("the end of the engines", lambda: not d.processes())
        for rank in holders:
            rank.close()
        for left in (d.socket, pathlib.Path(f"{d.socket}.attach")):
            left.unlink(missing_ok=True)
        pack(d.state_dir, HERE / f"{name}.tar.xz")
        (HERE / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
