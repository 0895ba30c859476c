# SPDX-License-Identifier: Apache-2.0
"""What a job must compute, in float64 numpy: the sums of decision 1, torch.optim's formulas, and how far f32 may be from them.

Nothing here looks at how the daemon does it. The bounds are of two kinds:
  - a reduced gradient: 4 eps32 sum|c g| / divisor per element (`Reduced`; eps64 with f64 accumulators). The worst case of n f32
    additions is (n + 4) / 2 eps32; random roundings stay far below it. Largest of 200,000 elements in a simulation: for
    gradients of random sign 1.8 eps32 with 12 micro-batches, 2.3 with 64, 2.5 with 512; for gradients that all have the
    same sign 2.3, 4.0 and 13, so that tests of those keep to few micro-batches;
  - everything made of it: running error analysis (Higham, Accuracy and Stability of Numerical Algorithms, 3.3), done by
    `Num`: each operation hands on what its operands bring and adds one rounding of its result. A parameter's bound is thus
    the gradient's bound carried through the optimizer's formula, plus the formula's own roundings.
"""
import fnmatch
import math

import numpy as np

U32 = 2.0 ** -24            # unit roundoff of f32: half of eps32
EPS32 = 2 * U32
TINY32 = 2.0 ** -126        # below it f32 results are flushed to zero
U16 = {"bf16": 2.0 ** -8, "f16": 2.0 ** -11}  # unit roundoffs; f16's holds above 2^-14
SUMSQ_U = 69 * U32          # of a sum of squares: blocks of 1024 in 16 f32 lanes: 1 product, 64 sums, 4 levels


class Num:
    """A float64 array and a bound on the distance of the f32 array that stands for it."""

    def __init__(self, value, error=0.0):
        self.value = np.asarray(value, np.float64)
        self.error = np.broadcast_to(np.asarray(error, np.float64), self.value.shape)

    @classmethod
    def constant(cls, x):
        """A number that was rounded to f32 once."""
        return cls(x, U32 * abs(x))

    @classmethod
    def rounded(cls, value, error, u=U32, tiny=TINY32):
        return cls(value, error + u * (np.abs(value) + error) + tiny)

    @staticmethod
    def of(x):
        return x if isinstance(x, Num) else Num.constant(x)

    def __add__(self, other):
        b = Num.of(other)
        return Num.rounded(self.value + b.value, self.error + b.error)

    def __sub__(self, other):
        return self + -Num.of(other)

    def __neg__(self):
        return Num(-self.value, self.error)

    def __mul__(self, other):
        b = Num.of(other)
        return Num.rounded(self.value * b.value, np.abs(self.value) * b.error + np.abs(b.value) * self.error +
                           self.error * b.error)

    __rmul__ = __mul__

    def __truediv__(self, other):
        b = Num.of(other)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = self.value / b.value
            room = np.abs(b.value) - b.error
            error = np.where(room > 0, (self.error + np.abs(value) * b.error) / room, np.inf)
        return Num.rounded(value, error)

    def sqrt(self):
        root = np.sqrt(self.value)
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.fmin(self.error / root, np.sqrt(self.error))
        return Num.rounded(root, error)

    def stored_as(self, dtype):
        """Rounded to a 16-bit dtype, or as it is."""
        return self if dtype == "f32" else Num.rounded(self.value, self.error, U16[dtype], 2.0 ** -25)

    def check(self, got, what=""):
        """`got` lies within the bound; the largest share of it that was used."""
        distance = np.abs(np.asarray(got, np.float64) - self.value)
        assert np.all(np.isfinite(got)), f"{what}: not finite"
        worst = np.unravel_index(np.argmax(distance - self.error), distance.shape) if distance.size else ()
        assert np.all(distance <= self.error), (
            f"{what}{list(map(int, worst))}: {np.asarray(got)[worst]!r} instead of {self.value[worst]!r}, off by "
            f"{distance[worst]:.3g}, bound {self.error[worst]:.3g}")
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.nanmax(np.where(self.error > 0, distance / self.error, 0), initial=0))


# ---- a window ----


def coefficient(spec, weight):
    reduction, of_sum = spec.get("reduction", "weighted_mean"), spec.get("grad_of", "mean") == "sum"
    if reduction in ("weighted_mean", "sum"):
        return 1.0 if of_sum else weight
    if reduction == "mean":
        return 1 / weight if of_sum else 1.0
    return 1.0


def divisor(spec, weight, count):
    """weight: the sum of the weights."""
    return {"weighted_mean": weight, "mean": float(count), "sum": 1.0,
            "fixed_divisor": spec.get("fixed_divisor")}[spec.get("reduction", "weighted_mean")]


