# SPDX-License-Identifier: Apache-2.0
"""gacc.aio: gacc.connect() for asyncio. What the calls mean is in test_python_client.py; both clients ask and read in job_calls.py."""
import asyncio
import inspect
import sys
import threading
import time

import pytest

from python_package import environment, gacc
from test_examples import run
from test_python_client import SGD, train


def public(kind):
    return {n: m for n, m in vars(kind).items() if not n.startswith("_") and callable(m)}


def signature(function):
    """Names, defaults and kinds of the arguments, and the result, an iterator of either kind alike."""
    made = inspect.signature(function)
    return list(made.parameters.values()), made.return_annotation.replace("AsyncIterator", "Iterator")


def test_both_clients_have_the_same_methods():
    from gacc import aio, client
    ours, theirs = public(aio.Client), public(client.Client)
    assert list(ours) == list(theirs) and len(ours) > 18
    for name in ours:
        assert signature(ours[name]) == signature(theirs[name]), name
        assert inspect.iscoroutinefunction(ours[name]) != ("Iterator" in str(inspect.signature(theirs[name]).return_annotation)), name
        assert ours[name].__doc__ == theirs[name].__doc__
    for name in ("connect", "history"):
        assert signature(getattr(aio, name)) == signature(getattr(client, name)) and getattr(aio, name).__doc__
    assert inspect.signature(aio.Client.__init__) == inspect.signature(client.Client.__init__)


def test_importing_it_imports_no_grpc():
    assert run([sys.executable, "-c", "import sys, gacc.aio; print('grpc' in sys.modules)"], environment()).strip() == "False"


def test_a_job_from_its_beginning_to_its_end(daemon):
    async def main():
        async with gacc.aio.connect(daemon.endpoint) as client:
            job = await client.submit(name="life", ranks=1, micro_size=2, steps=4, optimizer=SGD)
            assert (int(job), job.state) == (1, "PENDING") and (await client.node()).version
            watched = asyncio.ensure_future(collect(client.steps(job)))
            changes = asyncio.ensure_future(collect(client.changes(job)))
            training = asyncio.ensure_future(asyncio.to_thread(train, daemon, job))
            done, seen, states, _ = await asyncio.gather(client.wait(job, timeout=30), watched, changes, training)
            assert (done.state, done.applied_step) == ("COMPLETED", 4) and [s.state for s in states][-1] == "COMPLETED"
            assert [(s.window, s.outcome, s.mean_loss) for s in seen] == [(w, "APPLIED", w) for w in range(4)]
            assert [s.window for s in await collect(client.steps(job, 1, follow=False))] == [1, 2, 3]
            assert [s.window for s in await client.history(job, 2)] == [3, 2] and len(await client.windows(job)) == 4
            assert [r["loss"] for r in await client.records(job)] == [0, 1, 2, 3]
            assert [r["loss"] for r in await gacc.aio.history(job, 2, endpoint=daemon.endpoint)] == [2, 3]
            events = await collect(client.events(job, follow=True))
            assert [e.reason for e in events if e.reason in ("Submitted", "Completed")] == ["Submitted", "Completed"]
            assert await client.jobs() == [] and [j.id for j in await client.jobs(all=True)] == [1]
    asyncio.run(main())


async def collect(items):
    return [i async for i in items]


def test_control(daemon):
    daemon.allow.append(" Ended job=")

    async def main():
        async with gacc.aio.connect(daemon.endpoint) as client:
            job = await client.submit(name="held", ranks=1, micro_size=1, optimizer=SGD)
            training = asyncio.ensure_future(asyncio.to_thread(train, daemon, job, 0, 1, 0.02))
            await client.wait(job, step=2, timeout=30)
            first = await client.update(job, lr=0.5)
            await client.wait(job, step=first + 1, timeout=30)
            assert [s.lr for s in await collect(client.steps(job, first - 1, follow=False))][:2] == [1.0, 0.5]
            assert (await client.pause(job, "to look")).state == "PAUSED" and (await client.resume(job)).state == "RUNNING"
            assert await client.flush(job) >= first and (await client.norms(job, timeout=30))["w"][0] == 2
            saved = await client.save_checkpoint(job, timeout=30)
            assert [c.id for c in await client.checkpoints(job)] == [saved.id]
            assert (await client.cancel(job, "enough")).state == "CANCELLED"
            with pytest.raises(gacc.GaccError):
                await training
    asyncio.run(main())


