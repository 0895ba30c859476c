# SPDX-License-Identifier: Apache-2.0
"""launch: daemon. Whose turn it is when not all jobs have room."""
import os
import pathlib
import re

import pytest

from harness import ME, Daemon, GaccError, alive, wait_until
from launching import SPEC, gate, launched, shell

GIB = 1 << 30


def reserve(bytes_, **more):
    return launched("sleep", 1000, ranks=1, host_memory=bytes_, **more)


@pytest.fixture
def small_node(request):
    with Daemon(conf={"limits.host_memory": "4GiB"}) as d:
        yield d
        for job in d.client.jobs.List().jobs:
            d.cancel(job.id)
        wait_until("the launchers' end", lambda: not d.launchers())


def available_gib():
    text = pathlib.Path("/proc/meminfo").read_text()
    return int(re.search(r"MemAvailable: +(\d+)", text)[1]) / (1 << 20)


needs_memory = pytest.mark.skipif(available_gib() < 5, reason="needs a machine with 5 GiB to reserve")


@needs_memory
def test_jobs_wait_for_memory_in_order(small_node):
    d = small_node
    first = d.submit(reserve(3 * GIB))
    wait_until("its rank", lambda: d.get_job(first).ranks[0].pid)
    big, small, third = d.submit(reserve(2 * GIB)), d.submit(reserve(GIB)), d.submit(reserve(GIB))
    wait_until("it passes", lambda: d.state(small) == "STARTING")
    j = wait_until("its reason", lambda: (j := d.get_job(big)).reason and j)
    assert (j.queue_position, d.state(big)) == (1, "PENDING")
    assert "needs 2.0 GiB, 0 B of limits.host_memory" in j.reason and j.reason.endswith("; 0 jobs before it")
    assert wait_until("its place", lambda: d.get_job(third).queue_position) == 2
    with pytest.raises(GaccError) as e:  # and not by the back door
        d.client.gradient.Attach(job=str(big), rank=0, world_size=1, nonce=os.urandom(16), protocol_min=1, protocol_max=1)
    assert e.value.reason == "NOT_READY" and "waits in the queue" in e.value.text
    d.cancel(first)
    wait_until("its turn", lambda: d.state(big) == "STARTING")
    wait_until("its turn", lambda: d.state(third) == "STARTING")
    assert d.get_job(big).queue_position == 0


@needs_memory
def test_what_may_not_wait_is_refused_with_the_numbers(small_node):
    d = small_node
    first = d.submit(reserve(3 * GIB))
    external = {**SPEC, "host_memory": 2 * GIB}
    with pytest.raises(GaccError) as e:
        d.submit(external)
    assert e.value.reason == "RESOURCE_EXHAUSTED"
    assert f"needs 2.0 GiB, 1.0 GiB of limits.host_memory (4.0 GiB) are free; in use: {ME.pw_name} 3.0 GiB (1 job)" in e.value.text
    for spec in (reserve(5 * GIB), {**SPEC, "host_memory": 5 * GIB}):
        with pytest.raises(GaccError) as e:
            d.submit(spec)
        assert "needs 5.0 GiB and can never run here: limits.host_memory is 4.0 GiB" in e.value.text
        assert e.value.detail.hint.startswith("raise the limit, or make the job smaller")  # to end others would not help
    with pytest.raises(GaccError) as e:  # the same for tensors: 3 GiB of parameters, twice that for slots, ...
        d.submit({**SPEC, "tensors": [{"name": "w", "dtype": "f32", "shape": [3 << 28]}]})
    assert "can never run here" in e.value.text
    assert len(d.client.jobs.List(all=True).jobs) == 1  # nothing was written
    d.cancel(first)
    d.cancel(d.submit(external))


@needs_memory
def test_the_queue_outlives_gaccd(request):
    with Daemon(supervise=True, conf={"limits.host_memory": "4GiB"}) as d:
        first, second = d.submit(reserve(3 * GIB)), d.submit(reserve(2 * GIB))
        pid = wait_until("its rank", lambda: d.get_job(first).ranks[0].pid)
        d.kill_gaccd()
        d.wait_ready()
        assert d.state(first) == "STARTING" and alive(pid)
        assert wait_until("its place", lambda: d.get_job(second).queue_position) == 1
        d.cancel(first)
        wait_until("its turn", lambda: d.state(second) == "STARTING")
        d.cancel(second)
        wait_until("the launchers' end", lambda: not d.launchers())


STUBBORN = "trap '' TERM; touch $GATE/$GACC_JOB_ID; while :; do sleep 1; done"


def test_ranks_that_take_their_time_to_end_are_no_way_round_the_limits():
    """A cancelled job whose ranks live on for its grace has a launcher and processes: it counts until they are gone, also after a restart."""
    with Daemon(supervise=True, conf={"limits.jobs_per_user": 2}) as d:
        jobs = [d.submit(shell(d, STUBBORN, ranks=1, grace_ms=3600000)) for _ in range(2)]
        for job in jobs:
            wait_until("its rank has said that it stays", lambda: (gate(d) / str(job)).exists())
            d.cancel(job)
        waits = d.submit(shell(d, "exit 0", ranks=1))
        for restart in (False, True):
            if restart:
                d.kill_gaccd()
                d.wait_ready()
                wait_until("the launchers are found", lambda: d.get_job(jobs[0]).launcher_pid)
            with pytest.raises(GaccError) as e:
                d.submit(SPEC)
            assert e.value.reason == "RESOURCE_EXHAUSTED" and "2 jobs running (2 of them over, but with ranks" in e.value.text
            assert d.state(waits) == "PENDING"
        for job in jobs:
            d.client.jobs.Cancel(job=str(job), grace_ms=1)
        wait_until("its turn, and its end", lambda: d.state(waits) not in ("PENDING", "STARTING", "RUNNING"))
        wait_until("the launchers' end", lambda: not d.launchers())
        d.allow.append(f" (RankExited|Ended) job={waits} ")
