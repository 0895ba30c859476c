# SPDX-License-Identifier: Apache-2.0
"""Runs one random job on a real daemon and compares every number that leaves it with exact.py.

Every rank is a thread with a list of actions for each window; faults and operators' requests are actions among its pushes. Which
micro-batches are in a window is taken from the answers to the pushes, which is what the protocol promises.
"""
import concurrent.futures
import os
import queue
import threading
import time

import grpc
import numpy as np

from exact import Exact
from gacc_client import GaccError, Rank
from harness import wait_until
from random_actions import Actions
from random_checks import ALREADY_COMMITTED, COUNTED, DUPLICATE, VOID, Checks
from random_draw import FAULTS, OPERATORS

NOT_COUNTED = ("WINDOW_CLOSED", "FLUSHED")
HOW_OFTEN = {"kill_engine": 0.03, "kill_gaccd": 0.015, "kill_both": 0.008, "reattach": 0.03, "abandon": 0.02, "rejoin": 0.01, "update": 0.04,
             "pause": 0.02, "hold": 0.01, "norms": 0.04, "save": 0.04, "save_inside": 0.04, "flush": 0.004}
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL")


class JobOver(Exception):
    """The job has ended as it should have; nothing more to do."""


class RandomJob(Checks, Actions):
    def __init__(self, daemon, draw, windows=4):
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
        self.job = self.d.submit({**spec, "name": f"random-{self.draw.seed}-{self.generation}-{os.urandom(3).hex()}"})
        self.pool, self.callers = concurrent.futures.ThreadPoolExecutor(self.n), concurrent.futures.ThreadPoolExecutor(20)
        self.ranks, self.here = [None] * self.n, [True] * self.n
        self.inline = [self.draw.chance("inline", 0.3) for _ in range(self.n)]
        self.mixed = [self.draw.chance("mixed", 0.2) for _ in range(self.n)]
        self.model.set_params(self.draw.params(self.tensors)) if saved is None else None
        first = self.model.params()
        self.die_at_start()
        self.all(lambda r: self.attach(r, first))
        self.shapes = self.ranks[0].shapes
        if saved is None and spec.get("init"):
            self.model.set_params({n: self.ranks[0].params()[n].ravel() for n in self.model.dtype})
        self.states[self.model.window] = self.model.copy()

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
                   (("ranks", 0), ("accumulate_dtype", "f32"), ("reduction", ""), ("grad_of", "mean")))
        kept &= (old.spec.get("ordering"), model.spec.get("ordering", "canonical")) != ("arrival", "canonical")
        kept &= model.values()["micro_size"] == old.values()["micro_size"] and model.scale["scale"] == old.scale["scale"]
        kept &= all(bool(model.group(n).get("frozen")) == bool(old.group(n).get("frozen")) for n in model.dtype)
        self.flushed = set(saved.flushed) if kept else set()
        return model, dict(saved.carried) if kept else {}

    def attach(self, r, first=None):
        while True:
            t = Rank(self.d, self.job, r, self.tensors, ranks=self.n, inline=self.inline[r])
            try:
                t.start(first)
                self.ranks[r] = t
                break
            except OSError:  # gaccd has died
                t.close()
            except GaccError as e:
                t.close()
                if e.reason not in ("SESSION_UNKNOWN", "ENGINE_DOWN"):
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

    # ---- what a rank does in a window ----

    def plan(self, r, count, size):
        """A list of actions: ("push", micro, how) and others between them."""
        draw, out = self.draw, []
        pending = [m for m in range(count) if (r, m) not in self.answers]
        if self.spec.get("ordering") == "arrival":
            draw.rng("arrival").shuffle(pending)
        for m in pending:
            self.extras(out, r, m)
            out.append(("push", m, {"inline": self.inline[r] or (self.mixed[r] and draw.chance("mixed", 0.5)), "asynchronous": draw.chance("async", 0.4),
                                    "zero_after": draw.chance("zero_after", 0.2), "chunk": draw.pick("inline", 777, 4096, 1 << 16, 1 << 20),
                                    "shuffle": draw.chance("inline", 0.3), "alias": draw.chance("aliases", 0.5)}))
            if draw.chance("repeat", 0.15):
                out.append(("repeat", m))
        self.extras(out, r, count)
        if count < size and self.here[r]:
            out.append(("leave",) if self.may_leave(r) else ("flush",))
        return out

    def may_leave(self, r):
        if sum(self.here) < 2 or not self.draw.chance("leave", 0.3):
            return False
        self.here[r] = False
        return True

    def extras(self, out, r, m):
        for what in FAULTS + OPERATORS:
            p = 0 if self.model.is_client and what in ("save", "save_inside") else HOW_OFTEN[what]
            if self.here[r] and self.draw.chance(what, p):
                out.append(("flush_job" if what == "flush" else what,))
        if self.here[r] and self.draw.chance("old", 0.05):
            out.append(("old",))
        if self.here[r] and self.draw.chance("torn", 0.15):
            out.append(("torn",))
        if self.here[r] and self.draw.chance("wrong", 0.1):
            out.append(("wrong", self.draw.pick("wrong", "weight", "scale", "window", "micro", "slot", "present")))

    def play_rank(self, r, plan, size):
        self.flight[r] = []  # (micro, future, slot)
        t, over = self.ranks[r], False
        if not self.here[r] and not plan:
            return None
        for action, *args in plan + [("last",)]:
            if self.torn and self.draw.chance("torn", 0.5):
                self.send_late()
            try:
                getattr(self, "do_" + action)(r, *args)
            except GaccError as e:
                if e.reason != "JOB_ENDED" or (action in ("push", "flush", "leave") and not self.is_last_by_operator(e)):
                    raise  # else the window's outcome tells whether it should have
                over = True
                break
        self.drain(r)
        t = self.ranks[r]
        if not self.here[r]:
            return None
        try:
            step = t.wait_step(self.model.window)
        except GaccError as e:
            if not over or e.reason != "SESSION_FENCED":
                raise
            self.fenced.add(r)  # by its successor, who was told only that the job had ended
            return None
        if t.window == self.model.window:  # pushes do not move it
            t.window += 1
        return step

    def do_push(self, r, m, how):
        t, micro = self.ranks[r], self.batch[r, m]
        if (r, m) in self.answers or self.closed(r):
            return
        how = {**how, "inline": how["inline"] or t.inline}
        what = dict(weight=micro.weight, loss=micro.loss, data_key=micro.key, micro=m, window=self.model.window)
        names = self.sent_as(micro, how["alias"])
        if len(micro.grads) < len(self.model.dtype) or how["alias"]:
            what["present"] = [n in names for n in t.names]
        if how["inline"]:
            self.land(r, lambda f: f[2] is not None)
            limit = t.registered.slots
            self.land(r, lambda f: len(self.flight[r]) >= limit)
            future = self.submit(t, lambda: self.push_inline(t, micro, names, t.push_request(**what), how))
            self.flight[r].append((m, future, None))
        else:
            self.land(r, lambda f: f[2] is None)
            slot = m % t.registered.slots
            self.land(r, lambda f: f[2] == slot)
            if any(f[2] == slot for f in self.flight[r]):
                raise AssertionError("a slot is still in use")
            self.fill(t, micro, names, slot)
            request = t.push_request(slot=slot, zero_after=how["zero_after"], **what)
            future = self.submit(t, lambda: t.gacc.Push(request))
            self.flight[r].append((m, future, slot))
        if not how["asynchronous"]:
            self.drain(r)
            if how["zero_after"] and not how["inline"] and self.answers.get((r, m)) == COUNTED and t is self.ranks[r]:
                self.check_zero(t, slot)

    @staticmethod
    def submit(t, call):
        """In a thread. A push may overtake the one before; a slot may be in use by a call that broke off: it is sent again."""
        def again():
            end = time.monotonic() + 60
            while True:
                try:
                    return call()
                except GaccError as e:
                    if e.reason not in ("OUT_OF_ORDER", "SLOT_BUSY") or time.monotonic() > end:
                        raise
                time.sleep(0.002)
        return t.pool.submit(again)

    def sent_as(self, micro, by_alias):
        """The names under which the gradients come: a tied tensor's may come under either."""
        names = set(micro.grads)
        for name, *_, target in (t for t in self.tensors if len(t) == 4):
            if target in names and by_alias:
                names = names - {target} | {name}
        return names

    def bytes_of(self, t, micro, garbage):
        """A slot's bytes; between tensors, and for those that were not touched, anything."""
        data = bytearray(garbage * t.registered.slot_bytes)
        for name, g in micro.grads.items():
            at = t.layout[name].slot_offset
            data[at:at + g.nbytes] = g.tobytes()
        return data

    def garbage(self):
        return b"\0" if "garbage" in self.draw.off else b"\xff"

    def fill(self, t, micro, names, slot):
        t.memory[1, slot][:t.registered.slot_bytes] = bytes(self.bytes_of(t, micro, self.garbage()))

    def push_inline(self, t, micro, names, header, how):
        data, message = self.bytes_of(t, micro, self.garbage()), t.client.types.PushInlineRequest
        at = list(range(0, len(data), max(how["chunk"], len(data) // 200)))
        step = max(how["chunk"], len(data) // 200)
        if how["shuffle"]:
            np.random.default_rng(len(data)).shuffle(at)
        return t.gacc.PushInline(lambda: (message(header=header if i == 0 else None, offset=o, data=bytes(data[o:o + step])) for i, o in enumerate(at)))

    def do_torn(self, r):
        """A stream of what the rank has to push next, of bytes that no sum may have; it is cut off, or left open, and goes on when others act."""
        t, draw = self.ranks[r], self.draw
        busy = {f[0] for f in self.flight[r]} | {m for r2, m in self.answers if r2 == r}
        micro = min(set(range(t.micro_size)) - busy, default=None)
        if micro is None or t.resumed.flushed or not t.inline:  # a stream's slot might be one that is being filled through the mapping
            return
        message, rng, size = t.client.types.PushInlineRequest, draw.rng("torn"), t.registered.slot_bytes
        cuts = sorted(rng.randrange(size) for _ in range(3))
        pieces = [(a, b"\xff" * (b - a)) for a, b in zip([0] + cuts, cuts)]  # to the last byte it never comes
        header = t.push_request(weight=1.0, micro=micro, window=self.model.window)
        messages = queue.Queue()
        messages.put(message(header=header, offset=pieces[0][0], data=pieces[0][1]))
        call = t.gacc.PushInline.stub.future(iter(messages.get, None), timeout=rng.choice([0.02, 0.1, 0.5, 1.0]), wait_for_ready=True)
        self.torn.append((call, messages, [message(offset=at, data=data) for at, data in pieces[1:]]))

    def send_late(self):
        """What torn streams still have, one piece of each."""
        for call, messages, pieces in list(self.torn):
            try:
                messages.put(pieces.pop())
            except IndexError:
                pass

    def end_torn(self):
        torn, self.torn = self.torn, []
        for call, messages, _ in torn:
            call.cancel()
            messages.put(None)
            assert call.code() != grpc.StatusCode.OK, "a stream without its last byte was answered"

    def check_zero(self, t, slot):
        for name, g in t.slot(slot).items():
            assert not g.any(), f"zero_after: {name} in slot {slot} is not zero"

    def is_last_by_operator(self, e):
        """The job is over because an operator has flushed its last window: what had not come by then is not in it."""
        return self.operator_flush and e.reason == "JOB_ENDED" and ("all steps are applied" in e.text or "was its last" in e.text)

    def closed(self, r):
        return r in self.closed_for

    def land(self, r, which):
        for f in list(self.flight[r]):
            if which(f):
                self.take(r, f)

    def drain(self, r):
        self.land(r, lambda f: True)

    def take(self, r, f, abandoned=False):
        m, future, _ = f
        self.flight[r].remove(f)
        try:
            answer = future.result(90)
        except GaccError as e:
            if abandoned and e.reason in ("SESSION_FENCED", "SESSION_UNKNOWN"):
                return
            if (e.reason in NOT_COUNTED and self.operator_flush) or self.is_last_by_operator(e):
                self.closed_for.add(r)
                return
            if e.reason in ("NONFINITE", "WINDOW_CLOSED") and self.verdict((r, m)) == VOID:  # in no sum, so it was not counted
                self.answers[r, m] = VOID
                return
            raise
        self.settle(r, m, answer)

    def settle(self, r, m, answer):
        want = self.verdict((r, m))
        assert answer.result in ((VOID,) if want == VOID else (COUNTED, DUPLICATE, ALREADY_COMMITTED)), f"rank {r} micro {m}: {answer} should be {want}"
        self.answers[r, m] = want

    def do_repeat(self, r, m):
        """A push whose answer was lost, as far as the trainer knows; what lies in the slot now is not looked at."""
        self.drain(r)
        if (r, m) not in self.answers:
            return
        t, micro = self.ranks[r], self.batch[r, m]
        try:
            answer = t.gacc.Push(t.push_request(weight=micro.weight, loss=micro.loss, data_key=micro.key, micro=m, window=self.model.window))
        except GaccError as e:
            if self.answers[r, m] == VOID and e.reason in ("NONFINITE", "WINDOW_CLOSED"):
                return  # in no sum: when its window is over, it was not counted
            raise
        want = (VOID, ALREADY_COMMITTED) if self.answers[r, m] == VOID else (DUPLICATE, ALREADY_COMMITTED)
        assert answer.result in want, f"repeat of rank {r} micro {m}: {answer.result} not in {want}"

    def do_last(self, r):
        self.drain(r)
        with self.lock:
            if self.held:
                self.resume()

    def do_old(self, r):
        """The outcome of a window that is over."""
        if self.results:
            window = self.draw.rng("old").choice(sorted(self.results)[-14:])  # 16 are remembered
            got, want = self.ranks[r].gacc.WaitStep(session=self.ranks[r].session, window=window).result, self.results[window]
            assert str(got) == str(want), f"rank {r} is told\n{got}it was\n{want}"

    def do_flush(self, r):
        self.drain(r)
        try:
            self.ranks[r].flush(self.model.window)
        except GaccError as e:
            if not (self.operator_flush and e.reason in NOT_COUNTED):
                raise

    def do_leave(self, r):
        self.drain(r)
        self.ranks[r].detach()

    def do_wrong(self, r, what):
        self.drain(r)
        t = self.ranks[r]
        size, window = self.model.values()["micro_size"], self.model.window
        next_micro = min(set(range(size + 1)) - {m for r2, m in self.answers if r2 == r}, default=size)
        fields = {"weight": dict(weight=[0.0, -1.0, float("nan"), float("inf")][next_micro % 4]), "scale": dict(loss_scale=self.model.scale["scale"] * 3),
                  "window": dict(window=window + 5), "micro": dict(micro=size), "slot": dict(slot=7),
                  "present": dict(present=[True] * 8 * (len(t.names) // 8 + 2))}[what]
        if what == "slot" and next_micro >= size:
            return
        reasons = {"weight": {"BAD_WEIGHT"}, "scale": {"LOSS_SCALE_MISMATCH"}, "window": {"NOT_CURRENT_WINDOW"}, "micro": {"WINDOW_FULL"},
                   "slot": {"BAD_SLOT"}, "present": {"INVALID_ARGUMENT"}}[what] | {"WINDOW_CLOSED", "FLUSHED", "WINDOW_FULL"}
        try:
            right = {"window": window, "micro": min(next_micro, size - 1), "loss_scale": self.model.scale["scale"]}
            answer = t.gacc.Push(t.push_request(**{**right, **fields}))
        except GaccError as e:
            if e.reason == "JOB_ENDED":
                raise
            if e.reason not in reasons and not self.late(e):
                raise
        else:
            assert answer.result == ALREADY_COMMITTED, f"{what}: {answer}"

    def late(self, e):
        return self.d.get_job(self.job).window > self.model.window

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