class Reduced:
    """A window's gradient. grads: name -> Num, clipped and unscaled; norm: Num, before clipping."""

    def __init__(self, spec, micros, shapes):
        """micros: (weight, name -> gradient as pushed) of all ranks; names that are missing were not touched."""
        weights = [w for w, _ in micros]
        self.count, self.total_weight, self.divisor = len(micros), math.fsum(weights), divisor(spec, math.fsum(weights), len(weights))
        unit = 1 / (self.divisor * (spec.get("loss_scale") or 1.0))
        exact = spec.get("accumulate_dtype") == "f64"
        eps = 2.0 ** -52 if exact else EPS32
        # sums in extended precision: as references for f64 accumulators, too
        self.grads, kind = {}, np.longdouble if exact else np.float64
        for name, shape in shapes.items():
            total, absolute = np.zeros(shape, kind), np.zeros(shape, kind)
            frozen = group_of(spec, name).get("frozen")
            for weight, grads in micros:
                if name in grads and not frozen:
                    term = kind(coefficient(spec, weight)) * np.asarray(grads[name], kind)
                    total, absolute = total + term, absolute + np.abs(term)
            self.grads[name] = Num(total * kind(unit), 4 * eps * absolute * unit)
        self._norm(0 if exact else SUMSQ_U)
        self._clip(spec.get("clip_norm"), spec.get("clip_value"))

    def _norm(self, sumsq_u):
        values = [g.value.ravel() for g in self.grads.values()]
        errors = [g.error.ravel() for g in self.grads.values()]
        norm = float(np.linalg.norm(np.concatenate(values)))
        self.norm = Num(norm, np.linalg.norm(np.concatenate(errors)) + sumsq_u / 2 * norm)

    def _clip(self, clip_norm, clip_value):
        """torch.nn.utils.clip_grad_norm_, then clip_grad_value_ (which brings no two numbers further apart)."""
        if clip_norm:
            norm, error = float(self.norm.value), float(self.norm.error)
            factor = min(1.0, clip_norm / (norm + 1e-6))
            spread = min(1.0, clip_norm / (norm - error + 1e-6)) - min(1.0, clip_norm / (norm + error + 1e-6))
            self.grads = {n: Num(g.value * factor, g.error * (factor + spread) + np.abs(g.value) * spread)
                          for n, g in self.grads.items()}
        if clip_value:
            self.grads = {n: Num(np.clip(g.value, -clip_value, clip_value), g.error + U32 * clip_value * (np.abs(g.value) +
                                 g.error >= clip_value)) for n, g in self.grads.items()}


# ---- steps ----


def group_of(spec, name):
    return next((g for g in spec.get("param_groups", []) if fnmatch.fnmatchcase(name, g["pattern"])), {})


def schedule_factor(schedule, applied):
    """Factor for the step after `applied` steps: LinearLR, then CosineAnnealingLR's closed form or StepLR."""
    kind, warmup = schedule.get("type", "constant"), schedule.get("warmup_steps", 0)
    if applied < warmup:
        start = schedule.get("warmup_start_factor", 0.0)
        return start + (1 - start) * applied / warmup
    t = applied - warmup
    if kind == "cosine":
        low, period = schedule.get("min_factor", 0.0), schedule["total_steps"] - warmup
        return low + (1 - low) * (1 + math.cos(math.pi * t / period)) / 2 if t < period else low
    if kind == "step":
        return schedule["gamma"] ** (t // schedule["step_size"])
    return 1.0


class Optimizer:
    """torch.optim.SGD, Adam and AdamW, and LAMB, on a state of its own. params: name -> Num."""

    def __init__(self, spec, params):
        """params: name -> array, exact."""
        self.spec, self.config = spec, spec["optimizer"]
        self.params = {name: Num(p) for name, p in params.items()}
        self.state, self.applied = {}, 0

    def lr(self):
        return self.config["lr"] * schedule_factor(self.spec.get("schedule", {}), self.applied)

    def step(self, grads, dtype="f32"):
        """dtype: what the parameters are rounded to after each step (16-bit parameters without a master)."""
        lr = self.lr()
        self.applied += 1
        for name, p in self.params.items():
            group = group_of(self.spec, name)
            if group.get("frozen"):
                continue
            decay = group["weight_decay"] if group.get("override_weight_decay") else self.config.get("weight_decay", 0.0)
            update = {"sgd": self._sgd, "lamb": self._lamb}.get(self.config["type"], self._adam)
            g = grads[name] * Num.constant(1.0)  # the daemon scales the sum when it applies it
            self.params[name] = update(name, p, g, lr * group.get("lr_scale", 1.0), decay).stored_as(dtype)

    def _sgd(self, name, p, g, lr, decay):
        momentum, dampening = self.config.get("momentum", 0.0), self.config.get("dampening", 0.0)
        if decay:
            g = g + decay * p
        if not momentum:
            return p - lr * g
        b = g if name not in self.state else self.state[name] * momentum + g * (1 - dampening)
        self.state[name] = b
        return p - lr * (g + momentum * b if self.config.get("nesterov") else b)

    def _moments(self, name, g):
        beta1, beta2 = self.config["beta1"], self.config["beta2"]
        m, v = self.state.get(name, (Num(np.zeros_like(g.value)), Num(np.zeros_like(g.value))))
        m = m + (1 - beta1) * (g - m)
        v = beta2 * v + (1 - beta2) * g * g
        self.state[name] = m, v
        return m, v, v.sqrt() * (1 / math.sqrt(1 - beta2 ** self.applied)) + self.config["eps"]

    def _lamb(self, name, p, g, lr, decay):
        """You et al., algorithm 2, as apex.optimizers.FusedLAMB: not adapted without weight decay. The ratio is of f64 norms of
        f32 sums."""
        m, _, denominator = self._moments(name, g)
        direction = m * (1 / (1 - self.config["beta1"] ** self.applied)) / denominator + decay * p
        norms = [(float(np.linalg.norm(x.value)), float(np.linalg.norm(x.error))) for x in (p, direction)]
        if decay == 0 or not all(n for n, _ in norms):
            return p - lr * direction
        ratio = norms[0][0] / norms[1][0]
        spread = ratio * (norms[0][1] / norms[0][0] + norms[1][1] / (norms[1][0] - norms[1][1]) + SUMSQ_U)
        return p - Num.rounded(lr * ratio, lr * spread) * direction

    def _adam(self, name, p, g, lr, decay):
        beta1 = self.config["beta1"]
        if decay and self.config["type"] == "adam":
            g = g + decay * p
        if decay and self.config["type"] == "adamw":
            p = p * (1 - lr * decay)
        m, _, denominator = self._moments(name, g)
        return p - lr / (1 - beta1 ** self.applied) * m / denominator
