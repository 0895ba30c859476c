# SPDX-License-Identifier: Apache-2.0
"""Random jobs: specification, tensors, parameters and what happens in each window, all from one seed.

Each feature draws from a stream of its own, so that one can be turned off (`off`) and the rest stays as it was: this is how a
failing seed is made smaller.
"""
import random

import numpy as np

from exact import Micro
from gacc_client import BF16, DTYPES, F16, as_dtype

SIZES = [1, 2, 31, 32, 33, 63, 64, 65, 127, 1000, 1023, 1024, 1025, 2047, 2049, 4096, 4099]
BIG_SIZES = [65536 + 3, 262144, 262144 - 1, 262144 + 33, 524288 + 1]
FAULTS = ("kill_engine", "kill_gaccd", "reattach", "abandon", "rejoin", "kill_both")
OPERATORS = ("update", "pause", "hold", "norms", "save", "save_inside", "flush")
FEATURES = FAULTS + OPERATORS + (
    "aliases", "many", "big", "16_bit", "groups", "init", "clip_norm", "clip_value", "f64", "schedule", "outlier", "loss_scale", "dynamic",
    "arrival", "short", "poison", "present", "inline", "mixed", "async", "zero_after", "repeat", "old", "wrong", "leave", "weights", "extremes", "garbage",
    "uneven", "steps", "restore", "other_spec", "ranks", "micros", "policy", "long", "die_at_start", "torn", "mailbox", "parts", "sharding")


