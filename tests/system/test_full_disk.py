# SPDX-License-Identifier: Apache-2.0
"""A file system that is really full, for checkpoints and for the journal: an error that says so, the job goes on or waits, and what was
acknowledged is there when there is room again. gaccd runs in a mount namespace of its own with a small tmpfs."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import pytest

from harness import Daemon, GaccError, build_dir, wait_until
from launching import launched, wait_state
from saving_job import COMPLETE, FAILED, Job, delete_checkpoint, read_safetensors, start_big

UNSHARE = ["unshare", "--mount", "--propagation", "private", *([] if os.geteuid() == 0 else ["--map-root-user"])]
may_mount = subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode == 0
pytestmark = pytest.mark.skipif(not may_mount, reason="mounts are not allowed here")


class SmallDisk(Daemon):
    """gaccd with `where` (below its folder) as a file system of so many MiB."""

    def __init__(self, where, mib, **how):
        super().__init__(**how)
        self.mount, self.mib = self.dir / where, mib

    def command(self):
        self.mount.mkdir(exist_ok=True)
        mount = f'mount -t tmpfs -o size={self.mib}m,mode=755 tmpfs {self.mount} && exec "$@"'
        return [*UNSHARE, "sh", "-c", mount, "sh", *super().command()]

    @property
    def disk(self):
        """The same directory, from out here."""
        return pathlib.Path(f"/proc/{self.process.pid}/root{self.mount}")

    def fill(self, leave=0):
        """Takes all room but `leave` bytes."""
        with open(self.disk / "filler", "ab") as f:
            def taken():
                fs = os.statvfs(self.disk)
                with contextlib.suppress(OSError):  # gaccd may have written something meanwhile
                    os.posix_fallocate(f.fileno(), 0, fs.f_bavail * fs.f_frsize - leave)
                    return True
            wait_until("the rest of the disk", taken)

    def make_room(self):
        (self.disk / "filler").unlink()


def pages(n):
    return -(-n // 4096) * 4096


def failed_save(d, job, text):
    """A checkpoint that fails with this, and a job that does not notice."""
    listed = [k.id for k in job.saved() if k.state == COMPLETE]
    k = job.save()
    assert (k.state, k.path) == (FAILED, "") and f"{text}: No space left on device" in k.message, k
    assert "No space left on device" in d.events("CheckpointFailed")[-1]
    assert [c.id for c in job.saved() if c.state == COMPLETE] == listed
    folder = d.disk / "ckpt"
    wait_until("the sweep", lambda: not list(folder.glob(".*")))
    assert len(list(folder.glob("step-*"))) == len(listed)
    step = d.get_job(job.id).applied_step
    job.step(1, 1)
    assert d.get_job(job.id).applied_step == step + 1


def test_a_full_disk_fails_the_checkpoint_and_nothing_else():
    with SmallDisk("small", 80) as d:
        d.allow += ["CheckpointFailed job=", "checkpoint: "]
        job = start_big(d, checkpoint={"dir": str(d.mount / "ckpt")})  # 16 MiB of parameters, 16 MiB of momentum
        job.step(1, 1)
        first = job.save()
        assert first.state == COMPLETE
        inside = d.disk / "ckpt" / pathlib.Path(first.path).name
        need = sum(pages(f.stat().st_size) for f in inside.glob("*.safetensors"))
        d.fill(leave=1 << 20)
        failed_save(d, job, "no room for model.safetensors")
        d.make_room(), d.fill(leave=need - 4096)
        failed_save(d, job, "no room for optimizer.safetensors")
        d.make_room(), d.fill(leave=need)
        failed_save(d, job, "writing manifest.json")
        d.make_room()
        before = job.params()
        again = job.save()
        assert again.state == COMPLETE and again.id == first.id + 4
        inside = d.disk / "ckpt" / pathlib.Path(again.path).name
        assert read_safetensors(inside / "model.safetensors")["w"][2] == before["w"]
        job.step(1, 1)
        new = start_big(d, name="new", restore_from=again.path)
        assert new.params() == before
        new.step(1, 1)
        assert new.params() == job.params()
        job.leave(), new.leave()


def reserve_of(d, wanted):
    """Until the journal's reserve has so many MiB."""
    wait_until(f"a reserve of {wanted} MiB", lambda: d.client.node.GetNode().state_disk.journal_reserve == wanted << 20)