def test_errors_are_those_of_the_other_client(daemon):
    async def main():
        async with gacc.aio.connect(daemon.endpoint) as client:
            job = await client.submit(name="two", ranks=2, micro_size=1, optimizer=SGD)
            start = time.monotonic()
            answers = await asyncio.gather(client.wait(job, step=1, timeout=0.8), client.wait(job, "GONE"), client.job("none"), client.job(job),
                                           client.submit(name="three", optimizer={"type": "adam", "eps": 0}), collect(client.steps("none")),
                                           return_exceptions=True)
            assert 0.7 < time.monotonic() - start < 20
            late, state, none, there, spec, steps = answers
            assert late.code == "DEADLINE_EXCEEDED" and "RUNNING" in str(state) and there.id == job.id
            assert all(isinstance(e, gacc.GaccError) for e in (late, state, none, spec, steps)), answers
            assert [(e.reason, e.hint) for e in (none, steps)] == [("JOB_NOT_FOUND", "list jobs with: gaccctl jobs -a")] * 2
            assert spec.reason == "INVALID_SPEC" and "eps" in str(spec)
            await client.cancel(job)
        with pytest.raises(gacc.GaccError) as e:
            await client.jobs()
        assert e.value.reason == "CLOSED"
    daemon.allow.append(" Ended job=")
    asyncio.run(main())


def test_what_is_cancelled_ends_its_call_at_once(daemon):
    """A call that waits, and iterators that are cancelled, left by break, or closed: no task and no call is left."""
    async def main():
        async with gacc.aio.connect(daemon.endpoint) as client:
            job = await client.submit(name="waits", ranks=1, micro_size=1, optimizer=SGD)
            before = len(asyncio.all_tasks())
            start = time.monotonic()
            for call in (client.wait(job), collect(client.changes(job)), collect(client.steps(job)), collect(client.events(job, follow=True))):
                task = asyncio.ensure_future(call)
                await asyncio.sleep(0.3)
                assert not task.done()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.wait(job), 0.2)
            watched = client.changes(job)
            async for now in watched:
                assert now.state == "PENDING"
                break
            await watched.aclose()
            assert time.monotonic() - start < 10
            await asyncio.sleep(0.1)
            assert len(asyncio.all_tasks()) == before
            await client.cancel(job)
        daemon.allow.append(" Ended job=")
    asyncio.run(main())


def test_a_client_outlives_a_restart_of_gaccd(supervised):
    """gaccd is killed while calls wait and a job is followed."""
    async def main():
        async with gacc.aio.connect(supervised.endpoint) as client:
            job = await client.submit(name="long", ranks=1, micro_size=1, steps=12, optimizer=SGD)
            seen = asyncio.ensure_future(collect(client.steps(job)))
            end = asyncio.ensure_future(client.wait(job, timeout=60))
            training = threading.Thread(target=train, args=(supervised, job, 0, 1, 0.1))
            training.start()
            await client.wait(job, step=3, timeout=30)
            await asyncio.to_thread(supervised.kill_gaccd)
            assert (await end).state == "COMPLETED" and [s.window for s in await seen] == list(range(12))
            await asyncio.to_thread(training.join, 30)
    asyncio.run(main())


def test_nobody_answers(tmp_path, caplog):
    async def main():
        async with gacc.aio.connect(str(tmp_path / "none.sock"), outage=2.5) as client:
            await client.jobs()
    start = time.monotonic()
    with pytest.raises(gacc.GaccError) as e:
        asyncio.run(main())
    assert e.value.code == "UNAVAILABLE" and 2.4 < time.monotonic() - start < 20
    assert [(r.name, r.levelname) for r in caplog.records] == [("gacc", "WARNING")] and "none.sock" in caplog.text


def test_another_event_loop_is_refused(daemon):
    client = gacc.aio.connect(daemon.endpoint)
    asyncio.run(client.jobs())
    with pytest.raises(gacc.GaccError, match="another event loop"):
        asyncio.run(client.jobs())
