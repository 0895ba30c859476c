# SPDX-License-Identifier: Apache-2.0
"""Runs one random job on a real daemon and compares every number that leaves it with exact.py.

Every rank is a thread with a list of actions for each window; faults and operators' requests are actions among its pushes. Which
micro-batches are in a window is taken from the answers to the pushes, which is what the protocol promises.
"""
import concurrent.futures
import os
import threading
import time

from exact import Exact
from gacc_client import GaccError, Rank
from harness import wait_until
from random_actions import Actions
from random_checks import COUNTED, VOID, Checks
from random_pushes import Pushes

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL")


class JobOver(Exception):
    """The job has ended as it should have; nothing more to do."""


class RandomJob(Checks, Actions, Pushes):
    def __init__(self, daemon, draw, windows=4, cluster=None):
        """`cluster`: the parts lie on its nodes, the first of which is `daemon`."""
        self.cluster = cluster
        self.d, self.draw, self.left = daemon, draw, 22 if draw.chance("long", 0.04) else windows
        self.tensors = draw.tensors()
        self.spec = draw.spec(self.tensors)
        self.model = Exact(self.spec, self.tensors)
        self.log, self.saved, self.lock = [], [], threading.Lock()
        self.settled, self.flushed = {}, set()  # (rank, micro) of a carried sum -> Micro, COUNTED or VOID; ranks that have flushed its window
        self.generation, self.gaccd_died = 0, False
        self.torn = []  # streams that stop in the middle: (call, its queue, what it may still send)

    def note(self, *what):
        self.log.append(f"window {self.model.window}: " + " ".join(map(str, what)))

    def describe(self):
        return "\n".join([f"tensors {self.tensors if len(self.tensors) < 20 else len(self.tensors)}", f"spec {self.spec}", *self.log[-60:]])

    # ---- the life of a job ----

    def run(self):
        self.begin(None)
        self.play()
        while self.saved and not self.model.is_client and self.draw.chance("restore", 0.5) and self.generation < 2:
            self.generation += 1
            self.begin(self.draw.rng("restore").choice(self.saved))
            self.left = 3
            self.play()

    def begin(self, saved):
        spec = dict(self.spec if saved is None else self.draw.other(saved.model.spec))
        if saved:
            spec["restore_from"] = str(saved.path)
            self.model, self.settled = self.restored(saved, spec)
            self.note("restored", saved.path, {k: v for k, v in spec.items() if saved.model.spec.get(k) != v})
        self.spec, self.n = spec, spec["ranks"]
        self.results, self.micros_of, self.states, self.batches, self.saved, self.norms, self.to_read = {}, {}, {}, {}, [], [], []
        self.digests, self.held = {}, False
        self.flush_next, self.settled_first = False, dict(self.settled)
        self.places = list(self.cluster.names[:spec.get("parts", 1)]) if self.cluster else []
        self.job = self.d.submit({**spec, "nodes": ",".join(self.places), "name": f"random-{self.draw.seed}-{self.generation}-{os.urandom(3).hex()}"})
        self.pool, self.callers = concurrent.futures.ThreadPoolExecutor(self.n), concurrent.futures.ThreadPoolExecutor(20)
        self.ranks, self.here = [None] * self.n, [True] * self.n
        self.inline = [self.draw.chance("inline", 0.3) for _ in range(self.n)]
        self.mixed = [self.draw.chance("mixed", 0.2) for _ in range(self.n)]
        self.mailbox = [self.has_mailbox() for _ in range(self.n)]
        self.model.set_params(self.draw.params(self.tensors)) if saved is None else None
        first = self.model.params()
        self.die_at_start()
        self.all(lambda r: self.attach(r, first))
        self.shapes = self.ranks[0].shapes
        if saved is None and spec.get("init"):
            self.model.set_params({n: self.ranks[0].params()[n].ravel() for n in self.model.dtype})
        self.states[self.model.window] = self.model.copy()

    def at(self, r):
        """The gaccd of that rank's node."""
        return self.cluster.node_of_rank(r, self.n, self.spec.get("parts", 1), self.places) if self.cluster else self.d

    def has_mailbox(self):
        """Of a rank: its pushes and waits go through one, but for some."""
        return self.draw.chance("mailbox", 0.6)

    def die_at_start(self):
        """Engine or gaccd, anywhere between the job's submission and its first window."""
        if self.draw.chance("die_at_start", 0.1):
            kill = self.draw.pick("die_at_start", self.do_kill_engine, self.do_kill_gaccd, self.do_kill_both)
            pause = self.draw.pick("die_at_start", 0, 0.004, 0.02)
            self.note("at the start", kill.__name__, "after", pause)
            self.callers.submit(lambda: (time.sleep(pause), kill(0)))

    def restored(self, saved, spec):
        """The model that begins with a checkpoint, and what is in its open window."""
        old, model = saved.model, Exact(spec, self.tensors)
        for name in ("window", "applied", "norms", "counters", "p", "m", "v"):
            setattr(model, name, getattr(old.copy(), name))
        if spec.get("dynamic_loss_scale") and old.spec.get("dynamic_loss_scale") and model.window:
            model.scale = dict(old.scale)
        now, then = (m.values(-1) for m in (model, old))
        same = {k for k in now if now[k] == then[k]}
        model.updates = [(at, {k: v for k, v in values.items() if k in same}) for at, values in old.updates]
        model.updates = [u for u in model.updates if u[1]]
        kept = all(model.spec.get(k, d) == old.spec.get(k, d) for k, d in
                   (("ranks", 0), ("parts", 1), ("accumulate_dtype", "f32"), ("reduction", ""), ("grad_of", "mean")))
        kept &= (old.spec.get("ordering"), model.spec.get("ordering", "canonical")) != ("arrival", "canonical")
        kept &= model.values()["micro_size"] == old.values()["micro_size"] and model.scale["scale"] == old.scale["scale"]
        kept &= all(bool(model.group(n).get("frozen")) == bool(old.group(n).get("frozen")) for n in model.dtype)
        self.flushed = set(saved.flushed) if kept else set()
        return model, dict(saved.carried) if kept else {}

    def attach(self, r, first=None):
        end = time.monotonic() + 120
        while True:
            t = Rank(self.at(r), self.job, r, self.tensors, ranks=self.n, inline=self.inline[r], mailbox=self.mailbox[r])
            try:
                t.start(first)
                self.ranks[r] = t
                break
            except OSError:  # gaccd has died
                t.close()
                if time.monotonic() > end:
                    raise
            except GaccError as e:
                t.close()
                if e.reason not in ("SESSION_UNKNOWN", "ENGINE_DOWN") or time.monotonic() > end:
                    raise
                # it died before there was an engine to keep sessions; or again, before the memory was mapped
        last = self.results.get(t.window - 1)
        assert not last or str(t.resumed.last) == str(last), f"rank {r} was told\n{t.resumed.last}not\n{last}"
        return t

    def all(self, what):
        futures = [self.pool.submit(what, r) for r in range(self.n)]
        error = None
        for f in concurrent.futures.as_completed(futures):
            if f.exception() and not isinstance(f.exception(), JobOver) and not error:
                error = f.exception()
                if not isinstance(error, GaccError) or error.reason != "JOB_ENDED":
                    self.give_up()
        if error:
            raise error
        return [f.result() for f in futures]

    def give_up(self):
        try:
            self.d.client.jobs.Cancel(job=str(self.job), reason="the test has failed")
        except GaccError:
            pass

    def play(self):
        try:
            done = False
            while self.left and not done:
                self.left -= 1
                done = self.window()
            self.end(done)
        except JobOver:
            self.check_failed()
        finally:
            for t in self.ranks:
                if t:
                    t.close()
            self.end_torn()
            self.pool.shutdown(wait=False)
            self.callers.shutdown(wait=False)

    # ---- a window ----

    def window(self):
        """Whether it was the last."""
        model, draw = self.model, self.draw
        size = model.values()["micro_size"]
        counts = draw.counts(self.spec, size, self.here)
        poison = draw.chance("poison", 0.3)
        batch = {(r, m): draw.micro(self.spec, model, r, m, poison and draw.rng("poison").random() < 0.2)
                 for r in range(self.n) for m in range(size)}
        if draw.rng("poison").random() < 0.7 and self.spec["nonfinite"] == "error":
            batch = {k: b if not model.is_void(b) else draw.micro(self.spec, model, *k, False) for k, b in batch.items()}
        batch.update({k: b for k, (b, _) in self.settled.items()})
        self.batches[model.window] = batch
        self.batch, self.operator_flush, self.flush_next = batch, self.flush_next, False
        self.answers = {k: answer for k, (_, answer) in self.settled.items()}
        self.closed_for, self.fenced, self.flight = set(), set(), {}
        carried = [max([0] + [m + 1 for r2, m in self.settled if r2 == r]) for r in range(self.n)]
        counts = [carried[r] if r in self.flushed else max(c, carried[r]) for r, c in enumerate(counts)]
        plans = [[] if r in self.flushed else self.plan(r, counts[r], size) for r in range(self.n)]
        self.settled, self.flushed = {}, set()
        self.note("counts", counts, "of", size, "plans", [[a[0] if a[0] != "push" else f"{a[1]}" for a in p] for p in plans])
        self.before = self.model.params()
        try:
            steps = self.all(lambda r: self.play_rank(r, plans[r], size))
        except GaccError as e:
            if e.reason == "JOB_ENDED" and (self.may_end(size) or ("inf or NaN" in e.text and self.loses_parameters())):
                raise JobOver from e
            raise
        assert not self.must_end(size), "the job should have failed"
        return self.check_window(steps, size)

    def verdict(self, key):
        return VOID if self.model.is_void(self.batch[key]) else COUNTED

    def counted(self):
        return [self.batch[k] for k, a in self.answers.items() if a == COUNTED]

    def may_end(self, size):
        return self.must_end(size) or (self.spec["nonfinite"] == "error" and any(self.model.is_void(b) for b in self.batch.values()))

    def loses_parameters(self):
        model = self.model.copy()
        model.close(self.counted(), list(self.answers.values()).count(VOID))
        return model.is_lost()

    def must_end(self, size):
        n = len(self.counted())
        void = VOID in self.answers.values()
        return (self.spec["nonfinite"] == "error" and void) or (self.spec.get("uneven") == "error" and 0 < n and len(self.answers) < self.n * size)

    # ---- the end ----

    def end(self, done):
        for r, t in enumerate(self.ranks):
            if self.here[r] and not done:
                t.detach()
        wait_until(lambda: f"COMPLETED; {self.d.get_job(self.job)}", lambda: self.d.state(self.job) in ENDED, 60, 0.005)
        j = self.d.get_job(self.job)
        assert self.d.state(self.job) == "COMPLETED", j
        self.check_norms()
        wait_until("history", lambda: len(list(self.d.client.jobs.History(job=str(self.job), limit=1000))) >= len(self.results), 5)
        self.check_history()
        self.check_end_checkpoint()

    def check_failed(self):
        wait_until("FAILED", lambda: self.d.state(self.job) in ENDED, 20)
        assert self.d.state(self.job) == "FAILED", self.d.get_job(self.job)
        self.saved = []
