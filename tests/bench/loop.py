#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How long the worst accepted request of each method holds gaccd's event loop.

    GACC_BUILD_DIR=build tests/bench/loop.py [--quick] [PART ..]

Sends each request a few times to a gaccd of its own. A row shows the longest turn of the loop meanwhile (GetNode's recent_turn_ns) and the
CPU time of the loop's thread, both of the run in which they were least: a busy machine only adds to them. The CPU time is that of all
turns together, so no turn took more of it. --quick: once, and smaller. It is no test: no figure fails a build, but a row that cannot be
made does. PARTS are the functions of Bench.
"""
import argparse
import concurrent.futures
import os
import pathlib
import resource
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "system"))
sys.dont_write_bytecode = True
os.environ.setdefault("GACC_BUILD_DIR", str(pathlib.Path.cwd() / "build"))

import grpc  # noqa: E402
import numpy as np  # noqa: E402

from harness import Client, Daemon, GaccError, Rank  # noqa: E402

SGD = {"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 0.1}}
MESSAGE = 4 << 20  # the largest
RUNS = 3
QUIET_S = 2.1  # after so long a turn is forgotten


def tensors(n, name=""):
    return [{"name": f"{name}{i:x}", "dtype": 1} for i in range(n)]


class Bench:
    def __init__(self, d, runs, quick):
        self.d, self.t = d, d.client.types
        self.jobs = d.client.jobs
        self.runs, self.quick = runs, quick

    def small(self, n):
        """Of a size that takes time to set up."""
        return max(n // 20, 2) if self.quick else n

    def cpu_ms(self):
        """Of the loop's thread."""
        return int(pathlib.Path(f"/proc/{self.d.pid}/task/{self.d.pid}/schedstat").read_text().split()[0]) / 1e6

    def longest(self, what, note=""):
        """Runs what() a few times; the longest turn and the loop's CPU time in ms, the least of the runs each."""
        turns, cpus, answer = [], [], note
        for _ in range(self.runs):
            time.sleep(QUIET_S)
            turn, over = [0.0], threading.Event()

            def look(turn=turn, over=over):
                last = False
                while not last:
                    last = over.wait(0.7)  # more than a second after a turn it may be forgotten
                    turn[0] = max(turn[0], self.d.client.node.GetNode().recent_turn_ns / 1e6)
            looker, before = threading.Thread(target=look), self.cpu_ms()
            looker.start()
            try:
                got = what()
                answer = got if isinstance(got, str) else note
            except GaccError as e:
                answer = f"refused: {e.reason}"
            finally:
                cpus.append(self.cpu_ms() - before)
                over.set()
                looker.join()
            turns.append(turn[0])
        return min(turns), min(cpus), answer

    def idle(self):
        yield "-", "nothing for a second", lambda: time.sleep(1)

    def big_spec(self):
        return {**SGD, "tensors": tensors(120000), "init": [{"pattern": "*", "type": 1}]}

    def submit_tensors(self):
        spec = self.big_spec()
        yield "Submit", "120,000 tensors", lambda: self.d.cancel(self.d.submit(spec))

    def submit_rules(self):
        spec = {**SGD, "tensors": [{"name": "a" * 200 + f"{i:05}", "dtype": 1} for i in range(1500)],
                "param_groups": [{"pattern": "*" + "a" * 100 + "b", "lr_scale": 1}] * 256}
        yield "Submit", "256 patterns that cost 10,000 steps each, 1,500 tensors", lambda: self.d.submit(spec)

    def submit_labels(self):
        spec = {**SGD, "labels": [{"key": "k" * 8000, "value": "v" * 8000}] * 256}
        yield "Submit", "256 labels, 4 MB", lambda: self.d.cancel(self.d.submit(spec))

    def submit_ranks(self):
        yield "Submit", "4,000 ranks", lambda: self.d.cancel(self.d.submit({**SGD, "ranks": 4000}))

    def looks(self):
        job = self.d.submit({**SGD, "ranks": 4000, "name": "wide"})
        yield "Get", "4,000 ranks", lambda: self.d.get_job(job)
        yield "List", "4,000 ranks", lambda: self.jobs.List(all=True)
        yield "Wait", "4,000 ranks", lambda: self.jobs.Wait(job=str(job), timeout_ms=100, timeout=5, retry=False)
        self.d.cancel(job)
        job = self.d.submit({**self.big_spec(), "name": "long"})
        yield "Get", "120,000 tensors", lambda: self.d.get_job(job)
        yield "ListBuffers", "120,000 tensors", lambda: self.d.client.node.ListBuffers()

        def attach():
            r = Rank(self.d, job, 0, [("w", [1])], 1)
            r.close()
        yield "Attach", "120,000 tensors in the specification", attach
        r = Rank(self.d, job, 0, [("w", [1])], 1)
        yield "RegisterTensors", "asks for the layout of 120,000", lambda: r.gacc.RegisterTensors(session=r.session)
        r.close()

    def register(self):
        def first():  # the set is built, and written to the journal
            job = self.d.submit({**SGD, "name": "first"})
            r = Rank(self.d, job, 0, [("w", [1])], 1)
            r.gacc.RegisterTensors(self.t.RegisterTensorsRequest(session=r.session, tensors=tensors(250000)))
            self.d.cancel(job)
            r.close()
        yield "RegisterTensors", "250,000 tensors, the first rank", first
        job = self.d.submit({**SGD, "name": "register", "init": [{"pattern": "*", "type": 1}]})
        r = Rank(self.d, job, 0, [("w", [1])], 1)
        message = self.t.RegisterTensorsRequest(session=r.session, tensors=tensors(250000))
        yield "RegisterTensors", "250,000 tensors, the next ranks", lambda: r.gacc.RegisterTensors(message)
        r.map()
        r.ready()
        yield from self.norms(job, r)
        r.close()

    def portions(self):
        """The promised million, in ten portions of each rank."""
        n = self.small(1000000)
        jobs, ranks = [], []

        def give(r):
            for at in range(0, n, n // 10):
                r.gacc.RegisterTensors(session=r.session, first=at, total=n, layout_limit=1, timeout=300,
                                       tensors=[{"name": f"model.layers.{i}.bias", "dtype": 1} for i in range(at, at + n // 10)])

        def first_rank():
            jobs.append(self.d.submit({**SGD, "ranks": 2, "init": [{"pattern": "*", "type": 1}], "slots_per_rank": 1}))
            ranks[:] = [Rank(self.d, jobs[-1], i, [("w", [1])], 2) for i in range(2)]
            give(ranks[0])
        yield "RegisterTensors", f"{n:,} tensors in ten portions; the job starts", first_rank
        a, b = ranks
        yield "RegisterTensors", "the same of another rank", lambda: give(b)
        yield "RegisterTensors", f"asks for the layout of 65,536 of {n:,}", lambda: a.gacc.RegisterTensors(
            session=a.session, layout_limit=65536)
        for r in (a, b):
            r.map()
            r.ready()

        def step():
            window = a.ready().window
            for r in (a, b):
                r.gacc.Push(session=r.session, window=window, micro=0, slot=0, weight=1)
            for r in (a, b):
                r.gacc.WaitStep(session=r.session, window=window)
        yield "Push, WaitStep", f"{n:,} tensors", step
        yield "Get", f"{n:,} tensors", lambda: self.d.get_job(jobs[-1])
        yield "SaveCheckpoint", f"{n:,} tensors", lambda: self.jobs.SaveCheckpoint(
            job=str(jobs[-1]), request_id=os.urandom(16), wait=True, timeout=300)
        yield "Cancel", f"{n:,} tensors", lambda: self.d.cancel(jobs.pop())

    def norms(self, job, r):
        at = [0]

        def norms():
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                answer = pool.submit(lambda: self.jobs.TensorNorms(job=str(job)))
                time.sleep(0.3)
                r.gacc.Push(session=r.session, window=at[0], micro=0, slot=0, weight=1)
                r.gacc.WaitStep(session=r.session, window=at[0])
                at[0] += 1
                return answer.result()
        yield "TensorNorms", "250,000 tensors", norms

    def small_fields(self):
        job = self.d.submit({**SGD, "name": "small"})
        r = Rank(self.d, job, 0, [("w", [1])], 1)
        body = self.t.RegisterTensorsRequest(session=r.session).SerializeToString() + b"\x12\x06\n\x04abcd" * 500000
        m = self.t.RegisterTensorsRequest.FromString(body)
        yield "RegisterTensors", "500,000 tensors of one name", lambda: r.gacc.RegisterTensors(m)
        push = self.t.PushRequest(session=r.session, present=b"x" * (MESSAGE - 100))
        yield "Push", "4 MB of present", lambda: r.gacc.Push(push)
        r.close()

    def events(self):
        jobs = [self.d.submit({**SGD, "name": f"e{i}"}) for i in range(100)]
        for j in jobs:
            self.d.cancel(j)
        yield "ListEvents", "5,000", lambda: self.jobs.ListEvents(limit=5000)
        yield "List", "all jobs", lambda: self.jobs.List(all=True)
        yield "History", "limit 4 billion", lambda: self.jobs.History(job=str(jobs[0]), limit=2**32 - 1, micros=True)

    def launch(self):
        many = self.small(200)
        word = "w" * 1000
        spec = {**SGD, "ranks": many, "launch": "daemon", "launch_command": {
            "command": ["/bin/true"] + [word] * 30, "environment": [{"key": f"K{i}", "value": word} for i in range(25)]}}

        def run():
            job = self.d.submit(spec)
            try:
                self.jobs.Wait(job=str(job), timeout_ms=60000, timeout=70, retry=False)
            finally:
                self.d.get_job(job)
        yield "Submit", f"launches {many} ranks with 55 kB of arguments and environment", run

    def updates(self):
        def update():
            self.job = self.d.submit({**SGD, "name": "updates"})
            for i in range(64):
                self.jobs.Update(job=str(self.job), values={"lr": 0.1 + i}, window=10 + i)
        yield "Update", "64 of them, one after the other", update
        yield "Get", "64 pending updates", lambda: self.d.get_job(self.job)

    def checkpoints(self):
        many = self.small(400)
        job = self.d.submit({**SGD, "name": "saves", "init": [{"pattern": "*", "type": 1}], "checkpoint": {"every_steps": 1}})
        with Rank(self.d, job, 0, [("w", [1])], 1) as r:
            r.start()
            for _ in range(many):
                r.push()
                r.wait_step()
                self.jobs.SaveCheckpoint(job=str(job), request_id=os.urandom(16), wait=True)
            n = len(self.jobs.ListCheckpoints(job=str(job)).checkpoints)
            yield "ListCheckpoints", f"{n} checkpoints", lambda: self.jobs.ListCheckpoints(job=str(job))
            path = self.jobs.ListCheckpoints(job=str(job)).checkpoints[-1].path
            yield "SaveCheckpoint", f"one more than {n}", lambda: self.jobs.SaveCheckpoint(job=str(job), request_id=os.urandom(16), wait=True)
        yield "Submit", "restores that", lambda: self.d.cancel(self.d.submit({**SGD, "restore_from": path}))

    def restore(self):
        n = self.small(120000)
        spec = {**SGD, "name": "large", "tensors": tensors(n), "init": [{"pattern": "*", "type": 1}]}
        job = self.d.submit(spec)
        r = Rank(self.d, job, 0, [("w", [1])], 1)
        r.gacc.RegisterTensors(session=r.session)
        r.map()
        r.ready()

        def save():
            self.saved = self.jobs.SaveCheckpoint(job=str(job), request_id=os.urandom(16), wait=True).checkpoint
        yield "SaveCheckpoint", f"{n} tensors", save
        r.close()
        self.d.cancel(job)
        path = self.saved.path

        def restore():
            again = self.d.submit({**spec, "name": "again", "restore_from": path})
            self.d.engine_pid(again)
            self.d.cancel(again)
        yield "Submit", f"restores {n} tensors", restore

    def fan_out(self):
        many = self.small(1000)
        ranks = 20
        job = self.d.submit({**SGD, "name": "watched", "ranks": ranks, "init": [{"pattern": "*", "type": 1}]})
        all_ranks = [Rank(self.d, job, i, [("w", [1])], ranks, inline=True, client=self.d.client) for i in range(ranks)]
        for r in all_ranks:
            r.register()
        for r in all_ranks:
            r.ready()
        streams, threads = [], []
        clients = [Client(self.d.endpoint) for _ in range(max(many // 50, 1))]  # a connection has 100 streams at most

        def drain(stream):
            try:
                for _ in stream:
                    pass
            except Exception:  # it is cancelled
                pass
        for i in range(many):
            c = clients[i % len(clients)]
            if i % 2:
                streams.append(c.jobs.Watch.stream(job=str(job), timeout=600))
            else:
                streams.append(c.gradient.WatchSession.stream(session=all_ranks[i % ranks].session, timeout=600))
            threads.append(threading.Thread(target=drain, args=(streams[-1],), daemon=True))
            threads[-1].start()
        time.sleep(2)

        def window():
            with concurrent.futures.ThreadPoolExecutor(ranks) as pool:
                list(pool.map(lambda r: r.push([np.ones(1, np.float32)]), all_ranks))
                list(pool.map(lambda r: r.wait_step(), all_ranks))
            time.sleep(0.3)  # the streams are told with the tick
        yield "Watch", f"{many} streams hear of a window of {ranks} ranks", window
        yield "Cancel", f"of a job with {many} streams", lambda: self.d.cancel(job)
        for stream in streams:
            stream.cancel()
        for c in clients:
            c.close()
        for r in all_ranks:
            r.close()

    def unread(self):
        n, many = 4 << 20, self.small(900)
        job = self.d.submit({**SGD, "name": "unread", "init": [{"pattern": "*", "type": 1}]})
        with Rank(self.d, job, 0, [("w", [n])], 1) as r:
            r.start()

            def read():
                clients = [Client(self.d.endpoint) for _ in range(many // 90 + 1)]  # a connection has 100 streams at most
                streams = [clients[i % len(clients)].gradient.GetParameters.stream(session=r.session, timeout=600) for i in range(many)]
                time.sleep(2)
                for stream in streams:
                    stream.cancel()
                for c in clients:
                    c.close()
            yield "GetParameters", f"{many} of 16 MiB that nobody reads", read

    def wide(self):
        n = min(self.small(65536), (resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 3000) // 2)
        one = lambda: self.d.submit({**SGD, "ranks": n, "name": "widest"})  # noqa: E731
        yield "Submit", f"{n} ranks", lambda: self.d.cancel(one())
        job = one()
        yield "Get", f"{n} ranks", lambda: self.d.get_job(job)
        yield "List", f"{n} ranks", lambda: self.jobs.List(all=True)
        yield "-", f"a second of a job of {n} ranks", lambda: time.sleep(1)
        session = self.d.client.gradient.Attach(job=str(job), rank=0, world_size=n, pid=os.getpid(), nonce=os.urandom(16), protocol_min=1,
                                                protocol_max=1).session
        yield "WaitReady", f"{n} ranks are missing", lambda: self.d.client.gradient.WaitReady(session=session, timeout_ms=100, retry=False)
        self.d.cancel(job)

    def attach_storm(self):
        n = self.small(4000)
        job = self.d.submit({**SGD, "ranks": n, "name": "storm", "init": [{"pattern": "*", "type": 1}], "tensors": tensors(1)})
        attach = self.d.client.gradient.Attach
        request = self.t.AttachRequest(job=str(job), world_size=n, pid=os.getpid(), protocol_min=1, protocol_max=1)
        self.sessions = []

        def one(rank):
            m = self.t.AttachRequest()
            m.CopyFrom(request)
            m.rank, m.nonce = rank, os.urandom(16)
            return attach(m).session

        def all_attach():
            with concurrent.futures.ThreadPoolExecutor(64) as pool:
                self.sessions = list(pool.map(one, range(n)))
        yield "Attach", f"{n} ranks attach again and again", all_attach
        yield "-", f"a second of a job with {n} sessions without a lifeline", lambda: time.sleep(1)
        yield "Get", f"{n} attached ranks", lambda: self.d.get_job(job)
        many = min(self.small(1000), n)
        clients = [Client(self.d.endpoint) for _ in range(max(many // 50, 1))]

        def wait_all():
            def step(i):
                try:
                    clients[i % len(clients)].gradient.WaitStep(session=self.sessions[i], window=0, timeout_ms=5000, timeout=30, retry=False)
                except GaccError as e:
                    return e.reason
            with concurrent.futures.ThreadPoolExecutor(many) as pool:
                return f"refused: {', '.join(sorted(set(pool.map(step, range(many)))))}"
        yield "WaitStep", f"{many} waiting calls time out", wait_all
        for c in clients:
            c.close()
        self.d.cancel(job)

    def waits(self):
        """Many calls that wait for one thing."""
        many, ranks = self.small(1000), self.small(2000)
        channels = [grpc.insecure_channel(self.d.endpoint, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(6)]

        def park(method, request):
            calls = [c.unary_unary(f"/gacc.v1.{method}", request_serializer=lambda q: q.SerializeToString(), response_deserializer=len)
                     for c in channels]
            waiting = [calls[i % len(calls)].future(request, timeout=120) for i in range(many if "Job" in method else 5 * many)]
            time.sleep(QUIET_S)
            return waiting

        def end():
            job = self.d.submit({**SGD, "ranks": ranks})
            waiting = park("JobService/Wait", self.t.WaitRequest(job=str(job)))
            self.d.cancel(job)
            for w in waiting:
                w.result()
        yield "Wait", f"{many} calls hear of the end of a job of {ranks} ranks", end

        def step():
            job = self.d.submit({**SGD, "name": "stepped", "init": [{"pattern": "*", "type": 1}]})
            with Rank(self.d, job, 0, [("w", [1])], 1) as r:
                r.start()
                waiting = park("GradientService/WaitStep", self.t.WaitStepRequest(session=r.session, window=0))
                r.push([np.ones(1, np.float32)])
                for w in waiting:
                    w.result()
                self.d.cancel(job)
        yield "WaitStep", f"{5 * many} calls hear of a window", step
        for c in channels:
            c.close()

    def restart(self):
        """Of gaccd with many large jobs: the time until it serves, not a turn."""
        n = self.small(40)
        for i in range(n):
            self.d.submit({**SGD, "name": f"job{i}", "labels": [{"key": "k" * 8000, "value": "v" * 8000}] * 256})

        def again():
            self.d.kill_gaccd()
            start = time.monotonic()
            self.d.wait_ready(120)
            return f"ready after {time.monotonic() - start:.2f} s"
        yield "-", f"a restart with {n} jobs of 4 MB", again


PARTS = ("idle", "submit_tensors", "submit_rules", "submit_labels", "submit_ranks", "looks", "register", "portions", "small_fields", "events", "launch",
         "updates", "checkpoints", "restore", "fan_out", "unread", "wide", "attach_storm", "waits", "restart")


def rows(b, part):
    """(row, whether it could be made)"""
    each = getattr(b, part)()
    while True:
        try:
            method, request, what = next(each)
        except StopIteration:
            return
        except (GaccError, AssertionError) as e:
            yield f"| {part} | - | - | - | {e} |", False
            return
        turn, cpu, answer = b.longest(what)
        times = "- | -" if cpu < 0 else f"{turn:.1f} | {cpu:.1f}"  # of two processes: it was started again
        yield f"| {method} | {request} | {times} | {answer} |", True


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--quick", action="store_true")
    p.add_argument("parts", nargs="*", choices=[[], *PARTS])
    a = p.parse_args()
    good = True
    print("| method | request | longest turn, ms | CPU of the loop, ms | answer |\n|---|---|---|---|---|")
    for part in a.parts or PARTS:
        conf = {"limits.jobs": 500, "limits.jobs_per_user": 500, "limits.queued_per_user": 500,
                "limits.request_memory": "8GiB"}
        with Daemon(conf=conf, allow=[".*"], supervise=part == "restart") as d:
            for row, made in rows(Bench(d, 1 if a.quick else RUNS, a.quick), part):
                print(row, flush=True)
                good &= made
    sys.exit(not good)


if __name__ == "__main__":
    main()