def reference(windows):
    with Daemon() as d:
        job = Job(d)
        digests = [job.step().params_digest for _ in range(windows)]
        job.leave()
    return digests


RESERVE = {"limits.journal_reserve": "4MiB"}


def test_jobs_go_on_when_the_disk_is_full_and_new_ones_are_refused():
    wanted = reference(300)
    with SmallDisk("state", 32, conf=RESERVE) as d:
        job, again = Job(d), os.urandom(16)
        other = d.submit(job.spec, request_id=again)
        reserve_of(d, 4)
        seen = [job.step().params_digest for _ in range(2)]
        d.allow += ["DiskFull", "history", "the disk is full: .* of the reserve"]
        d.fill()
        wait_until("it is noticed", lambda: "DiskFull" in d.log())
        seen += [job.step().params_digest for _ in range(298)]
        assert seen == wanted
        with pytest.raises(GaccError) as e:
            d.submit(job.spec)
        assert e.value.code == "RESOURCE_EXHAUSTED"
        assert "no room for a new job: " in str(e.value) and "MiB are free on the disk of" in str(e.value)
        assert e.value.detail.hint.startswith("delete what is not needed on that disk")
        health = subprocess.run([build_dir() / "bin/gaccctl", "health", "--endpoint", d.endpoint], capture_output=True, text=True)
        assert health.returncode == 8 and health.stdout.startswith("disk full: gaccd"), health
        assert d.submit(job.spec, request_id=again) == other  # it is there already
        assert "Checkpoint" not in d.log() and job.save().state == FAILED
        d.allow += ["CheckpointFailed job=", "checkpoint: "]
        d.make_room()
        wait_until("it is noticed", lambda: "DiskHasRoom" in d.log())
        assert re.search(r"DiskHasRoom.* it was full for \d+ s", d.log())  # event DiskFull itself may be lost with the history
        d.submit({**job.spec, "name": "new"})
        assert job.save().state == COMPLETE
        job.leave()


def test_a_full_disk_has_room_again_at_twice_what_made_it_full():
    """A quarter of the reserve, and at least 1 MiB; or it would be full and not full all the time."""
    with SmallDisk("state", 32, conf=RESERVE) as d:
        d.allow += ["DiskFull", "history"]
        reserve_of(d, 4)

        def is_full():
            return d.client.node.GetNode().state_disk.full

        def give_back(n):
            os.truncate(d.disk / "filler", (d.disk / "filler").stat().st_size - n)
        d.fill()
        wait_until("it is noticed", is_full)
        give_back(3 << 19)
        time.sleep(2.5)  # it is looked at once a second
        assert is_full()
        give_back(1 << 20)
        wait_until("it is noticed", lambda: not is_full())
        assert d.log().count(" DiskHasRoom") == 1


def test_a_gaccd_that_is_killed_while_the_disk_is_full_comes_back():
    wanted = reference(5)
    with SmallDisk("state", 32, supervise=True, conf=RESERVE) as d:
        job = Job(d)
        reserve_of(d, 4)
        d.allow += ["DiskFull", "history", "the disk is full: .* of the reserve", "RankLost"]
        d.fill()
        seen = [job.step().params_digest for _ in range(2)]
        for life in range(2):
            d.kill_gaccd()
            d.wait_ready()
            seen.append(job.step().params_digest)
        assert "cannot be laid out" not in d.log()
        d.make_room()
        seen.append(job.step().params_digest)
        assert seen == wanted
        job.leave()


