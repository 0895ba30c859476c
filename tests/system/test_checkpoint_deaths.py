# SPDX-License-Identifier: Apache-2.0
"""gaccd or an engine dies in the middle of a checkpoint, at a named place, and what comes after it: of directories that no record names, and of
sharded jobs, whose parts each save and restore a share."""
import contextlib
import os
import pathlib

import pytest

from failpoint_job import Control
from harness import Daemon, GaccError, wait_until
from saving_job import COMPLETE, FAILED, Job
from test_failpoints import EXPECTED, LOADING, POINTS, SAVING
from test_sharded_checkpoints import Saved, manifest_of, state_of
from test_sharding import TENSORS, spec

pytestmark = pytest.mark.failpoints


@pytest.mark.parametrize("how", ["request", "end"])
def test_a_directory_that_no_record_names_keeps_its_id(how):
    """gaccd dies between a checkpoint's name and its record. The next one, of the same step, is asked for before the sweep has seen it."""
    with Daemon(supervise=True, allow=["was killed by signal 9; starting it again"]) as d:
        control = Control(d.dir / "run/failpoints.sock")
        job = Job(d, steps=2, checkpoint={"at_end": how == "end"})
        job.step()
        if how == "end":
            job.step()  # which is the last: it is saved
            job_step = 2
        control.do("arm gaccd_save_sweep_before sleep 700")
        control.do("arm gaccd_save_sealed crash")
        if how == "request":
            job.save(wait=False)
            job_step = 1
        folder = d.dir / "state/checkpoints" / str(job.id)
        wait_until("the directory", lambda: [p.name for p in folder.glob("step-*")], 20)
        d.wait_ready()
        if how == "request":
            assert job.save(request_id=os.urandom(16)).state == COMPLETE
        wait_until("a checkpoint", lambda: [k.state for k in job.saved()] == [COMPLETE], 20)
        [k] = job.saved()
        assert (k.id, k.applied_step) == (2, job_step)
        assert sorted(p.name.rsplit("-", 1)[0] for p in folder.glob("step-*")) == [f"step-{job_step}-1", f"step-{job_step}-2"]
        assert pathlib.Path(k.path).name.startswith(f"step-{job_step}-2-") and not d.events("CheckpointFailed")
        control.do("disarm all")
        control.close()
        job.leave()


# ---- shares ----

PARTS, THEN = 3, 2  # of the job that is saved, and of the one that goes on from it


def points(kind, parts):
    """(name, how often it is passed before it kills): engines pass their points once for each part, and die one after the other.
    Those of trainers' states are in test_trainer_state_faults.py."""
    return [(name, skip) for name, process, _, of_parts in POINTS if kind in name and "_states_" not in name and not of_parts
            for skip in range(parts if process == "engine" else 1)]


class Stage:
    """A supervised gaccd, the socket of its failpoints, and a checkpoint without deaths with what comes after it."""

    def __init__(self):
        self.d = Daemon(supervise=True, allow=EXPECTED).start()
        self.control = Control(self.d.dir / "run/failpoints.sock")
        with Saved(self.d, spec(PARTS), TENSORS) as job:
            self.first = job.steps(0, 2)
            self.path = job.save().path
            self.then = job.steps(2, 2)
        self.state = state_of(self.path)

    def arm(self, point, skip):
        self.control.do("disarm all")
        self.control.do(f"arm {point} crash skip {skip} count 1")

    def is_whole(self, path):
        with contextlib.suppress(FileNotFoundError):  # it is being deleted
            m = manifest_of(path)
            assert m["shares"] == PARTS and (m["applied_step"] != 2 or state_of(path) == self.state)
            return {f["name"] for f in m["files"]} | {"manifest.json"} == {p.name for p in path.iterdir()} and "partial" not in path.name
        return False

    def wait_fired(self, point):
        """Counters are of all lives of gaccd."""
        wait_until(f"{point} to fire", lambda: self.control.hits()[point][1])
        self.d.wait_ready()


@pytest.fixture(scope="module")
def stage():
    s = Stage()
    yield s
    s.control.close()
    s.d.stop()
    s.d.__exit__(None, None, None)


@pytest.mark.parametrize("point,skip", points(SAVING, PARTS), ids=str)
def test_a_death_while_shares_are_saved(stage, point, skip):
    """The checkpoint is whole, listed or not, or there is none; training goes on with the same bits, and the next one is whole."""
    keep = 1 if "_gone_" in point or "_delete_" in point else 3
    with Saved(stage.d, spec(PARTS, name=f"{point} {skip}", checkpoint={"keep": keep}), TENSORS) as job:
        assert job.steps(0, 1) == stage.first[:1]
        if keep == 1:
            job.save()  # which the next one takes the place of
        assert job.steps(1, 1) == stage.first[1:]
        stage.arm(point, skip)
        if point == "gaccd_save_sweep_before":  # of what a dead writer has left
            stage.control.do("arm engine_save_synced crash count 1")
        with contextlib.suppress(GaccError):
            job.save(wait=False)
        stage.wait_fired(point)
        assert job.steps(2, 2) == stage.then
        wait_until("its end", lambda: all(k.state in (COMPLETE, FAILED) for k in job.saved()))
        k = job.save()
        assert k.state == COMPLETE
        complete = wait_until("what is too many to be deleted", lambda: (x := [x for x in job.saved() if x.state == COMPLETE]) and len(x) <= keep and x)
        assert k.path in [x.path for x in complete]
        folder = pathlib.Path(k.path).parent  # those that no record names are whole, too
        wait_until("the sweep", lambda: all(stage.is_whole(p) for p in folder.iterdir()))


@pytest.mark.parametrize("point,skip", points(LOADING, THEN), ids=str)
def test_a_death_while_shares_are_restored(stage, point, skip):
    """By a job of fewer parts, each of which reads files of several: it begins again, with the same state."""
    stage.arm(point, skip)
    with Saved(stage.d, spec(THEN, name=f"{point} {skip}", restore_from=stage.path), TENSORS) as again:
        stage.wait_fired(point)
        k = again.save()
        assert k.state == COMPLETE and k.applied_step == 2
        assert state_of(k.path) == stage.state
        again.steps(2, 1)
