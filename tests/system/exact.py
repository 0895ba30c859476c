# SPDX-License-Identifier: Apache-2.0
"""What a job must compute, bit for bit: docs/gradient.md and docs/protocol.md as a numpy program of one process.

reference.py computes arrays in f64, with bounds on the distance; the scalars (coefficients, divisors, schedules) are shared. Here every
operation on an array is rounded as the document says (one rounding each, subnormal f32 count as zero, canonical order, fixed trees), so that one contribution that is lost, doubled or late
shows in any job, whatever its numbers are. Nothing here knows how the daemon does it, nor that anything can fail.
"""
import copy
import math

import numpy as np

from gacc_client import BF16, DTYPES, F16, from_bf16, to_bf16
from reference import coefficient, divisor, group_of, schedule_factor

f32 = np.float32
TINY = f32(2.0 ** -126)
HUGE = float(np.finfo(f32).max)
BLOCK, LANES, ALIGN = 1024, 16, 32
APPLIED, SKIPPED, EMPTY, DROPPED = 1, 2, 3, 4
NONFINITE, OUTLIER = 1, 2
np.seterr(all="ignore")  # infinities and NaNs are part of the game


# ---- f32 as the engine has it ----


def flush(x):
    """Subnormals are zero, as operands and as results."""
    x = np.asarray(x, f32)
    return np.where(np.abs(x) < TINY, np.copysign(f32(0), x), x).astype(f32)


def flush64(x):
    return np.where(np.abs(x) < 2.0 ** -1022, np.copysign(0.0, x), x)


def add(a, b):
    return flush(a + b)


def sub(a, b):
    return flush(a - b)


def mul(a, b):
    return flush(a * b)


def div(a, b):
    return flush(a / b)


def widen(a, dtype):
    """f32 values of an array as it is on the wire, flat."""
    a = np.asarray(a).ravel()
    return flush(from_bf16(a) if dtype == BF16 else a.astype(f32))


def narrow(x, dtype):
    """The bits of f32 values in a dtype, as an array of the wire: uint16 for bf16."""
    return to_bf16(x) if dtype == BF16 else x.astype(np.float16) if dtype == F16 else np.asarray(x, f32)


