# SPDX-License-Identifier: Apache-2.0
"""Checkpoints while the writer is slow or dies, or the disk is full."""
import contextlib
import ctypes
import os
import pathlib
import resource
import time

import numpy as np
import pytest

from harness import Daemon, sanitized, wait_until
from saving_job import COMPLETE, FAILED, Job, d, read_safetensors, start_big  # noqa: F401 (fixture)

pytestmark = pytest.mark.sanitize


class StoppedWriter:
    """The engine's thread that writes a checkpoint, held at its next write: the disk is slow. It holds no chunk there."""
    SEIZE, INTERRUPT, SYSCALL, DETACH, WALL, PWRITE64 = 0x4206, 0x4207, 24, 17, 0x40000000, 18

    def __init__(self, job):
        self.job, self.libc = job, ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

    def ptrace(self, request):
        if self.libc.ptrace(request, self.tid, None, None):
            raise OSError(ctypes.get_errno(), "ptrace")

    def find(self, pid):
        """The writer's thread, once it has its name; None if the checkpoint has ended before."""
        end = time.monotonic() + 60
        while True:
            assert time.monotonic() < end, "the writer does not come"
            writing = self.job.saved()[-1].state == 1
            for t in pathlib.Path(f"/proc/{pid}/task").iterdir():
                if (t / "comm").read_text() == "checkpoint\n":
                    return int(t.name)
            if not writing:
                return None

    def catch(self, **what):
        """Begins a checkpoint and holds its writer; the checkpoint."""
        for _ in range(20):
            pid = self.job.d.engine_pid(self.job.id)
            k = self.job.save(wait=False, **what)
            with contextlib.suppress(OSError):
                self.tid = self.find(pid)
                if not self.tid:
                    continue
                self.ptrace(self.SEIZE)
                self.ptrace(self.INTERRUPT)
                if self.run_to_write(pid):
                    return k
            wait_until("its end", lambda: self.job.saved()[-1].state != 1)
        raise AssertionError("the writer was always faster")

    def run_to_write(self, pid):
        while True:
            _, status = os.waitpid(self.tid, self.WALL)
            if not os.WIFSTOPPED(status):
                return False
            if pathlib.Path(f"/proc/{pid}/task/{self.tid}/syscall").read_text().split()[0] == str(self.PWRITE64):
                return True
            self.ptrace(self.SYSCALL)

    def go_on(self):
        self.ptrace(self.DETACH)

    def reap(self):
        """After its process was killed."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.tid, self.WALL)


def test_training_does_not_wait_for_the_disk(d):
    job = start_big(d, micro_size=2)
    job.step(2)
    job.push(0, 0)
    writer = StoppedWriter(job)
    k = writer.catch(inside_window=True)
    before = job.params()
    assert job.saved()[-1].state == 1
    job.push(0, 1)  # into the other half of the accumulator, then the steps overwrite all that is being saved
    job.ranks[0].wait_step()
    job.step(2)
    assert d.get_job(job.id).applied_step == 5 and job.saved()[-1].state == 1 and job.params() != before
    writer.go_on()
    wait_until("the checkpoint", lambda: job.saved()[-1].state == COMPLETE)
    [last] = [c for c in job.saved() if c.id == k.id]
    assert (last.applied_step, last.carried_micros) == (2, 1)
    assert read_safetensors(pathlib.Path(last.path) / "model.safetensors")["w"][2] == before["w"]
    carry = np.frombuffer(read_safetensors(pathlib.Path(last.path) / "carry.safetensors")["w"][2], np.float32)
    assert (carry == 3).all()  # 1 + window 2 + micro 0
    again = start_big(d, micro_size=2, name="again", restore_from=last.path)
    status = pathlib.Path(f"/proc/{d.engine_pid(job.id)}/status").read_text()
    assert sanitized() or int(status.split("RssAnon:")[1].split()[0]) < 24 << 10, "the copies' 32 MiB are still there"
    assert again.params() == before and again.ranks[0].missing == [1]
    again.step(3)
    assert again.params() == job.params()
    job.leave(), again.leave()


def test_an_engine_that_dies_while_it_writes(d):
    job = start_big(d)
    job.step(2, 1)
    writer = StoppedWriter(job)
    k = writer.catch()
    d.kill_engine(job.id)
    writer.reap()
    wait_until("the second try", lambda: job.saved()[-1].state == COMPLETE)
    assert [c.id for c in job.saved()][-1] == k.id
    folder = pathlib.Path(job.saved()[-1].path).parent
    assert not list(folder.glob(".*")), list(folder.iterdir())
    job.step(1, 1)
    job.leave()


def test_a_gaccd_that_dies_while_its_engine_writes():
    with Daemon(supervise=True) as d:
        job = start_big(d)
        job.step(2, 1)
        writer = StoppedWriter(job)
        before = len(job.saved())
        writer.catch()
        n = len([c for c in job.saved() if c.state == COMPLETE])
        folder = d.dir / "state/checkpoints" / str(job.id)
        assert list(folder.glob(".*.partial"))
        d.kill_gaccd()
        with contextlib.suppress(OSError):
            writer.go_on()
        writer.reap()
        d.wait_ready()
        wait_until("the sweep", lambda: not list(folder.glob(".*.partial")))
        assert len(job.saved()) == n >= before
        assert job.save().state == COMPLETE
        job.step(1, 1)
        job.leave()


def test_a_full_disk_fails_the_checkpoint_only(d):
    job = Job(d)
    job.step()
    d.allow += ["CheckpointFailed job=", "checkpoint: "]
    resource.prlimit(d.engine_pid(job.id), resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    k = job.save()
    assert (k.state, k.path) == (FAILED, "") and "model.safetensors: File too large" in k.message, k
    folder = d.dir / "state/checkpoints" / str(job.id)
    assert not list(folder.iterdir())
    [line] = d.events("CheckpointFailed")
    assert "File too large" in line
    job.step()
    resource.prlimit(d.engine_pid(job.id), resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert job.save().state == COMPLETE
    job.leave()