def test_a_journal_without_room_and_reserve_loses_nothing_and_does_not_start_in_a_tight_loop():
    """An older journal: its reserve was never made, as the disk has had no room for it; another program takes the rest."""
    wanted = reference(6)
    with SmallDisk("state", 4, supervise=True, conf={"limits.journal_reserve": "1MiB"}) as d:
        d.allow += [r"journal", r"history", "DiskFull", "gaccd-supervise WARN", "RankLost", "JobRestored"]
        job = Job(d)
        seen = [job.step().params_digest for _ in range(2)]
        d.fill()
        for micro in range(2):
            for rank in range(2):
                job.push(rank, micro)
        with pytest.raises(GaccError):  # the window cannot be committed
            job.ranks[0].gacc.WaitStep(session=job.ranks[0].session, window=2, timeout=1.5)
        wait_until("a third life without room", lambda: d.log().count("exited with 74") >= 3, timeout=40)
        assert "the disk is full and its reserve is used up" in d.log()
        waits = [int(ms) for ms in re.findall(r"exited with 74; starting it again in (\d+) ms", d.log())]
        assert waits[:3] == [200, 400, 800] or waits[:4] == [200, 200, 400, 800], waits
        d.make_room()
        d.wait_ready()
        seen.append([r.wait_step() for r in job.ranks][0].result.params_digest)
        seen += [job.step().params_digest for _ in range(3)]
        assert seen == wanted
        assert d.get_job(job.id).applied_step == 6
        job.leave()


def test_a_rank_that_prints_for_ever_disturbs_nobody():
    """A disk that the output of one second would fill, and a job beside it that steps, saves and completes."""
    wanted = reference(200)
    with SmallDisk("state", 40, supervise=True, conf={**RESERVE, "log.rank_max": "2MiB"}) as d:
        reserve_of(d, 4)
        hog = d.submit(launched("yes", "a line that is printed for ever", ranks=2))
        d.allow += [" Ended job=", "RankExited"]
        job = Job(d, checkpoint={"dir": str(d.mount / "checkpoints"), "every_steps": 20, "keep": 2})
        seen = [job.step().params_digest for _ in range(200)]
        assert seen == wanted and not d.client.node.GetNode().state_disk.full
        assert job.save().state == COMPLETE and not d.events("CheckpointFailed")
        logs = d.disk / "logs" / pathlib.Path(d.get_job(hog).log_dir).name
        sizes = {f.name: f.stat().st_size for f in logs.iterdir()}
        assert sizes["worker_0.log.1"] > 1 << 20 and max(sizes.values()) <= 2 << 20, sizes
        assert all(r.pid for r in d.get_job(hog).ranks)  # it prints still
        d.cancel(hog, grace_ms=100)
        job.leave()


def test_a_checkpoint_beyond_its_users_share_is_refused():
    with SmallDisk("state", 160, conf={**RESERVE, "limits.state_per_user": "48MiB"}) as d:
        d.allow += ["CheckpointFailed job="]
        job = start_big(d)  # 16 MiB of parameters, 16 MiB of momentum; in state_dir/checkpoints
        job.step(1, 1)
        first = job.save()
        assert first.state == COMPLETE
        for _ in range(2):
            job.step(1, 1)
            k = job.save()
            assert k.state == FAILED and "32.0 MiB, and limits.state_per_user is 48.0 MiB" in k.message, k
        wait_until("it is counted", lambda: 32 << 20 <= d.client.node.GetNode().state_disk.user_checkpoints < 40 << 20)
        folder = d.disk / "checkpoints" / str(job.id)
        assert [p.name for p in folder.iterdir()] == [pathlib.Path(first.path).name]
        delete_checkpoint(folder / pathlib.Path(first.path).name)
        wait_until("it is seen", lambda: d.client.node.GetNode().state_disk.user_checkpoints < 1 << 20)
        assert job.save().state == COMPLETE
        job.leave()


