# SPDX-License-Identifier: Apache-2.0
"""gaccd dies in the middle of a checkpoint, at a named place, and what the next gaccd makes of it."""
import os
import pathlib

import pytest

from failpoint_job import Control
from harness import Daemon, wait_until
from saving_job import COMPLETE, Job

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
