#!/usr/bin/python3
"""How long the worst accepted request of each method holds gaccd's event loop.

    GACC_BUILD_DIR=build tests/bench/loop.py [METHOD ..]

Sends each request a few times to a gaccd of its own and prints the longest turn of the loop meanwhile (GetNode's recent_turn_ns,
docs/performance.md). It is no test: no figure fails a build.
"""
import concurrent.futures
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "system"))
sys.dont_write_bytecode = True
os.environ.setdefault("GACC_BUILD_DIR", str(pathlib.Path.cwd() / "build"))

from harness import Daemon, GaccError, Rank  # noqa: E402

SGD = {"ranks": 1, "micro_size": 1, "optimizer": {"type": "sgd", "lr": 0.1}}
MESSAGE = 4 << 20  # the largest
RUNS = 3

def tensors(n, name=""):
    return [{"name": f"{name}{i:x}", "dtype": 1} for i in range(n)]

class Bench:
    def __init__(self, d):
        self.d, self.t = d, d.client.types
        self.jobs = d.client.jobs

    def longest(self, what, note=""):
        """Runs what() a few times; the longest turn in ms."""
        worst = 0.0
        for _ in range(RUNS):
            time.sleep(2.1)  # what was before is over and forgotten
            refused = ""
            try:
                what()
            except GaccError as e:
                refused = f"refused: {e.reason}"
            worst = max(worst, self.d.client.node.GetNode().recent_turn_ns / 1e6)
        return worst, refused or note

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
        job = self.d.submit({**SGD, "name": "register", "init": [{"pattern": "*", "type": 1}]})
        r = Rank(self.d, job, 0, [("w", [1])], 1)
        message = self.t.RegisterTensorsRequest(session=r.session, tensors=tensors(250000))
        yield "RegisterTensors", "250,000 tensors", lambda: r.gacc.RegisterTensors(message)
        r.map()
        r.ready()
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
        r.close()

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

def main():
    names = sys.argv[1:]
    parts = ("submit_tensors", "submit_rules", "submit_labels", "submit_ranks", "looks", "register", "small_fields", "events")
    print("| method | request | longest turn, ms | answer |\n|---|---|---|---|")
    for part in parts:
        if names and part not in names:
            continue
        with Daemon(conf={"limits.jobs": 500, "limits.jobs_per_user": 500}, allow=[".*"]) as d:
            b = Bench(d)
            rows = getattr(b, part)()
            while True:
                try:
                    method, request, what = next(rows)
                except StopIteration:
                    break
                except GaccError as e:
                    print(f"| {part} | - | - | {e} |")
                    break
                ms, note = b.longest(what)
                print(f"| {method} | {request} | {ms:.1f} | {note} |", flush=True)

if __name__ == "__main__":
    main()