def submit_as_nobody(d, spec):
    return int(subprocess.run([sys.executable, pathlib.Path(__file__).parent / "trainers/submit_as.py", d.endpoint, "nobody", json.dumps(spec)],
                              stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_a_users_share_is_its_own():
    """Two users with checkpoints: what one has used up is missing to nobody else."""
    with SmallDisk("state", 160, supervise=True, conf={**RESERVE, "limits.state_per_user": "48MiB", "listen.mode": "0666"}) as d:
        d.dir.chmod(0o755)
        d.allow += ["CheckpointFailed job="]
        theirs = start_big(d, name="theirs", submit=lambda spec: submit_as_nobody(d, spec))
        ours = start_big(d)
        for job in theirs, ours:  # root may attach to every job
            job.step(1, 1)
            assert job.save().state == COMPLETE
        for job in theirs, ours:
            job.step(1, 1)
            k = job.save()
            assert k.state == FAILED and "32.0 MiB, and limits.state_per_user is 48.0 MiB" in k.message, k
        wait_until("it is counted", lambda: 32 << 20 <= d.client.node.GetNode().state_disk.user_checkpoints < 40 << 20)
        delete_checkpoint(d.disk / "checkpoints" / str(ours.id))
        wait_until("it is seen", lambda: d.client.node.GetNode().state_disk.user_checkpoints < 1 << 20)
        assert ours.save().state == COMPLETE and theirs.save().state == FAILED
        theirs.leave(), ours.leave()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_a_user_with_too_many_files_gets_no_more_and_nobody_else_notices():
    """Files that are not counted any more might take anything: no room is left for that user's checkpoints and logs until some are deleted."""
    with Daemon(supervise=True, conf={"listen.mode": "0666"}) as d:
        d.dir.chmod(0o755)
        d.allow += [" Ended job=", "RankExited", "CheckpointFailed job=", "too many to count them all"]
        state = d.dir / "state"
        theirs = Job(d, name="theirs", submit=lambda spec: submit_as_nobody(d, spec))
        ours = Job(d)
        for job in theirs, ours:
            job.step(), job.save()
        hog = d.submit(launched("yes", "a line that is printed for ever", ranks=1))

        def log():
            try:
                return sum(f.stat().st_size for f in (state / "logs").glob(f"{hog}-*/worker_0.log*"))
            except FileNotFoundError:  # it becomes .log.1
                return log()

        def saves():
            time.sleep(0.5)
            return ours.save().state == COMPLETE
        wait_until("a long log", lambda: log() > 1 << 20)
        junk = state / "checkpoints" / str(ours.id) / "junk"
        junk.mkdir()
        for i in range(100_000):
            os.close(os.open(junk / str(i), os.O_CREAT | os.O_WRONLY))
        wait_until("it is told", lambda: "uid 0 has more than 100000 files" in d.log())
        wait_until(lambda: f"a short log, it has {log()} bytes", lambda: log() < 1 << 18)
        k = ours.save()
        assert k.state == FAILED and "root has more than 100000 files in gaccd's state_dir, too many to count" in k.message, k
        assert theirs.save().state == COMPLETE
        shutil.rmtree(junk)
        wait_until("there is room again", saves)
        wait_until("a long log again", lambda: log() > 1 << 20)
        d.cancel(hog, grace_ms=100)
        theirs.leave(), ours.leave()


def test_logs_keep_to_what_their_users_share_leaves():
    with SmallDisk("state", 160, supervise=True, conf={**RESERVE, "limits.state_per_user": "36MiB"}) as d:
        d.allow += [" Ended job=", "RankExited"]
        hogs = [d.submit(launched("yes", "a line that is printed for ever", ranks=2)) for _ in range(2)]
        job = start_big(d)
        job.step(1, 1)

        def sizes():
            found = []
            for hog in hogs:
                for f in (d.disk / "logs").glob(f"{hog}-*/worker_*"):
                    with contextlib.suppress(FileNotFoundError):
                        found.append(f.stat().st_size)
            return found
        wait_until("long logs", lambda: len(sizes()) == 8 and sum(sizes()) > 20 << 20)
        assert job.save().state == COMPLETE  # 32 MiB: 4 are left
        wait_until(lambda: f"short logs; they are {sizes()}", lambda: 1 << 20 < sum(sizes()) <= (36 << 20) - (32 << 20))
        for hog in hogs:
            d.cancel(hog, grace_ms=100)
        job.leave()


def test_logs_of_forgotten_jobs_go_and_nothing_else():
    with SmallDisk("state", 64, supervise=True, conf={**RESERVE, "history.jobs": 1}) as d:
        d.allow += [" Ended job=", "RankExited"]
        jobs = [d.submit(launched("sh", "-c", "echo words; exit 3", ranks=1)) for _ in range(3)]
        for job in jobs:
            wait_state(d, job, "FAILED")
        folders = [next((d.disk / "logs").glob(f"{job}-*")) for job in jobs]
        assert all((f / "worker_0.log").read_text() == "words\n" for f in folders)
        (folders[0] / "results.txt").write_text("mine")
        wait_until("the second one's end", lambda: not folders[1].exists(), 60)
        wait_until("the first one's end", lambda: not (folders[0] / "worker_0.log").exists())
        assert [p.name for p in folders[0].iterdir()] == ["results.txt"]
        assert (folders[2] / "worker_0.log").exists()
