# SPDX-License-Identifier: Apache-2.0
"""Push and WaitStep of gacc_client.Rank through its session's mailbox (client/examples/mailbox.py), and by RPC where that says so: what
libgacc does, but from several threads. The caller sees one difference: a result from the step block has neither closed_unix_nanos nor
loss_scale (see `completed`)."""
import collections
import importlib.util
import os
import pathlib
import select
import threading
import time

PATIENCE_S = 30  # then RPC, which says what is late


def load():
    path = pathlib.Path(__file__).resolve().parents[2] / "client/examples/mailbox.py"
    spec = importlib.util.spec_from_file_location("mailbox", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mailbox = load()
REDUCED = 4  # SegmentKind, of jobs with optimizer client
ONLY_BY_RPC = ("closed_unix_nanos", "loss_scale")  # of a StepResult


class Box:
    """One session's mailbox, for several threads: one of those that wait sleeps at the bell, and wakes the others."""

    def __init__(self, memory, submit, waits, attach_socket):
        self.box = mailbox.Mailbox(memory, submit, waits, attach_socket)
        os.close(memory)
        self.changed, self.sleeps = threading.Condition(), False

    def __del__(self):
        if hasattr(self, "box"):
            os.close(self.box.submit)

    def gone(self):
        """gaccd's end has closed; a new mailbox comes with a new map."""
        return self.box.gone

    def ask(self, kind, timeout, **fields):
        """(the answer, the step block); None: by RPC."""
        end = time.monotonic() + min(timeout, PATIENCE_S)
        with self.changed:
            cell = None if self.box.gone or self.box.closed() else self.box.free_cell()
            if cell is None:
                return None
            seq = self.box.publish(cell, kind, **fields)
            self.box.ring()
            answer = self._await(cell, seq, end)
            if not answer or answer.status:
                return None
            return answer, self.box.step(fields["window"])

    def _await(self, cell, seq, end):
        while True:
            closed = self.box.closed() or self.box.gone  # asked first: answers came before it
            answer = self.box.answer(cell, seq)
            left = end - time.monotonic()
            if answer or closed or left <= 0:
                if not answer:
                    self.box.given_up.add(cell)
                return answer
            if self.sleeps:
                self.changed.wait(left)
            else:
                self._sleep(left)

    def _sleep(self, left):
        self.sleeps = True
        self.changed.release()
        try:
            events = self.box.waits.poll(left)
        finally:
            self.changed.acquire()
            self.sleeps = False
            self.changed.notify_all()
        self.box.gone = self.box.gone or any(fd == self.box.lifeline or event & select.EPOLLRDHUP for fd, event in events)


class Both:
    """A Service in whose place a Rank's pushes and waits go through its mailbox. `rpc` is the service itself."""
    taken = collections.Counter()  # of all of them: pushes and waits that were answered in a mailbox

    def __init__(self, rank, rpc, whole=False):
        """`whole`: asks WaitStep for what a step block lacks, and compares the rest."""
        self.rank, self.rpc, self.whole = rank, rpc, whole

    def __getattr__(self, method):
        return getattr(self.rpc, method)

    def _ask(self, kind, request, timeout, **fields):
        box = self.rank.box
        if not box or request.session != self.rank.session:
            return None
        answer = box.ask(kind, timeout, window=request.window, **fields)
        if box.gone():
            self.rank.map_if_gone()
        return answer

    def Push(self, request=None, timeout=60, retry=True, **fields):
        types = self.rank.client.types
        request = types.PushRequest(**fields) if request is None else request
        fits = self.rank.box and len(request.present) <= self.rank.box.box.stride
        told = fits and self._ask(mailbox.PUSH, request, timeout, micro=request.micro, slot=request.slot, weight=request.weight, loss=request.loss,
                                  data_key=request.data_key, loss_scale=request.loss_scale, present=request.present, lr=request.lr,
                                  flags=mailbox.ZERO_AFTER * request.zero_after)
        if not told:
            return self.rpc.Push(request, timeout=timeout, retry=retry)
        a = told[0]
        self.taken["pushes"] += 1
        return types.PushResponse(result=a.result, window=a.window, micro_count=a.counted, micro_size=a.micro_size, parked_ns=a.parked_ns,
                                  parked_for_rank=a.waited_for)

    def WaitStep(self, request=None, timeout=60, retry=True, **fields):
        types = self.rank.client.types
        request = types.WaitStepRequest(**fields) if request is None else request
        told = not request.timeout_ms and self._ask(mailbox.WAIT, request, timeout)
        if not told or not told[1]:
            return self.rpc.WaitStep(request, timeout=timeout, retry=retry)
        step = told[1]
        self.taken["waits"] += 1
        names = set(step._fields) & set(types.StepResult.DESCRIPTOR.fields_by_name)
        answer = types.WaitStepResponse(result=types.StepResult(**{n: getattr(step, n) for n in names}), micro_size=step.next_micro_size,
                                        accum_half=step.half, job_done=step.final)
        if self.whole:
            said = self.rpc.WaitStep(request)
            completed([answer, said], None)
            if (REDUCED, 0) not in self.rank.memory:
                said.accum_half = 0
            assert str(answer) == str(said), f"the mailbox says\n{answer}gaccd says\n{said}"
        return answer


def completed(steps, ask):
    """The answers of WaitStep, with what a step block has not: from one that came by RPC, or from ask(), a WaitStep by RPC."""
    short = [s for s in steps if not s.result.closed_unix_nanos]
    if short:
        whole = next((s for s in steps if s.result.closed_unix_nanos), None) or ask()
        for s in short:
            for name in ONLY_BY_RPC:
                setattr(s.result, name, getattr(whole.result, name))
    return steps
