# SPDX-License-Identifier: Apache-2.0
"""Thousands of calls that wait for the same thing are all answered, and not in one turn of gaccd's event loop."""
import contextlib
import os
import signal
import time

import grpc
import numpy as np

from harness import Daemon, Rank, tried_again, wait_until
from test_loop import check_turns

SGD = {"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 0.1}}


@contextlib.contextmanager
def many(d, n, method, request, answer):
    """n calls of a method at a time, on connections of their own: their futures."""
    service, name = method.split(".")
    channels = [grpc.insecure_channel(d.endpoint, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)])
                for _ in range(n // 900 + 1)]
    calls = [c.unary_unary(f"/gacc.v1.{service}/{name}", request_serializer=lambda q: q.SerializeToString(), response_deserializer=answer.FromString)
             for c in channels]
    try:
        yield [calls[i % len(calls)].future(request, timeout=120) for i in range(n)]
    finally:
        for c in channels:
            c.close()


@tried_again
def test_the_end_of_a_wide_job_answers_all_who_wait_for_it():
    """Each answer has its 2,000 ranks: a thousand of them at once would take most of a second."""
    with Daemon(conf={"limits.request_memory": "8GiB"}) as d:
        t = d.client.types
        job = d.submit({**SGD, "ranks": 2000})
        with many(d, 1000, "JobService.Wait", t.WaitRequest(job=str(job)), t.WaitResponse) as calls:
            time.sleep(2)  # one that comes later is answered at once, and rightly, too
            assert not any(c.done() for c in calls)
            d.cancel(job)
            cancelled = d.get_job(job).state
            assert all(c.result().job.state == cancelled and len(c.result().job.ranks) == 2000 for c in calls)
        check_turns(d)


@tried_again
def test_a_window_answers_all_who_wait_for_it():
    with Daemon(conf={"limits.request_memory": "8GiB"}) as d:
        t = d.client.types
        job = d.submit(SGD)
        with Rank(d, job, 0, [("w", [4])]) as r:
            r.start({"w": np.zeros(4, np.float32)})
            with many(d, 3000, "GradientService.WaitStep", t.WaitStepRequest(session=r.session, window=0), t.WaitStepResponse) as calls:
                time.sleep(2)
                calls[1000].cancel()  # one that has gone when its turn comes
                r.push([np.ones(4, np.float32)])
                r.wait_step()
                for i, c in enumerate(calls):
                    assert i == 1000 or (c.result().result.window, c.result().result.applied_step) == (0, 1)
            with many(d, 1500, "GradientService.WaitStep", t.WaitStepRequest(session=r.session, window=1), t.WaitStepResponse) as calls:
                time.sleep(1)
                d.cancel(job)
                assert {c.exception().code() for c in calls} == {grpc.StatusCode.FAILED_PRECONDITION}
        check_turns(d)


def test_calls_that_wait_for_norms_or_checkpoints_have_a_bound():
    with Daemon(conf={"limits.request_memory": "8GiB"}) as d:
        t = d.client.types
        job = d.submit({**SGD, "micro_size": 2})
        with Rank(d, job, 0, [("w", [4])]) as r:
            r.start({"w": np.zeros(4, np.float32)})
            with many(d, 70, "JobService.TensorNorms", t.TensorNormsRequest(job=str(job)), t.TensorNormsResponse) as calls:
                wait_until("six refusals", lambda: sum(c.done() for c in calls) == 6, 60)
                assert all("64 calls wait for its norms already" in c.exception().details() for c in calls if c.done())
                for _ in range(2):
                    r.push([np.ones(4, np.float32)])
                r.wait_step()
                assert sum(c.exception() is None and len(c.result().norms) == 1 for c in calls) == 64
            r.push([np.ones(4, np.float32)])
            engine = d.engine_pid(job)
            os.kill(engine, signal.SIGSTOP)  # the checkpoint is under way until it goes on
            try:
                request = t.SaveCheckpointRequest(job=str(job), wait=True, inside_window=True, request_id=os.urandom(16))
                with many(d, 1030, "JobService.SaveCheckpoint", request, t.SaveCheckpointResponse) as calls:
                    wait_until("six refusals", lambda: sum(c.done() for c in calls) == 6, 60)
                    assert all("too many calls wait for its checkpoints" in c.exception().details() for c in calls if c.done())
                    waiting = [c for c in calls if not c.done()]
                    for c in waiting[:10]:
                        c.cancel()
                    with contextlib.ExitStack() as stack:
                        def one_more():
                            [c] = stack.enter_context(many(d, 1, "JobService.SaveCheckpoint", request, t.SaveCheckpointResponse))
                            time.sleep(0.3)
                            return None if c.done() else c
                        more = [wait_until("the place of one that has gone", one_more, 30) for _ in range(3)]
                        os.kill(engine, signal.SIGCONT)
                        assert {c.result().checkpoint.id for c in waiting[10:] + more} == {1}
            finally:
                os.kill(engine, signal.SIGCONT)
