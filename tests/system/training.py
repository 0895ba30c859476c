# SPDX-License-Identifier: Apache-2.0
"""All ranks of a job in one test: each a trainer with a session of its own, its calls in a thread of its own."""
import concurrent.futures
import random
import time

import numpy as np

from harness import BF16, GaccError, Rank, as_dtype, from_bf16


def widened(array, dtype):
    """The f64 values of an array as it is on the wire."""
    if dtype == BF16:
        return from_bf16(np.atleast_1d(array)).astype(np.float64).reshape(np.shape(array))
    return np.asarray(array, np.float64)


def push_in_order(rank, request):
    """A push that may overtake the one before: it is refused then, nothing has changed, and it is sent again. Not for ever: the one before may fail."""
    end = time.monotonic() + 60
    while True:
        try:
            return rank.gacc.Push(request)
        except GaccError as e:
            if e.reason != "OUT_OF_ORDER" or time.monotonic() > end:
                raise
        time.sleep(0.001)


class Team:
    """
        with Team(daemon, spec, tensors, params) as team:
            step = team.window([[(weight, {"w": g}), ...], ...])   # one list of micro-batches per rank

    `inline`: the ranks that send their gradients in messages instead of mapping slots. Numpy arrays of any float type
    are rounded to the tensors' dtypes; what was sent is in `sent` as [(weight, name -> f64), ...]. `place`: the daemon of each rank's node."""

    def __init__(self, daemon, spec, tensors, params=None, inline=(), place=None):
        self.daemon, self.spec = daemon, spec
        self.job = daemon.submit(spec)
        n = spec["ranks"]
        self.ranks = [Rank(place[r] if place else daemon, self.job, r, tensors, ranks=n, inline=r in inline) for r in range(n)]
        self.pool = concurrent.futures.ThreadPoolExecutor(n)
        self.sent = []
        zeros = {t.name: np.zeros(t.shape, np.float32) for t in self.ranks[0].tensors if not t.alias_of}
        self._all(lambda r: r.start(None if spec.get("init") else params or zeros))
        self.shapes = {t.name: tuple(t.shape) for t in self.ranks[0].tensors if not t.alias_of}

    def _all(self, what):
        """`what(rank)` for every rank at the same time; the first error is raised at once."""
        futures = [self.pool.submit(what, r) for r in self.ranks]
        for done in concurrent.futures.as_completed(futures):
            done.result()
        return [f.result() for f in futures]

    def __getitem__(self, rank):
        return self.ranks[rank]

    def as_sent(self, grads, scale=1.0):
        """Gradients rounded to their wire dtypes: for the wire, and as f64."""
        wire = {n: as_dtype(np.asarray(g, np.float64) * scale, self.ranks[0].layout[n].grad_dtype)
                if np.asarray(g).dtype != np.uint16 else g for n, g in grads.items()}
        return wire, {n: widened(a, self.ranks[0].layout[n].grad_dtype).reshape(self.ranks[0].shapes[n])
                      for n, a in wire.items()}

    def window(self, micros, shuffle=None, **push):
        """One window: every rank pushes its micro-batches, flushes when there are fewer than micro_size, and waits for the
        step. A gradient that is None (or not named) was not touched. `shuffle`: a seed for random delays and two
        pushes under way at a time."""
        scale = self.spec.get("loss_scale") or 1.0
        work, self.sent = [], []
        for of_rank in micros:
            work.append([])
            for weight, grads in of_rank:
                wire, exact = self.as_sent({n: g for n, g in grads.items() if g is not None}, scale)
                work[-1].append((weight, wire))
                self.sent.append((weight, exact))
        steps = self._all(lambda r: self._one(r, work[r.rank], shuffle, push))
        for other in steps[1:]:
            assert str(other.result) == str(steps[0].result), f"one rank was told\n{steps[0].result}another\n{other.result}"
        return steps[0]

    def _one(self, rank, work, shuffle, push):
        pauses = random.Random(f"{shuffle} {rank.rank} {rank.window}")
        under_way = []
        for weight, grads in work:
            present = [n in grads for n in rank.names]
            what = dict(push, weight=weight, present=None if all(present) else present)
            if shuffle is None:
                rank.push(grads, **what)
                continue
            time.sleep(pauses.choice((0, 0, 0.001, 0.004)))
            if len(under_way) == rank.registered.slots:
                under_way.pop(0).result()
            request = rank.push_request(slot=rank.micro % rank.registered.slots, **what)
            rank.fill(grads, request.slot)
            under_way.append(rank.pool.submit(push_in_order, rank, request))
            rank.micro += 1
        for future in under_way:
            future.result()
        if len(work) < rank.micro_size:
            rank.flush()
        return rank.wait_step()

    def params(self):
        """name -> array; all ranks see the same bytes. bf16 as bits."""
        seen = [r.params() for r in self.ranks]
        for other in seen[1:]:
            assert all(other[n].tobytes() == p.tobytes() for n, p in seen[0].items())
        return seen[0]

    def values(self):
        """The parameters' values, bf16 widened, without aliases."""
        return {n: widened(p, self.ranks[0].layout[n].param_dtype) for n, p in self.params().items() if n in self.shapes}

    def reduced(self):
        """Optimizer CLIENT: the reduced gradient, the same bytes on all ranks; then all acknowledge."""
        seen = [r.reduced() for r in self.ranks]
        for other in seen[1:]:
            assert all(other[n].tobytes() == g.tobytes() for n, g in seen[0].items())
        for r in self.ranks:
            r.ack_step()
        return seen[0]

    def close(self):
        for r in self.ranks:
            r.close()
        self.pool.shutdown(wait=False)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        try:
            if kind is None:
                for r in self.ranks:
                    r.detach()
            else:  # the test has failed: its job's warnings are no second failure
                self.daemon.allow.append(rf" job={self.job} ")
                self.daemon.cancel(self.job)
        finally:
            self.close()


def draw(seed, shape, low=None):
    """Random numbers that are no integers: normal; or with absolute values from low to 2 low, and signs that are the same for
    all seeds with the same last number, so that sums of them do not cancel."""
    rng = np.random.default_rng(seed)
    if low is None:
        return rng.normal(size=shape)
    signs = np.random.default_rng(np.atleast_1d(seed)[-1]).choice((-1, 1), shape)
    return signs * rng.uniform(low, 2 * low, shape)
