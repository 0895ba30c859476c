# SPDX-License-Identifier: Apache-2.0
"""Jobs that are over while somebody still wants something of them: streams, submitters, a gaccd that stops."""
import concurrent.futures
import queue

import numpy as np
import pytest

from harness import ME, Client, Daemon, GaccError, Rank, resident, sanitized, wait_until

SPEC = {"ranks": 1, "micro_size": 4, "slots_per_rank": 1, "optimizer": {"type": "sgd", "lr": 1}}
N = 1000


class Stream:
    """A PushInline whose messages come when the test says so."""

    def __init__(self, rank):
        self.messages, self.rank = queue.Queue(), rank
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        self.answer = self.pool.submit(rank.gacc.PushInline, lambda: iter(self.messages.get, None), timeout=20, retry=False)

    def send(self, offset, data, header=None):
        self.messages.put(self.rank.client.types.PushInlineRequest(header=header, offset=offset, data=data))

    def end(self):
        self.messages.put(None)

    def error(self):
        with pytest.raises(GaccError) as e:
            self.answer.result(20)
        self.pool.shutdown()
        return e.value


def slot_is_busy(rank):
    """Asked with the next micro-batch: another try of the same one would end the stream."""
    header = rank.push_request()
    header.micro += 1
    with pytest.raises(GaccError) as e:
        rank.gacc.PushInline(lambda: iter([rank.client.types.PushInlineRequest(header=header, data=b"")]), timeout=5, retry=False)
    return e.value.reason == "SLOT_BUSY"


def half_pushed(rank):
    """A stream that has the rank's only slot, and half of the bytes in it. If the question whether it has was first in the slot, it is begun
    again."""
    while True:
        stream = Stream(rank)
        stream.send(0, bytes(2 * N), rank.push_request())
        wait_until("the stream has begun", lambda: slot_is_busy(rank) or stream.answer.done())
        if not stream.answer.done():
            return stream
        assert stream.error().reason == "SLOT_BUSY"


def memory_of(daemon, job):
    return daemon.client.node.ListBuffers(job=str(job)).buffers


@pytest.mark.parametrize("goes_on", ["chunk", "end"])
def test_a_push_that_comes_after_the_memory_has_gone(daemon, goes_on):
    """Its job is cancelled and its rank has left while a stream is half way: the rest finds no memory, and gaccd says so."""
    job = daemon.submit(SPEC)
    r = Rank(daemon, job, 0, [("w", [N])])
    r.start({"w": np.zeros(N, np.float32)})
    stream = half_pushed(r)
    daemon.cancel(job)
    r.attach_socket.close()
    wait_until("the end of the job's memory", lambda: not memory_of(daemon, job))
    if goes_on == "chunk":
        stream.send(2 * N, bytes(2 * N))
    stream.end()
    assert stream.error().reason == "JOB_ENDED"
    r.attach_socket = None
    r.close()
    assert daemon.state(job) == "CANCELLED"


def test_a_job_that_is_cancelled_while_its_memory_is_made_answers_its_submitter(daemon):
    big = {**SPEC, "tensors": [{"name": "w", "dtype": "f32", "shape": [24 << 20]}]}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for attempt in range(5):
            client = Client(daemon.endpoint)
            submitted = pool.submit(client.jobs.Submit, spec=client.types.spec(**big, name="big"), request_id=bytes([attempt]) * 16, timeout=10)
            [job] = wait_until("the job", lambda: [j.id for j in daemon.client.jobs.List().jobs], every=0.001)
            daemon.cancel(job)
            early = not submitted.done()
            j = submitted.result(20).job
            assert j.id == job
            client.close()
            if early:
                assert (daemon.state(job), j.reason) == ("CANCELLED", f"cancelled by {ME.pw_name}")
                return
    pytest.fail("no cancel came in time")


@pytest.mark.skipif(sanitized(), reason="its allocator keeps what is freed")
@pytest.mark.parametrize("attached", [False, True])
def test_jobs_that_are_over_do_not_pile_up(attached):
    """An ended job is whole for ten seconds, and a minute while it has sessions. Who ends many in that time has only the newest kept."""
    with Daemon(conf={"history.jobs": 20}) as d:
        pid, at_rest = d.pid, resident(d.pid)
        for i in range(250):
            job = d.submit({**SPEC, "ranks": 1000})
            if attached:
                Rank(d, job, 0, [("w", [1])], 1000, inline=True, client=d.client)
            d.cancel(job)
        wait_until(lambda: f"{(resident(pid) - at_rest) >> 20} MiB for 250 jobs that are over", lambda: resident(pid) - at_rest < 60 << 20, 4)
        wait_until("the rest is forgotten", lambda: len(d.client.jobs.List(all=True).jobs) <= 20 + 16, 9)  # history.jobs, and those that are whole
