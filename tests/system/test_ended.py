"""Jobs that have ended: what is kept of them, for whom, and over a restart of gaccd."""
import os
import pathlib
import subprocess
import sys

import pytest

from harness import Daemon, wait_until

SPEC = {"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 1}}

SUBMIT_AS_OTHER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from gacc_client import Client
c = Client(sys.argv[2])
j = c.jobs.Submit(spec=c.types.spec(name="other", ranks=1, micro_size=1, optimizer={"type": "sgd", "lr": 1}), request_id=os.urandom(16)).job
c.jobs.Cancel(job=str(j.id))
print(j.id)
"""


def ended_jobs(d):
    return [j.id for j in d.client.jobs.List(all=True).jobs]


def histories(d):
    """Jobs of which the history has events."""
    return {e.job for e in d.client.jobs.ListEvents().events} - {0}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_who_has_most_loses_the_oldest():
    with Daemon(supervise=True, conf={"history.jobs": 3, "listen.mode": "0666"}) as d:
        d.dir.chmod(0o755)
        mine = [d.submit(SPEC)]
        others = int(subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", SUBMIT_AS_OTHER,
                                     pathlib.Path(__file__).parent, d.endpoint], capture_output=True, text=True, check=True,
                                    env={**os.environ, "HOME": "/"}).stdout)
        mine += [d.submit(SPEC) for _ in range(4)]
        for job in mine:
            d.cancel(job)
        assert ended_jobs(d) == sorted([*mine, others], reverse=True)
        d.kill_gaccd()  # what has ended before its start is over at once
        d.wait_ready()
        left = [mine[4], mine[3], others]
        wait_until("the others are forgotten", lambda: ended_jobs(d) == left and histories(d) == set(left))
        d.kill_gaccd()
        d.wait_ready()
        assert ended_jobs(d) == left