def block_sums(a):
    """Sums of squares of blocks of 1024, each in 16 lanes and a tree; in f64."""
    kind = a.dtype.type
    n = -(-a.size // BLOCK) * BLOCK
    squares = np.zeros(n, kind)
    squares[:a.size] = flush(a * a) if kind is f32 else flush64(a * a)
    rows = squares.reshape(-1, BLOCK // LANES, LANES)
    lane = np.zeros((len(rows), LANES), kind)
    for i in range(BLOCK // LANES):
        lane = lane + rows[:, i]
    while lane.shape[1] > 1:
        half = lane.shape[1] // 2
        lane = lane[:, :half] + lane[:, half:]
    return lane[:, 0].astype(np.float64)


def tree_sum(blocks):
    if len(blocks) <= 8:
        total = 0.0
        for b in blocks:
            total += float(b)
        return total
    half = 1 << ((len(blocks) - 1).bit_length() - 1)
    return tree_sum(blocks[:half]) + tree_sum(blocks[half:])


# ---- the job ----


class Micro:
    """One micro-batch as it is sent. grads: owner's name -> array of the wire; what is missing was not touched."""

    def __init__(self, rank, micro, weight, loss, grads, key=0):
        self.rank, self.micro, self.weight, self.loss, self.grads, self.key = rank, micro, weight, loss, grads, key


class Exact:
    """The state of a job. `spec` as given to Submit, enum values short; tensors as Rank has them."""

    def __init__(self, spec, tensors):
        self.spec, self.tensors = spec, tensors
        self.owners = [t for t in tensors if len(t) < 4]
        self.dtype = {t[0]: DTYPES[t[2] if len(t) > 2 else "f32"] for t in self.owners}
        grad = spec.get("gradient_dtype")
        self.grad_dtype = {n: DTYPES[grad] if grad else d for n, d in self.dtype.items()}
        self.size = {t[0]: int(np.prod(t[1], dtype=np.int64)) for t in self.owners}
        self.acc = np.float64 if spec.get("accumulate_dtype") == "f64" else f32
        self.window = self.applied = 0
        self.updates = []  # (window, values), in the order in which they were made
        self.scale = {"scale": spec.get("loss_scale") or 1.0, "good": 0, "allowance": self.rule("hysteresis", 1)}
        self.norms = {"sum": 0.0, "weight": 0.0, "steps": 0, "refused": 0}
        self.counters = dict.fromkeys(("applied", "skipped_nonfinite", "skipped_outlier", "dropped", "empty", "rejected_micros", "partial"), 0)
        self.p, self.m, self.v = {}, {}, {}
        self._lay_out()

    def copy(self):
        other = copy.copy(self)
        for name in ("updates", "scale", "norms", "counters", "p", "m", "v"):
            setattr(other, name, copy.copy(getattr(self, name)))
        return other

    def _lay_out(self):
        """Where a tensor's elements are in the arena, which blocks are counted from."""
        self.start, end = {}, 0
        for dtype in ("f32", "bf16", "f16"):
            at = base = end
            for name, d in self.dtype.items():
                if d == DTYPES[dtype]:
                    self.start[name] = base + -(-(at - base) // ALIGN) * ALIGN
                    at = self.start[name] + self.size[name]
            end = base + -(-(at - base) // BLOCK) * BLOCK
        self.elements = end

    # -- what the spec says --

    def rule(self, name, default):
        return self.spec.get("dynamic_loss_scale", {}).get(name) or default

    @property
    def optimizer(self):
        return self.spec["optimizer"]

    @property
    def is_client(self):
        return self.optimizer["type"] == "client"

    def group(self, name):
        return group_of(self.spec, name)

    def values(self, window=None):
        """micro_size, lr, clip_norm and clip_value of a window."""
        window = self.window if window is None else window
        now = {"micro_size": self.spec["micro_size"], "lr": self.optimizer.get("lr", 0.0), "clip_norm": self.spec.get("clip_norm", 0.0),
               "clip_value": self.spec.get("clip_value", 0.0)}
        for at, values in sorted(self.updates, key=lambda u: u[0]):
            if at <= window:
                now.update(values)
        return now

    # -- parameters --

    def set_params(self, params):
        """name -> array of the wire."""
        for name in self.dtype:
            self.p[name] = widen(params[name], self.dtype[name])
            self.m[name] = np.zeros(self.size[name], f32)
            self.v[name] = np.zeros(self.size[name], f32)

    def params(self):
        """name -> array of the wire, flat."""
        return {n: narrow(p, self.dtype[n]) for n, p in self.p.items()}

    def is_lost(self):
        """Parameters, or v, that are inf or NaN where the optimizer writes."""
        def finite(name):
            return all(np.isfinite(x).all() for x in (self.p[name], widen(narrow(self.p[name], self.dtype[name]), self.dtype[name]), self.v[name]))
        return not self.is_client and not all(finite(name) or self.group(name).get("frozen") for name in self.p)

    # -- the sum --

    def products(self, micro):
        """name -> coefficient times gradient, of what counts at all."""
        c = coefficient(self.spec, micro.weight)
        for name, g in micro.grads.items():
            if not self.group(name).get("frozen"):
                g = widen(g, self.grad_dtype[name])
                yield name, mul(flush(f32(c)), g) if self.acc is f32 else flush64(flush64(np.float64(c)) * g.astype(np.float64))

    def is_void(self, micro):
        return self.spec.get("nonfinite") in ("reject_micro", "error") and any(not np.isfinite(x).all() for _, x in self.products(micro))

    def by_part(self, micros):
        """The micro-batches of each part, in canonical order. Part i of D has ranks i*R/D to (i+1)*R/D - 1."""
        parts, ranks = self.spec.get("parts") or 1, self.spec["ranks"]
        order = sorted(micros, key=lambda m: (m.micro, m.rank))
        return [[m for m in order if i * ranks // parts <= m.rank < (i + 1) * ranks // parts] for i in range(parts)]

    def _plus(self, a, b):
        return add(a, b) if self.acc is f32 else flush64(a + b)

    def _zeros(self):
        return {n: np.zeros(k, self.acc) for n, k in self.size.items()}

    def sum(self, micros):
        """name -> sum: each part's in canonical order, and those of the parts in part order."""
        parts = self.by_part(micros)
        sums = []
        for part in parts:
            total = self._zeros()
            for micro in part:
                for name, x in self.products(micro):
                    total[name] = self._plus(total[name], x)
            sums.append(total)
        if len(sums) == 1:
            return sums[0]
        total = self._zeros()
        for of_part in sums:
            for name, x in of_part.items():
                total[name] = self._plus(total[name], x)
        return total

    def weigh(self, micros):
        """Their weights and their losses, each times its weight: sums of the parts' sums."""
        weight = loss = 0.0
        for part in self.by_part(micros):
            w = l = 0.0
            for micro in part:
                w += micro.weight
                l += micro.weight * micro.loss
            weight, loss = weight + w, loss + l
        return weight, loss

    def sumsq(self, total):
        arena = np.zeros(self.elements, self.acc)
        for name, x in total.items():
            arena[self.start[name]:self.start[name] + x.size] = x
        return tree_sum(block_sums(arena))

    # -- the outcome --

    def close(self, counted, n_void):
        """The window with these micro-batches in it; what StepResult must say, and "reduced" for optimizer client."""
        v, expected = self.values(), self.spec["ranks"] * self.values()["micro_size"]
        counted = sorted(counted, key=lambda m: (m.micro, m.rank))
        weight, loss = self.weigh(counted)
        total = self.sum(counted)
        r = {"window": self.window, "outcome": EMPTY, "skip_reason": 0, "total_weight": weight, "micro_count": len(counted), "divisor": 0.0,
             "grad_norm": 0.0, "lr": 0.0, "mean_loss": loss / weight if weight > 0 else 0.0, "loss_scale": self.scale["scale"]}
        if counted:
            r["divisor"] = divisor(self.spec, weight, len(counted))
            unit = 1 / (r["divisor"] * self.scale["scale"])
            r["grad_norm"] = math.sqrt(self.sumsq(total)) * unit if self.sumsq(total) >= 0 else math.nan
            clip = min(1.0, v["clip_norm"] / (r["grad_norm"] + 1e-6)) if v["clip_norm"] else 1.0
            factor = unit * clip
            r["outcome"], r["skip_reason"] = self._judge(len(counted) + n_void < expected, total, r["grad_norm"], factor, clip, v["clip_value"])
        if r["outcome"] == APPLIED:
            r["lr"] = v["lr"] * schedule_factor(self.spec.get("schedule", {}), self.applied)
            self.applied += 1
            self._take_norm(r["grad_norm"])
            if self.is_client:
                r["reduced"] = {n: self._scaled(x, factor, v["clip_value"]) for n, x in total.items()}
            else:
                self.update(total, factor, r["lr"], v["clip_value"])
        if r["skip_reason"] == OUTLIER:
            self._refuse_norm()
        r["applied_step"] = self.applied
        self._move_scale(n_void or r["skip_reason"] == NONFINITE, r["outcome"] == APPLIED)
        r["next_loss_scale"] = self.scale["scale"]
        self._count(r, len(counted) < expected, n_void)
        self.window += 1
        return r

    def _judge(self, short, total, norm, factor, clip, clip_value):
        if short and self.spec.get("uneven") == "drop":
            return DROPPED, 0
        if not math.isfinite(norm) or not TINY <= factor <= HUGE or any(not np.isfinite(x).all() for x in total.values()):
            return SKIPPED, NONFINITE
        limit = math.sqrt(HUGE) if self.optimizer["type"] in ("adam", "adamw", "lamb") else HUGE
        if norm * clip > limit and not 0 < clip_value <= limit:
            return SKIPPED, NONFINITE
        outlier = self.spec.get("outlier_skip", {})
        mean = self.norms["sum"] / self.norms["weight"] if self.norms["weight"] else 0.0
        if outlier.get("factor") and self.norms["steps"] >= (outlier.get("warmup_steps") or 20) and mean and norm > outlier["factor"] * mean:
            return SKIPPED, OUTLIER
        return APPLIED, 0

    def _take_norm(self, norm):
        decay = self.spec.get("outlier_skip", {}).get("decay") or 0.99
        n = self.norms
        n.update(sum=decay * n["sum"] + norm, weight=decay * n["weight"] + 1, steps=n["steps"] + 1, refused=0)

    def _refuse_norm(self):
        self.norms["refused"] += 1
        if self.norms["refused"] >= (self.spec["outlier_skip"].get("warmup_steps") or 20):
            self.norms = dict.fromkeys(self.norms, 0)

    def _move_scale(self, not_finite, applied):
        s = self.scale
        if not self.spec.get("dynamic_loss_scale", {}).get("enabled"):
            return
        if not_finite:
            s["good"], s["allowance"] = 0, max(s["allowance"] - 1, 0)
            if not s["allowance"]:
                s["scale"] = max(s["scale"] * self.rule("backoff_factor", 0.5), self.rule("min_scale", 1.0))
        elif applied:
            s["good"] += 1
            if s["good"] >= self.rule("growth_interval", 2000):
                s.update(good=0, allowance=self.rule("hysteresis", 1),
                         scale=min(s["scale"] * self.rule("growth_factor", 2.0), self.rule("max_scale", 2.0 ** 24)))

    def _count(self, r, short, n_void):
        c = self.counters
        c["applied"] += r["outcome"] == APPLIED
        c["partial"] += r["outcome"] == APPLIED and short
        c["skipped_nonfinite"] += r["skip_reason"] == NONFINITE
        c["skipped_outlier"] += r["skip_reason"] == OUTLIER
        c["dropped"] += r["outcome"] == DROPPED
        c["empty"] += r["outcome"] == EMPTY
        c["rejected_micros"] += n_void

    # -- the step --

    def _scaled(self, x, factor, clip_value):
        limit = f32(clip_value) if clip_value else f32(np.inf)
        if self.acc is f32:
            return np.clip(mul(flush(f32(factor)), x), -limit, limit)
        return np.clip(factor * x, -np.float64(limit), np.float64(limit))

    def gradient(self, x, factor, clip_value):
        """f32, unscaled and clamped, as an update takes it."""
        limit = f32(clip_value) if clip_value else f32(np.inf)
        scale = flush(f32(factor))
        return np.clip(mul(scale, x) if self.acc is f32 else flush((np.float64(scale) * x).astype(f32)), -limit, limit)

    def update(self, total, factor, lr, clip_value):
        """One applied step; `applied` is already its number."""
        rule = {"sgd": self._sgd, "adam": self._adam, "adamw": self._adamw, "lamb": self._lamb}[self.optimizer["type"]]
        for name, x in total.items():
            group = self.group(name)
            if group.get("frozen"):
                continue
            decay = group.get("weight_decay", 0.0) if group.get("override_weight_decay") else self.optimizer.get("weight_decay", 0.0)
            p = rule(name, flush(self.p[name]), self.gradient(x, factor, clip_value), lr * group.get("lr_scale", 1.0), decay)
            rounds = self.spec.get("master") == "none"
            self.p[name] = widen(narrow(p, self.dtype[name]), self.dtype[name]) if rounds else p

    def _sgd(self, name, p, g, lr, decay):
        o = self.optimizer
        momentum = f32(o.get("momentum", 0.0))
        g = add(g, mul(f32(decay), p))
        if momentum:
            b = g if self.applied == 1 else add(mul(momentum, self.m[name]), mul(f32(1 - o.get("dampening", 0.0)), g))
            self.m[name] = b
            g = add(g, mul(momentum, b)) if o.get("nesterov") else b
        return sub(p, mul(f32(lr), g))

    def _moments(self, name, g):
        o = self.optimizer
        m, v = self.m[name], self.v[name]
        m = add(m, mul(f32(1 - o["beta1"]), sub(g, m)))
        v = add(mul(f32(o["beta2"]), v), mul(mul(f32(1 - o["beta2"]), g), g))
        self.m[name], self.v[name] = m, v
        denominator = add(mul(flush(np.sqrt(v)), f32(1 / math.sqrt(1 - o["beta2"] ** self.applied))), f32(o["eps"]))
        return m, denominator

    def _adam(self, name, p, g, lr, decay):
        return self._adamw(name, p, add(g, mul(f32(decay), p)), lr, 0.0)

    def _adamw(self, name, p, g, lr, decay):
        p = mul(p, f32(1 - lr * decay))
        m, denominator = self._moments(name, g)
        return sub(p, div(mul(f32(lr / (1 - self.optimizer["beta1"] ** self.applied)), m), denominator))

    def _lamb(self, name, p, g, lr, decay):
        m, denominator = self._moments(name, g)
        d = add(div(mul(m, f32(1 / (1 - self.optimizer["beta1"] ** self.applied))), denominator), mul(f32(decay), p))
        norms = [math.sqrt(tree_sum(block_sums(x))) for x in (p, d)]
        ratio = norms[0] / norms[1] if norms[1] else math.inf
        trust = ratio if decay and ratio > 0 and math.isfinite(ratio) else 1.0
        return sub(p, mul(f32(lr * trust), d))


def compare(what, want, got):
    """Equal bits but for the sign of zero; both flat."""
    want, got = np.asarray(want).ravel(), np.asarray(got).ravel()
    assert want.dtype == got.dtype and want.size == got.size, f"{what}: {got.dtype}[{got.size}], not {want.dtype}[{want.size}]"
    number = [from_bf16(a) if a.dtype == np.uint16 else a for a in (want, got)]
    wrong = np.flatnonzero(~((number[0] == number[1]) | (np.isnan(number[0]) & np.isnan(number[1]))))
    assert not wrong.size, (f"{what}: {wrong.size} of {want.size} elements differ, the first at {wrong[0]}: "
                            f"{number[1][wrong[0]]!r}, not {number[0][wrong[0]]!r}")
