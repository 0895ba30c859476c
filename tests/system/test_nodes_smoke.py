# SPDX-License-Identifier: Apache-2.0
"""A job on two nodes through most of what is done between gaccds, short enough for every build with a sanitizer: placements, sums, sharing of
parameters, norms, a checkpoint inside a window, a restore, a new start of each gaccd, an engine's death, and the logs of ranks that gaccd has launched."""
import pytest

from cluster import Cluster
from harness import wait_until
from launching import launched
from test_nodes import ALLOW, QUICK, drawn
from test_nodes_restore import OnNodes, give

pytestmark = pytest.mark.smoke


def test_a_job_on_two_nodes():
    with Cluster(2, conf=QUICK, allow=[*ALLOW, " RankExited job=", " Ended job="]) as cluster:
        a, b = cluster["a"], cluster["b"]
        for node in a, b:
            node.engines_killed = True
        job = OnNodes(cluster, ("ab", 2, "full", 4))
        jobs = b.client.jobs
        job.window()
        assert len(a.client.node.ListNodes().nodes) == len(a.client.node.ListBuffers().nodes) == 2  # their texts are freed
        asked = job.team[0].pool.submit(jobs.TensorNorms, job=str(job.team.job))
        job.window([2, 1, 0, 2])
        job.window()
        assert {n.name for n in asked.result(20).norms} == set(job.model.dtype)
        a.kill_engine(job.team.job, job.pids()[1])
        job.window()
        for name in "ba":
            cluster.kill(name)
            job.window()
        sent = drawn(job)
        give(job, sent, [(0, 0), (2, 0)])
        k = job.save(inside_window=True)
        again = OnNodes(cluster, ("ba", 2, "none", 4), job, name="again", restore_from=k.path)
        for each in job, again:
            give(each, sent, [(1, 0), (3, 0), (0, 1), (1, 1), (2, 1), (3, 1)])
            each.check(sent, [r.wait_step() for r in each.team.ranks][0].result)
            each.window()
        assert len(list(jobs.History(job=str(job.team.job), limit=100, micros=True))) >= 8
        job.close(), again.close()
        there = cluster.submit(launched("sh", "-c", "echo here; exec sleep 1000"))
        wait_until("the log", lambda: jobs.ReadLog(job=str(there), rank=1, node="b").data == b"here\n")
        a.cancel(there, grace_ms=100)
        wait_until("the launchers' end", lambda: not a.launchers() and not b.launchers())
