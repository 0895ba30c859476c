# SPDX-License-Identifier: Apache-2.0
"""What must be equal in a random job: results, parameters, status, norms, history and the files of checkpoints."""
import json
import pathlib

import numpy as np

from by_mailbox import completed
from exact import block_sums, compare, tree_sum
from gacc_client import F32, NUMPY, GaccError
from harness import wait_until
from saving_job import read_safetensors, whole_state

COUNTED, DUPLICATE, ALREADY_COMMITTED, VOID = 1, 2, 3, 4
UNSIGNED = {"U8": np.uint8, "U64": np.uint64}
SAFETENSORS = {1: "F32", 3: "F16", 4: "BF16"}


class Saved:
    """A checkpoint, and the job as it was then."""

    def __init__(self, path, model, carried=None, flushed=()):
        """carried: who is in the open window's sum, (rank, micro) -> (Micro, COUNTED or VOID); flushed: the ranks that give no more to it."""
        self.path, self.model, self.carried, self.flushed = path, model, carried or {}, flushed


class Checks:
    """The part of RandomJob that only looks."""

    @staticmethod
    def whole_steps(steps, window):
        """Of (rank, its answer of WaitStep): the answers, with what one that came through a mailbox lacks."""
        return completed([s for _, s in steps], lambda: steps[0][0].gacc.rpc.WaitStep(session=steps[0][0].session, window=window))

    def check_window(self, steps, size):
        model = self.model
        steps = self.whole_steps([(self.ranks[r], s) for r, s in enumerate(steps) if s], model.window)
        for other in steps[1:]:
            assert str(other.result) == str(steps[0].result), f"one rank was told\n{steps[0].result}another\n{other.result}"
        result, window = steps[0].result, model.window
        want = model.close(self.counted(), list(self.answers.values()).count(VOID))
        assert not model.is_lost(), f"window {window}: the job should have failed, its parameters are not finite"
        self.results[window], self.micros_of[window] = result, dict(self.answers)
        self.states[window].updates = list(model.updates)
        self.states[model.window] = model.copy()
        for name, value in want.items():
            if name != "reduced":
                got = getattr(result, name)
                same = got == value or (isinstance(value, float) and np.isnan(value) and np.isnan(got)) or self.is_overflow(name, want, result)
                assert same, f"window {window}: {name} is {got!r}, not {value!r}; result\n{result}"
        assert steps[0].micro_size == model.values()["micro_size"] or steps[0].job_done, f"micro_size {steps[0].micro_size} of window {model.window}"
        self.check_parameters(want, steps[0].job_done)
        self.check_digest(result)
        self.read_checkpoints()
        if not steps[0].job_done and not self.flush_next:
            self.look(result)
        return steps[0].job_done

    @staticmethod
    def is_overflow(name, want, result):
        """A norm that is not finite is infinite or no number, as the lanes have it."""
        return name == "grad_norm" and not np.isfinite(want["grad_norm"]) and not np.isfinite(result.grad_norm)

    def check_parameters(self, want, job_done):
        for r, t in enumerate(self.ranks):
            if r in self.fenced:
                continue
            if not self.here[r] or (job_done and not t.memory):  # who has them mapped reads them when the job is over, too
                continue
            if self.model.is_client:
                if "reduced" in want:
                    got = t.reduced()
                    for name, g in want["reduced"].items():
                        compare(f"rank {r}, reduced {name}", g, got[name])
                    self.acknowledge(t, want["window"], job_done)
                continue
            got = t.params()
            for name, p in self.model.params().items():
                compare(f"rank {r}, window {want['window']}, {name}", p, got[name])
            for name, *_, target in (x for x in self.tensors if len(x) == 4):
                assert got[name].tobytes() == got[self.root(target)].tobytes()
            if not t.inline and not self.flush_next:
                s = t.status()
                want_page = (0, self.model.window, self.model.applied, self.model.values()["micro_size"])
                assert (s.seq % 2, s.window, s.applied_step, s.micro_size) == want_page, s

    @staticmethod
    def acknowledge(t, window, job_done):
        try:
            t.ack_step(window)
        except GaccError as e:
            if e.reason != "JOB_ENDED" or not job_done:  # of a job that ended under an earlier gaccd nobody is left to hear it
                raise

    def root(self, name):
        target = {x[0]: x[3] for x in self.tensors if len(x) == 4}
        while name in target:
            name = target[name]
        return name

    def check_digest(self, result):
        """Of the same parameters the same; of others another."""
        if not self.model.is_client:
            bits = b"".join(p.tobytes() for p in self.model.p.values())  # of the masters, where there are
            assert self.digests.setdefault(bits, result.params_digest) == result.params_digest, result
            assert list(self.digests.values()).count(result.params_digest) == 1, result

    def look(self, result):
        """The job has the digest a moment after the ranks: once every part has applied the window."""
        wait_until("the last window's digest", lambda: self.d.get_job(self.job).last.params_digest == result.params_digest)
        j = self.d.get_job(self.job)
        assert str(j.last) == str(result), f"the job's last window is\n{j.last}the ranks were told\n{result}"
        assert (j.window, j.applied_step, j.micro_size, j.loss_scale) == (
            self.model.window, self.model.applied, self.model.values()["micro_size"], self.model.scale["scale"]), j
        assert {n: getattr(j.counters, n) for n in self.model.counters} == self.model.counters, j.counters

    def check_norms(self):
        for future in self.norms:
            try:
                answer = future.result(30)
            except GaccError as e:
                assert e.reason in ("JOB_ENDED", "NOT_READY"), e
                continue
            if answer.window not in self.results:
                continue  # the operator has closed one more than we have played
            before = self.states[answer.window]
            counted = [self.batches[answer.window][k] for k, a in self.micros_of[answer.window].items() if a == COUNTED]
            total = before.sum(counted)
            unit = 1 / (self.results[answer.window].divisor * before.scale["scale"]) if counted else 0.0
            for t in answer.norms:
                name = self.root(t.name)
                g = 0.0 if before.group(name).get("frozen") else np.sqrt(tree_sum(block_sums(total[name]))) * unit
                p = 0.0 if self.model.is_client else np.sqrt(tree_sum(block_sums(before.p[name])))
                assert np.isclose(t.grad_norm, g, rtol=1e-12, atol=0, equal_nan=True) or not np.isfinite(g), f"{t} not {g}"
                assert self.model.is_client or np.isclose(t.param_norm, p, rtol=1e-12, atol=0), f"{t} not {p}"

    def check_history(self):
        rows = {}
        for row in self.d.client.jobs.History(job=str(self.job), limit=1000, micros=True):
            rows.setdefault(row.result.window, []).append(row)
        for window, result in self.results.items():
            got = rows.get(window)
            if self.gaccd_died and not (got and got[0].micros):
                continue  # what gaccd had not written yet died with it
            assert str(got[0].result) == str(result), f"history has\n{got[0].result}the ranks were told\n{result}"
            micros = {(m.rank, m.micro): m for row in got for m in row.micros}
            want = self.micros_of[window]
            assert set(micros) == set(want), f"history of window {window}: {sorted(micros)}, not {sorted(want)}"
            for key, m in micros.items():
                sent = self.batches[window][key]
                assert (m.weight, m.loss, m.rejected, m.data_key) == (sent.weight, sent.loss, want[key] == VOID, sent.key), m
            size = self.states[window].values()["micro_size"]
            short = [r for r in range(self.n) if sum(1 for k in want if k[0] == r) < size]
            assert list(got[0].short_ranks) == short, (window, got[0].short_ranks, short)

    # ---- checkpoints ----

    def read_checkpoints(self):
        """Those of the window that has closed: they may show its end."""
        todo, self.to_read = self.to_read, []
        for k, updates in todo:
            if k.window not in self.states:
                continue  # the operator has closed one more than we have played
            try:
                self.saved.append(self.read_checkpoint(pathlib.Path(k.path), k, updates))
            except FileNotFoundError:
                assert self.spec.get("checkpoint", {}).get("keep"), k  # a newer one has taken its place

    def read_checkpoint(self, path, k, updates=None):
        """Compares the files with the model of that window. `updates`: those that were made before it was saved, if that is known."""
        manifest = json.loads((path / "manifest.json").read_text())
        model = self.states[manifest["window"]].copy()
        model.updates = [(u["window"], u["values"]) for u in manifest["updates"]]
        if updates is not None:
            for ahead in range(6):
                got, model.updates = model.values(model.window + ahead), updates
                assert got == model.values(model.window + ahead), f"{path}: updates {manifest['updates']}, not {updates}"
                model.updates = [(u["window"], u["values"]) for u in manifest["updates"]]
            model.updates = updates
        assert (model.window, manifest["applied_step"]) == (manifest["window"], model.applied) == (k.window, k.applied_step), manifest
        files = {f["name"].removesuffix(".safetensors"): read_safetensors(path / f["name"]) for f in manifest["files"]}
        for name, p in model.params().items():
            dtype, shape, data = files["model"][name]
            assert dtype == SAFETENSORS[model.dtype[name]] and shape == list(self.ranks[0].shapes[name] if self.ranks[0] else shape)
            compare(f"{path}: {name}", p, np.frombuffer(data, NUMPY[model.dtype[name]]))
        self.check_states(path, model, whole_state(files))
        return Saved(path, model, *(self.read_carries(path, model, files) if manifest["inside_window"] else ()))

    def check_states(self, path, model, files):
        o = model.optimizer
        names = {"exp_avg": model.m, "exp_avg_sq": model.v} if o["type"] != "sgd" else {"momentum_buffer": model.m} if o.get("momentum") else {}
        master = {n: model.p[n] for n, d in model.dtype.items() if d != F32 and model.spec.get("master") != "none"}
        want = {f"{n}.{state}": a[n] for state, a in {**names, "master": master}.items() for n in a}
        assert set(files) == set(want), (set(files) ^ set(want))
        for name, a in want.items():
            compare(f"{path}: {name}", a, np.frombuffer(files[name][2], np.float32))

    def read_carries(self, path, model, files):
        """Who is in the window's sums, and that they are their sums: of each part that has counted something."""
        parts, ranks, carried, flushed = model.spec.get("parts") or 1, model.spec["ranks"], {}, set()
        for part in range(parts):
            end = f"-{part + 1:05d}-of-{parts:05d}" if parts > 1 else ""
            if f"carry{end}" in files:
                more = self.read_carry(path, model, files[f"carry{end}"], files[f"window{end}"], part * ranks // parts)
                carried.update(more[0]), flushed.update(more[1])
        return carried, flushed

    def read_carry(self, path, model, sums, window, first):
        dtype, shape, data = window["state"]
        state = np.frombuffer(data, UNSIGNED[dtype]).reshape(shape)
        who = [(first + int(r), int(m), state[r, m]) for r, m in np.argwhere(state)]
        carried = {(r, m): (self.batches[model.window][r, m], VOID if s == 2 else COUNTED) for r, m, s in who}
        assert all(self.settled_first.get(k) or (answer == VOID) == model.is_void(b) for k, (b, answer) in carried.items())
        total = model.sum([b for b, answer in carried.values() if answer == COUNTED])
        for name, x in total.items():
            compare(f"{path}: carry {name}", x, np.frombuffer(sums[name][2], model.acc)) if name in sums else None
        dtype, _, data = window["flushed"]
        return carried, {first + int(r) for r in np.flatnonzero(np.frombuffer(data, UNSIGNED[dtype]))}

    def check_end_checkpoint(self):
        policy = self.spec.get("checkpoint")
        if not policy:
            return
        kept = [k for k in self.d.client.jobs.ListCheckpoints(job=str(self.job)).checkpoints]
        kept = [k for k in kept if not (k.state == 3 and "engine is restarting" in k.message)]  # it died twice
        assert all(k.state == 2 for k in kept), kept
        if policy["at_end"]:
            assert kept and kept[-1].applied_step == self.model.applied, kept
        if policy["keep"]:
            assert len(kept) <= policy["keep"] + self.gaccd_died, kept  # a gaccd that dies between saving and deleting leaves one more
        alive = {str(k.path) for k in kept}
        self.saved = [s for s in self.saved if str(s.path) in alive]
        self.saved += [self.read_checkpoint(pathlib.Path(k.path), k) for k in kept if str(k.path) not in {str(s.path) for s in self.saved}
                       and (k.window in self.states or k.window == self.model.window)]
