# SPDX-License-Identifier: Apache-2.0
"""gacc_event: what a trainer with libgacc hears while others work."""
import ctypes
import itertools
import select

import numpy as np
import pytest

from harness import Daemon, Rank, build_dir, wait_until

STEP, STATE, CONNECTION = 1, 3, 4  # gacc_event_kind
SPEC = {"ranks": 2, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1}, "nonfinite": "skip_step",
        "outlier_skip": {"factor": 3, "decay": 0.5, "warmup_steps": 1}}


class Session:
    """One that attaches and listens, as its environment says."""

    def __init__(self, endpoint):
        self.lib = ctypes.CDLL(str(build_dir() / "lib/libgacc.so"))
        self.client, self.job = ctypes.c_void_p(), ctypes.c_void_p()
        assert self.lib.gacc_open(endpoint.encode(), ctypes.byref(self.client)) == 0
        assert self.lib.gacc_attach(self.client, None, ctypes.byref(self.job)) == 0

    def hears_something(self, timeout):
        return select.select([self.lib.gacc_event_fd(self.job)], [], [], timeout)[0]

    def event(self, kind):
        """The text of the next one of that kind."""
        found, text = ctypes.c_int(), ctypes.create_string_buffer(256)
        while True:
            assert self.hears_something(20)
            assert self.lib.gacc_event(self.job, ctypes.byref(found), text, ctypes.c_size_t(256)) == 0
            if found.value == kind:
                return text.value.decode()

    def close(self):
        self.lib.gacc_detach(self.job, 0)
        self.lib.gacc_close(self.client)


@pytest.mark.skipif("GACC_SANITIZE:STRING=\n" not in (build_dir() / "CMakeCache.txt").read_text(),
                    reason="the library's sanitizer would have to be Python's, too")
def test_steps_states_and_the_connection(monkeypatch):
    with Daemon(supervise=True, allow=["StepSkipped", "RankLost", "RankLate"]) as d:
        job = d.submit(SPEC)
        for name, value in {"GACC_JOB_ID": job, "RANK": 1, "WORLD_SIZE": 2}.items():
            monkeypatch.setenv(name, str(value))
        session = Session(d.endpoint)
        with Rank(d, job, 0, [("w", [3])]) as r:
            r.start({"w": np.zeros(3, np.float32)})
            for value, said in ((1, "applied: 1 micro-batches, weight 2, step 1"), (np.nan, "skipped: non-finite"),
                                (1, "applied"), (1000, "skipped: outlier norm")):
                r.push([np.full(3, value, np.float32)], weight=2)
                d.client.jobs.Flush(job=str(job))
                assert session.event(STEP).startswith(f"window {r.window} {said}")
                r.wait_step()
            d.kill_gaccd()
            assert session.event(CONNECTION) == "the connection to gaccd broke; trying again"
            d.wait_ready()
            changes = itertools.cycle((d.client.jobs.Pause, d.client.jobs.Resume))

            def heard():  # it connects when it may
                next(changes)(job=str(job))
                return session.hears_something(0.3)
            wait_until("the connection", heard, 60)
            d.cancel(job)
            while not session.event(STATE).startswith("job is CANCELLED: cancelled by"):
                pass
        session.close()
