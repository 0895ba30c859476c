# SPDX-License-Identifier: Apache-2.0
"""What happens to a random job besides its trainers' pushes: processes die, and operators change their minds."""
import os
import time

from harness import wait_until

COMPLETED = 7  # JobState; those behind it are ends, too


class Actions:
    """The part of RandomJob that disturbs it."""

    # ---- faults ----

    def engine(self):
        """The pid of one of its engines; 0 when the job is over and has none any more."""
        def pid():
            job = self.d.get_job(self.job)
            pids = [p.engine_pid for p in job.parts] or [job.engine_pid]
            chosen = self.draw.rng("which engine").choice(pids)
            return [chosen] if chosen or job.state >= COMPLETED else None
        return wait_until("an engine, or the job's end", pid)[0]

    def do_kill_engine(self, r):
        pid = self.engine()
        if pid:
            self.d.kill_engine(self.job, pid)

    def node(self):
        """A gaccd that has a part of it, or coordinates it."""
        return self.cluster[self.draw.rng("which node").choice(self.places)] if self.places else self.d

    def do_kill_gaccd(self, r):
        with self.lock:
            self.gaccd_died, node = True, self.node()
            node.kill_gaccd()
            node.wait_ready()

    def do_kill_both(self, r):
        with self.lock:
            pid = self.engine()
            self.gaccd_died, node = True, self.node()
            node.kill_gaccd()
            if pid:
                self.d.kill_engine(self.job, pid)
            node.wait_ready()

    def do_reattach(self, r):
        self.drain(r)
        self.again(r, [])

    def do_abandon(self, r):
        """The trainer dies with pushes under way; its successor asks what is missing."""
        lost, self.flight[r] = self.flight[r], []
        self.again(r, lost)

    def again(self, r, lost):
        old = self.ranks[r]
        if self.draw.chance("torn", 0.3):
            self.inline[r] = not self.inline[r]
        t = self.attach(r)
        for f in lost:
            self.flight[r].append(f)
            self.take(r, f, abandoned=True)
        old.close()
        if t.window != self.model.window:
            return  # closed by now: all that this rank owed was there, or the operator has closed it
        missing = set(t.missing)
        for f in lost:
            if f[0] not in missing and (r, f[0]) not in self.answers and not t.resumed.flushed:
                self.answers[r, f[0]] = self.verdict((r, f[0]))
        have = {m for m in range(t.micro_size) if (r, m) in self.answers}
        assert t.resumed.flushed or missing == set(range(t.micro_size)) - have, f"rank {r}: missing is {missing}, it has {have}"
        for f in lost:  # those that were fenced
            if (r, f[0]) not in self.answers and not t.resumed.flushed:
                self.do_push(r, f[0], {"inline": self.inline[r], "asynchronous": False, "zero_after": False, "chunk": 4096, "shuffle": False,
                                       "alias": False, "rpc": False})

    # ---- operators ----

    def do_update(self, r):
        draw, jobs = self.draw, self.d.client.jobs
        values = {"micro_size": draw.pick("update", 1, 2, 3, 5, 8)} if draw.rng("update").random() < 0.4 else {}
        if draw.rng("update").random() < 0.5 and not self.model.is_client:
            values["lr"] = draw.pick("update", 0.5, 0.05, 0.0)
        if draw.rng("update").random() < 0.4 or not values:
            values["clip_norm"] = draw.pick("update", 0.0, 0.3, 50.0)
        if draw.rng("update").random() < 0.3:
            values["clip_value"] = draw.pick("update", 0.0, 0.05)
        ahead = draw.pick("update", 0, 0, 3)
        with self.lock:
            at = jobs.Update(job=str(self.job), window=self.model.window + ahead if ahead else 0, values=self.d.client.types.JobValues(**values)).window
            self.model.updates.append((at, values))
        assert at > self.model.window and (not ahead or at == self.model.window + ahead), f"updated from window {at} on"
        self.note("update", values, "from", at)

    def do_rejoin(self, r):
        """Says good-bye, but not for good, and comes back."""
        self.drain(r)
        self.ranks[r].detach(done=False)
        self.again(r, [])

    def do_hold(self, r):
        """Paused by somebody who forgets it for a while."""
        with self.lock:
            self.d.client.jobs.Pause(job=str(self.job), reason="random")
            self.held, self.held_in = True, self.d.get_job(self.job).window  # two before it may have been closed by the operator

    def resume(self):
        """The window is full; it closes when the job goes on, but not before."""
        self.held = False
        time.sleep(0.02)
        j = self.d.get_job(self.job)
        assert j.window <= max(self.model.window, self.held_in) + 1, f"window {j.window} of a job that is paused"
        self.d.client.jobs.Resume(job=str(self.job))

    def do_pause(self, r):
        with self.lock:
            self.d.client.jobs.Pause(job=str(self.job), reason="random")
            time.sleep(self.draw.pick("pause", 0, 0.01, 0.05))
            self.d.client.jobs.Resume(job=str(self.job))

    def do_norms(self, r):
        self.norms.append(self.callers.submit(self.d.client.jobs.TensorNorms, job=str(self.job)))

    def do_save(self, r, inside=False):
        with self.lock:
            k = self.d.client.jobs.SaveCheckpoint(job=str(self.job), inside_window=inside, wait=True, request_id=os.urandom(16)).checkpoint
            updates = list(self.model.updates)
        if k.state == 3 and (k.message == "the job has ended" or (self.d.engines_killed and "engine is restarting" in k.message)):
            return
        assert k.state == 2, k
        self.note("saved", k.path, "inside" if inside else "", "window", k.window)
        self.to_read.append((k, updates))

    def do_save_inside(self, r):
        self.do_save(r, True)

    def do_flush_job(self, r):
        """The operator closes the window: what is not counted by then is not in it."""
        with self.lock:
            if self.held:
                return  # it would be refused
            self.operator_flush = True
            closed = self.d.client.jobs.Flush(job=str(self.job)).window
            self.flush_next |= closed > self.model.window  # this one was over already
