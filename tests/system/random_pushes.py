# SPDX-License-Identifier: Apache-2.0
"""What each rank of a random job does in a window: pushes in every form, and what a trainer may do by mistake."""
import queue
import time

import grpc
import numpy as np

from gacc_client import GaccError
from random_checks import ALREADY_COMMITTED, COUNTED, DUPLICATE, VOID
from random_draw import FAULTS, OPERATORS

NOT_COUNTED = ("WINDOW_CLOSED", "FLUSHED")
HOW_OFTEN = {"kill_engine": 0.03, "kill_gaccd": 0.015, "kill_both": 0.008, "reattach": 0.03, "abandon": 0.02, "rejoin": 0.01, "update": 0.04,
             "pause": 0.02, "hold": 0.01, "norms": 0.04, "save": 0.04, "save_inside": 0.04, "flush": 0.004}


class Pushes:
    """The part of RandomJob that trains."""

    # ---- a rank in a window ----

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
            out[-1][2]["rpc"] = draw.chance("mailbox", 0.15)
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
            way = t.gacc.rpc if self.mailbox[r] and how["rpc"] else t.gacc
            future = self.submit(t, lambda: way.Push(request))
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
            if call.code() == grpc.StatusCode.OK:  # it was held up, and came after the whole push of its micro-batch
                assert call.result().result in (DUPLICATE, ALREADY_COMMITTED), f"a stream without its last byte was answered: {call.result()}"

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
            t, want = self.ranks[r], self.results[window]
            [step] = self.whole_steps([(t, t.gacc.WaitStep(session=t.session, window=window))], window)
            got = step.result
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
        reasons |= {"BAD_SLOT"} if t.inline else set()  # it has no slot that it could name
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