class Draw:
    def __init__(self, seed, off=()):
        self.seed, self.off, self.streams = seed, set(off), {}

    def rng(self, feature):
        if feature not in self.streams:
            self.streams[feature] = random.Random(f"{self.seed} {feature}")
        return self.streams[feature]

    def chance(self, feature, p):
        return self.rng(feature).random() < p and feature not in self.off

    def pick(self, feature, *choices):
        return self.rng(feature).choice(choices)

    def arrays(self, *key):
        return np.random.default_rng([self.seed & 0xffffffff, *key])

    # -- tensors --

    def tensors(self):
        """As Rank takes them: (name, shape, dtype[, alias_of])."""
        rng, out = self.rng("tensors"), []
        count = 300 if self.chance("many", 0.04) else rng.choice([1, 1, 2, 3, 4, 5, 8, 11])
        dtypes = rng.choice([["f32"], ["bf16"], ["f16"], ["f32", "bf16"], ["f32", "f16", "bf16"]])
        dtypes = dtypes if self.chance("16_bit", 0.7) else ["f32"]
        for i in range(count):
            size = rng.choice(SIZES) if count < 100 else rng.choice([1, 2, 31, 33, 65])
            out.append((f"{rng.choice('abc')}{i}.{rng.choice(['weight', 'bias'])}", self.shape(rng, size), rng.choice(dtypes)))
        if self.chance("big", 0.06):
            out.append(("big", [self.pick("big size", *BIG_SIZES)], rng.choice(dtypes)))
        for i in range(self.pick("aliases", 1, 2) if self.chance("aliases", 0.2) else 0):
            target = self.rng("aliases").choice(out)
            out.append((f"tied{i}", target[1], target[2], target[0]))
        return out

    @staticmethod
    def shape(rng, size):
        if size == 1:
            return rng.choice([[], [1], [1, 1, 1]])
        for d in (3, 7, 2):
            if size % d == 0 and rng.random() < 0.5:
                return [d, size // d]
        return [size]

    def params(self, tensors):
        out = {}
        for i, t in enumerate(t for t in tensors if len(t) < 4):
            a = self.arrays(1, i)
            x = a.normal(size=t[1]) * self.pick("params", 1.0, 1.0, 0.01, 10.0, 0.0)
            out[t[0]] = as_dtype(np.asarray(x, np.float32), DTYPES[t[2]])
        return out

    # -- specification --

    def spec(self, tensors):
        rng = self.rng("spec")
        ranks = rng.choice([1, 1, 1, 2, 2, 2, 2, 3, 4, 8])
        micro_size = rng.choice([1, 2, 2, 3, 4, 5, 7])
        s = {"ranks": 1 if "ranks" in self.off else ranks, "micro_size": 1 if "micros" in self.off else micro_size,
             "slots_per_rank": rng.choice([0, 1, 2]), "max_micro_size": rng.choice([0, 9]), "reduction": rng.choice(["weighted_mean", "mean", "sum", "fixed_divisor"]),
             "grad_of": rng.choice(["mean", "mean", "sum"]), "optimizer": self.optimizer()}
        if self.chance("parts", 0.5) and s["ranks"] > 1:
            s["parts"] = self.pick("parts", *range(2, min(s["ranks"], 4) + 1))
        if s["reduction"] == "fixed_divisor":
            s["fixed_divisor"] = rng.choice([1.0, 4.0, 7.3, 0.25])
        if self.chance("16_bit", 0.5):
            s["gradient_dtype"] = self.pick("16_bit", "f32", "f16", "bf16")
        s["master"] = self.pick("16_bit", "f32", "f32", "none")
        if self.chance("f64", 0.15):
            s["accumulate_dtype"] = "f64"
        if self.chance("arrival", 0.15):
            s["ordering"] = "arrival"
        s["nonfinite"] = self.pick("poison", "skip_step", "reject_micro", "reject_micro", "error") if "poison" not in self.off else "skip_step"
        if self.chance("uneven", 0.3):
            s["uneven"] = self.pick("uneven", "drop", "drop", "error")
        if self.chance("steps", 0.2):
            s["steps"] = self.pick("steps", 2, 3, 5)
        self.moving(s)
        self.scales(s)
        self.rules(s, tensors)
        self.shard(s)
        return s

    def shard(self, s):
        """Whether each part has all of the optimizer's state, or a share."""
        for key in ("sharding", "shard_size"):
            s.pop(key, None)
        parts = s.get("parts", 1)
        if parts > 1 and s["optimizer"]["type"] not in ("client", "lamb") and self.chance("sharding", 0.6):
            s["sharding"] = self.pick("sharding", "full", "hybrid")
            if s["sharding"] == "hybrid":
                s["shard_size"] = self.pick("sharding", *(n for n in range(1, parts + 1) if parts % n == 0))

    def moving(self, s):
        """What Update and another specification may change, too."""
        if self.chance("clip_norm", 0.5):
            s["clip_norm"] = self.pick("clip_norm", 1e-3, 0.5, 1.0, 100.0, 1e6)
        if self.chance("clip_value", 0.3):
            s["clip_value"] = self.pick("clip_value", 1e-3, 0.1, 2.0)
        if self.chance("schedule", 0.5):
            s["schedule"] = self.pick(
                "schedule", {"type": "linear_warmup", "warmup_steps": 3, "warmup_start_factor": 0.25}, {"type": "cosine", "total_steps": 5},
                {"type": "cosine", "warmup_steps": 2, "total_steps": 6, "min_factor": 0.1},
                {"type": "step", "step_size": 2, "gamma": 0.3}, {"type": "step", "warmup_steps": 1, "step_size": 1, "gamma": 0.5})

    def scales(self, s):
        if self.chance("outlier", 0.2):
            s["outlier_skip"] = {"factor": self.pick("outlier", 1.01, 1.2, 2.0), "decay": self.pick("outlier", 0.0, 0.5, 0.9),
                                 "warmup_steps": self.pick("outlier", 1, 2)}
        if self.chance("loss_scale", 0.3):
            s["loss_scale"] = self.pick("loss_scale", 2.0, 1024.0, 65536.0, 3.0)
        if self.chance("dynamic", 0.3) and s["nonfinite"] != "error":
            s.setdefault("loss_scale", 16.0)
            s["dynamic_loss_scale"] = {"enabled": True, "growth_interval": self.pick("dynamic", 1, 2, 3), "hysteresis": self.pick("dynamic", 0, 2),
                                       "backoff_factor": self.pick("dynamic", 0.0, 0.25), "growth_factor": self.pick("dynamic", 0.0, 4.0),
                                       "min_scale": self.pick("dynamic", 0.0, 2.0), "max_scale": 65536.0}

    def rules(self, s, tensors):
        if self.chance("groups", 0.4):
            s["param_groups"] = self.groups(self.rng("groups"))
        if self.chance("init", 0.15):
            s["init"] = [{"pattern": "a*", "type": "zeros"}, {"pattern": "b*", "type": "ones"}, {"pattern": "*", "type": "uniform", "a": -1, "b": 2}]
            if s.get("master") != "none" and any(t[2] != "f32" for t in tensors):
                s["init"][-1] = {"pattern": "*", "type": "ones"}  # nobody sees what the master of a drawn value is
            s["seed"] = self.seed & 0xffff
        if self.chance("policy", 0.2) and s["optimizer"]["type"] != "client":
            s["checkpoint"] = {"every_steps": self.pick("policy", 0, 1, 2), "keep": self.pick("policy", 0, 1, 2),
                               "at_end": self.pick("policy", True, False)}

    @staticmethod
    def groups(rng):
        all_of_them = [{"pattern": "a*.bias", "lr_scale": 1.0, "weight_decay": 0.0, "override_weight_decay": True},
                       {"pattern": "b*", "frozen": True}, {"pattern": "*.weight", "lr_scale": 3.0},
                       {"pattern": "[ac]?.*", "lr_scale": 0.5, "weight_decay": 0.3, "override_weight_decay": True}, {"pattern": "big", "lr_scale": 0.1}]
        return rng.sample(all_of_them, rng.randint(1, 3))

    def optimizer(self):
        rng = self.rng("optimizer")
        kind = rng.choice(["client", "client", "sgd", "sgd", "sgd", "adam", "adamw", "lamb"])
        if kind == "client":
            return {"type": "client"}
        o = {"type": kind, "lr": rng.choice([1.0, 0.1, 0.01]), "weight_decay": rng.choice([0.0, 0.0, 0.1])}
        if kind == "sgd":
            o.update(rng.choice([{}, {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.3}, {"momentum": 0.8, "nesterov": True}]))
        else:
            o.update(beta1=rng.choice([0.9, 0.5, 0.0]), beta2=rng.choice([0.99, 0.5]), eps=rng.choice([1e-8, 1e-3]))
        return o

    def other(self, spec):
        """Another specification that may begin with a checkpoint of this one."""
        s = {k: v for k, v in spec.items() if k not in ("steps", "checkpoint", "init")}
        if not self.chance("other_spec", 0.6):
            return s
        changes = ["ranks", "micro_size", "hyper", "moving", "scales", "reduction", "groups", "rules", "ordering", "f64"]
        for what in self.rng("other_spec").sample(changes, 2):
            if what == "ranks":
                s["ranks"] = self.pick("other_spec", 1, 2, 3, 4)
            elif what == "micro_size":
                s["micro_size"] = self.pick("other_spec", 1, 2, 3, 5)
            elif what == "hyper":
                s["optimizer"] = {**s["optimizer"], "lr": self.pick("other_spec", 0.2, 0.02), "weight_decay": self.pick("other_spec", 0.0, 0.2)}
            elif what == "moving":
                for key in ("clip_norm", "clip_value", "schedule"):
                    s.pop(key, None)
                self.moving(s)
            elif what == "scales":
                for key in ("outlier_skip", "loss_scale", "dynamic_loss_scale"):
                    s.pop(key, None)
                self.scales(s)
            elif what == "reduction":
                s["reduction"] = self.pick("other_spec", "weighted_mean", "mean", "sum")
                s["grad_of"] = self.pick("other_spec", "mean", "sum")
            elif what == "groups":
                s["param_groups"] = self.groups(self.rng("other_spec"))
            elif what == "rules":
                s["uneven"] = self.pick("other_spec", "flush", "drop")
                s["nonfinite"] = self.pick("other_spec", "skip_step", "reject_micro")
            elif what == "f64":
                s["accumulate_dtype"] = "f64"
            else:
                s["ordering"] = "canonical"  # the other way, numbers of the carried sum would not be exact
        if s.get("dynamic_loss_scale"):
            s.setdefault("loss_scale", 16.0)
        if self.chance("parts", 0.4):
            s["parts"] = self.pick("parts", 1, 2, 3)
        s["parts"] = min(s.get("parts", 1), s["ranks"])
        self.shard(s)
        return s

    # -- a window --

    def micro(self, spec, model, rank, micro, poison):
        """One micro-batch; with numbers whose sums are exact where the order is not given."""
        exact, key = spec.get("ordering") == "arrival", (2, model.window, rank, micro)
        a = self.arrays(*key)
        grads = {}
        for i, (name, dtype) in enumerate(model.grad_dtype.items()):
            grads[name] = as_dtype(self.gradient(np.random.default_rng([*key, i, self.seed & 0xffff]), model.size[name], dtype, exact), dtype)
        if self.chance("present", 0.2):
            grads = {n: g for n, g in grads.items() if a.random() < 0.6}
        weight = 1.0
        if self.chance("weights", 0.8):
            weight = float(a.choice([0.5, 1.0, 2.0, 4.0])) if exact else float(a.choice([a.uniform(0.1, 9), a.integers(1, 4096), 1e-3, 0.1]))
        if not exact and self.chance("extremes", 0.02):
            weight = self.pick("extremes", 1e-30, 1e20, 1e30, 1e-40, 1e-300, 1e300)
        loss = float(a.integers(-3, 9)) if exact else float(a.normal())
        if poison and grads:
            self.spoil(a, grads)
        return Micro(rank, micro, weight, loss, grads, int(a.integers(1, 1 << 63)) if a.random() < 0.5 else 0)

    @staticmethod
    def gradient(a, size, dtype, exact):
        kind = "int" if exact else a.choice(["normal", "normal", "int", "sparse", "zero", "small", "large"])
        if kind == "int":
            return (a.integers(-8, 9, size) * 2.0 ** int(a.integers(-3, 3) if not exact else -2)).astype(np.float32)
        x = a.normal(size=size).astype(np.float32)
        if kind == "sparse":
            x[a.random(size) < 0.9] = 0
        elif kind == "zero":
            x[:] = 0
        elif kind == "small":
            x *= np.float32(1e-5 if dtype == F16 else 1e-12)
        elif kind == "large":
            x *= np.float32(300 if dtype in (F16, BF16) else 1e6)
        return x

    def spoil(self, a, grads):
        name = list(grads)[a.integers(len(grads))]
        bad = np.float32(self.pick("poison", np.nan, np.inf, -np.inf))
        g = grads[name] = grads[name].copy()
        g[a.integers(g.size)] = as_dtype(np.array([bad], np.float32), BF16)[0] if g.dtype == np.uint16 else bad

    def counts(self, spec, micro_size, here):
        """Micro-batches of each rank; all, or fewer."""
        full = [micro_size if h else 0 for h in here]
        p = 0.05 if spec.get("uneven") == "error" else 0.25
        if not self.chance("short", p):
            return full
        return [self.rng("short").randint(0, n) for n in full]
