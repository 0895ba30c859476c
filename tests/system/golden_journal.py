# SPDX-License-Identifier: Apache-2.0
"""For the maker of the golden journals (tests/golden/journals/make.py) and for their test: a gaccd whose state_dir is always /mnt, the
jobs' gradients, and what gaccd says of a job.

The journal names checkpoints and logs by absolute paths, so the files are read where they were written: in a mount namespace whose /mnt
is the test's own folder. This runs with the harness of whichever version makes the files."""
import hashlib
import os
import pathlib

import numpy as np
from google.protobuf import json_format

from harness import Daemon
from saving_job import SHAPES, Job

STATE = pathlib.Path("/mnt")
UNSHARE = ["unshare", "--mount", "--propagation", "private", *([] if os.geteuid() == 0 else ["--map-root-user"])]
GONE = "engine_pid", "launcher_pid", "host_bytes", "events"  # of a Job: what ends with the processes; events are listed apart


class GoldenDaemon(Daemon):
    """gaccd with state_dir /mnt, which is `state` of its folder out here."""

    def __init__(self, **how):
        super().__init__(**how)
        self.state_dir = self.dir / "state"
        self.state_dir.mkdir()
        self.conf["state_dir"] = STATE

    def command(self):
        bind = f'mount --bind {self.state_dir} {STATE} && exec "$@"'
        return [*UNSHARE, "sh", "-c", bind, "sh", *super().command()]

    def outside(self, path):
        """A path that gaccd has told, as it is out here."""
        return self.state_dir / pathlib.Path(path).relative_to(STATE)


class GoldenJob(Job):
    """Its gradients are the same in all versions of NumPy."""

    def push(self, rank, micro, scale=1.0):
        r = self.ranks[rank]
        numbers = {n: np.arange(int(np.prod(s, dtype=int))).reshape(s) for n, s in SHAPES.items()}
        grads = {n: ((a * 7 + r.window * 5 + rank * 3 + micro) % 17 - 8.5) / np.float32(64) * np.float32(scale) for n, a in numbers.items()}
        return r.push(grads, micro=micro, weight=1 + rank + micro, loss=0.5 * micro, data_key=100 * r.window + 10 * rank + micro)

    def digest(self):
        """Of the parameters as trainers see them."""
        return hashlib.sha256(b"".join(data for _, data in sorted(self.params().items()))).hexdigest()


def plain(message):
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def told_of(client, job):
    """All that gaccd says of a job and that outlives it."""
    name, events = str(job), client.jobs.ListEvents(job=str(job)).events
    about = {k: v for k, v in plain(client.jobs.Get(job=name).job).items() if k not in GONE}
    return {"job": about, "history": [plain(h) for h in client.jobs.History(job=name, limit=100, micros=True)],
            "checkpoints": [plain(c) for c in client.jobs.ListCheckpoints(job=name).checkpoints], "events": [plain(e) for e in events]}
