"""A file system that is really full, for checkpoints and for the journal: an error that says so, the job goes on or waits, and what was
acknowledged is there when there is room again. gaccd runs in a mount namespace of its own with a small tmpfs."""
import os
import pathlib
import subprocess

import pytest

from harness import Daemon, GaccError, wait_until
from saving_job import COMPLETE, FAILED, Job, read_safetensors, start_big

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
        fs = os.statvfs(self.disk)
        with open(self.disk / "filler", "ab") as f:
            os.posix_fallocate(f.fileno(), 0, fs.f_bavail * fs.f_frsize - leave)

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


def test_a_journal_without_room_loses_nothing():
    with Daemon() as reference:
        job = Job(reference)
        wanted = [job.step().params_digest for _ in range(6)]
        job.leave()
    with SmallDisk("state", 4, supervise=True) as d:
        job = Job(d)
        seen = [job.step().params_digest for _ in range(2)]
        d.allow += [r"journal", r"history", "disk is full", "gaccd-supervise WARN", "RankLost", "JobRestored"]
        d.fill()
        for micro in range(2):
            for rank in range(2):
                job.push(rank, micro)
        with pytest.raises(GaccError):  # the window cannot be committed
            job.ranks[0].gacc.WaitStep(session=job.ranks[0].session, window=2, timeout=1.5)
        wait_until("a second life without room", lambda: "cannot start: the journal cannot be written" in d.log())
        assert "journal: COMMIT: database or disk is full" in d.log()
        d.make_room()
        d.wait_ready()
        seen.append([r.wait_step() for r in job.ranks][0].result.params_digest)
        seen += [job.step().params_digest for _ in range(3)]
        assert seen == wanted
        assert d.get_job(job.id).applied_step == 6
        job.leave()
