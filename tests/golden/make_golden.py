# SPDX-License-Identifier: Apache-2.0
"""Writes golden.bin: what PyTorch computes, for tests/unit/math/test_golden.c.

    python3 tests/golden/make_golden.py        # PyTorch 2.13; the output is committed

The file is "GOLDEN01" and then records, little-endian: u32 length of the name, the name, u32 bytes per element (2: the bits
of 16-bit floats, 4: f32, 8: f64), u64 number of elements, the elements.
"""
import math
import pathlib
import struct
import unittest.mock

import numpy as np
import torch

N = 67       # elements of a case: not a multiple of any vector
HALF = 32    # the second parameter group starts here
STEPS = 10
torch.set_num_threads(1)


class File:
    def __init__(self):
        self.parts = [b"GOLDEN01"]

    def add(self, name, array):
        array = np.ascontiguousarray(array)
        assert array.dtype in (np.float32, np.float64, np.uint16), array.dtype
        key = name.encode()
        self.parts.append(struct.pack("<I", len(key)) + key + struct.pack("<IQ", array.itemsize, array.size))
        self.parts.append(array.tobytes())

    def save(self, path):
        path.write_bytes(b"".join(self.parts))


def bits16(t):
    return t.detach().view(torch.int16).numpy().view(np.uint16).copy()


SGD, ADAM, ADAMW, LAMB = 2, 3, 4, 5  # enum optim_type
F32, F16, BF16 = 1, 3, 4    # enum dtype
NONE = 0

DEFAULTS = dict(type=SGD, lr=0.1, momentum=0, dampening=0, nesterov=0, weight_decay=0, beta1=0.9, beta2=0.999, eps=1e-8,
                clip_norm=0, clip_value=0, micro=1, grad=F32, p16=NONE, master=1, lr_scale=1, group_decay=0)
CASES = {
    "sgd": dict(),
    "sgd_decay": dict(weight_decay=0.05),
    "momentum": dict(momentum=0.9, weight_decay=0.01),
    "dampening": dict(momentum=0.8, dampening=0.3),
    "nesterov": dict(momentum=0.9, nesterov=1, weight_decay=0.01),
    "adam": dict(type=ADAM, lr=0.01),
    "adam_decay": dict(type=ADAM, lr=0.003, weight_decay=0.1, beta1=0.8, beta2=0.95, eps=1e-6),
    "adamw": dict(type=ADAMW, lr=0.01, weight_decay=0.01),
    "adamw_slow": dict(type=ADAMW, lr=3e-4, weight_decay=0.1, beta1=0.95, beta2=0.99),
    "groups": dict(type=ADAMW, lr=0.01, weight_decay=0.1, lr_scale=0.1, group_decay=0.001),
    "clip_norm": dict(momentum=0.9, clip_norm=1.0),
    "clip_norm_groups": dict(type=ADAM, clip_norm=0.5, lr=0.01, lr_scale=3, group_decay=0.2),
    "clip_value": dict(clip_value=0.5, weight_decay=0.01),
    "micro": dict(type=ADAMW, lr=0.01, micro=3, clip_norm=1.0),
    "micro_bf16": dict(momentum=0.9, micro=3, grad=BF16),
    "micro_f16": dict(type=ADAM, lr=0.01, micro=2, grad=F16),
    "master_bf16": dict(type=ADAMW, lr=0.01, weight_decay=0.01, grad=BF16, p16=BF16),
    "master_f16": dict(momentum=0.9, grad=F16, p16=F16),
    "no_master_bf16": dict(type=ADAMW, lr=0.05, grad=BF16, p16=BF16, master=0),
    "no_master_sgd_f16": dict(momentum=0.9, grad=F16, p16=F16, master=0),
    "schedule": dict(type=ADAMW, lr=0.02, schedule=1),
    "lamb": dict(type=LAMB, lr=0.01, weight_decay=0.01, eps=1e-6),
    "lamb_groups": dict(type=LAMB, lr=0.05, weight_decay=0.1, eps=1e-6, lr_scale=0.5, group_decay=0, clip_norm=1.0),
    "lamb_master_bf16": dict(type=LAMB, lr=0.02, weight_decay=0.05, beta1=0.8, beta2=0.95, eps=1e-6, grad=BF16, p16=BF16, micro=2),
}
TORCH_16 = {F16: torch.float16, BF16: torch.bfloat16}


class Lamb(torch.optim.Optimizer):
    """apex.optimizers.FusedLAMB with its defaults, without its own clipping, in f64: You et al., arXiv 1904.00962v5, algorithm 2, phi(x) =
    x, with Adam's bias correction; tensors without weight decay are not adapted."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), decay = group["betas"], group["weight_decay"]
            for p in group["params"]:
                s = self.state[p]
                if not s:
                    s.update(t=0, x=p.double(), exp_avg=torch.zeros_like(p).double(), exp_avg_sq=torch.zeros_like(p).double())
                s["t"] += 1
                g = p.grad.double()
                s["exp_avg"] = beta1 * s["exp_avg"] + (1 - beta1) * g
                s["exp_avg_sq"] = beta2 * s["exp_avg_sq"] + (1 - beta2) * g * g
                direction = s["exp_avg"] / (1 - beta1 ** s["t"]) / (
                    (s["exp_avg_sq"] / (1 - beta2 ** s["t"])).sqrt() + group["eps"]) + decay * s["x"]
                a, b = s["x"].norm().item(), direction.norm().item()
                trust = a / b if decay and a and b else 1.0
                s["x"] = s["x"] - group["lr"] * trust * direction
                p.copy_(s["x"])


def make_optimizer(c, params):
    groups = [{"params": [params[0]]},
              {"params": [params[1]], "lr": c["lr"] * c["lr_scale"], "weight_decay": c["group_decay"]}]
    if c["type"] == SGD:
        return torch.optim.SGD(groups, lr=c["lr"], momentum=c["momentum"], dampening=c["dampening"],
                               weight_decay=c["weight_decay"], nesterov=bool(c["nesterov"]), foreach=False)
    if c["type"] == LAMB:
        return Lamb(groups, dict(lr=c["lr"], betas=(c["beta1"], c["beta2"]), eps=c["eps"], weight_decay=c["weight_decay"]))
    cls = torch.optim.Adam if c["type"] == ADAM else torch.optim.AdamW
    return cls(groups, lr=c["lr"], betas=(c["beta1"], c["beta2"]), eps=c["eps"], weight_decay=c["weight_decay"],
               foreach=False)


def draw_gradients(c, gen):
    """One step's micro-batch gradients as pushed (f32 or 16-bit) and their weights."""
    weights = [1.0] if c["micro"] == 1 else [float(1 + torch.randint(0, 9, (1,), generator=gen)) / 2 for _ in range(c["micro"])]
    grads = [torch.randn(N, generator=gen) * 0.7 for _ in weights]
    if c["grad"] != F32:
        grads = [g.to(TORCH_16[c["grad"]]) for g in grads]
    return grads, weights


def state_of(optimizer, params, key):
    rows = [optimizer.state[p].get(key) for p in params]
    return None if rows[0] is None else torch.cat(rows).float().numpy().copy()


def run_case(out, name, overrides, seed):
    c = {**DEFAULTS, **overrides}
    if "group_decay" not in overrides:
        c["group_decay"] = c["weight_decay"]
    gen = torch.Generator().manual_seed(seed)
    start = torch.randn(N, generator=gen)
    if c["p16"]:
        start = start.to(TORCH_16[c["p16"]]).float()
    params = [torch.nn.Parameter(start[:HALF].clone()), torch.nn.Parameter(start[HALF:].clone())]
    optimizer = make_optimizer(c, params)
    scheduler = None
    if c.get("schedule"):
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=6)
    trace, trace16, pushed, weights, lrs = [], [], [], [], []
    for _ in range(STEPS):
        grads, w = draw_gradients(c, gen)
        mean = sum(wi * g.float() for wi, g in zip(w, grads)) / sum(w)
        params[0].grad, params[1].grad = mean[:HALF].clone(), mean[HALF:].clone()
        if c["clip_norm"]:
            torch.nn.utils.clip_grad_norm_(params, c["clip_norm"])
        if c["clip_value"]:
            torch.nn.utils.clip_grad_value_(params, c["clip_value"])
        lrs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if scheduler:
            scheduler.step()
        if not c["master"]:
            for p in params:
                p.data = p.data.to(TORCH_16[c["p16"]]).float()
        whole = torch.cat([p.detach() for p in params])
        trace.append(whole.numpy().copy())
        if c["p16"]:
            trace16.append(bits16(whole.to(TORCH_16[c["p16"]])))
        pushed += [bits16(g) if c["grad"] != F32 else g.numpy() for g in grads]
        weights += w
    config = [c[k] for k in DEFAULTS]
    out.add(f"{name}/config", np.array(config, np.float64))
    out.add(f"{name}/start", start.numpy())
    out.add(f"{name}/gradients", np.concatenate(pushed))
    out.add(f"{name}/weights", np.array(weights, np.float64))
    out.add(f"{name}/lr", np.array(lrs, np.float64))
    out.add(f"{name}/params", np.concatenate(trace))
    if c["p16"]:
        out.add(f"{name}/params16", np.concatenate(trace16))
    for key, label in (("momentum_buffer", "m"), ("exp_avg", "m"), ("exp_avg_sq", "v")):
        state = state_of(optimizer, params, key)
        if state is not None:
            out.add(f"{name}/{label}", state)


def schedule_factors(make, steps):
    """Learning rate over base rate before each of `steps` steps."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    factors = []
    for _ in range(steps):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return np.array(factors, np.float64)


def after_warm_up(optimizer, start, warmup, then):
    s = torch.optim.lr_scheduler
    return s.SequentialLR(optimizer, [s.LinearLR(optimizer, start_factor=start, total_iters=warmup), then], [warmup])


def schedules(out):
    s = torch.optim.lr_scheduler
    out.add("schedule/warmup", schedule_factors(lambda o: s.LinearLR(o, start_factor=0.1, total_iters=7), 20))
    out.add("schedule/cosine", schedule_factors(lambda o: s.CosineAnnealingLR(o, T_max=30, eta_min=0.05), 31))
    out.add("schedule/step", schedule_factors(lambda o: s.StepLR(o, step_size=4, gamma=0.3), 20))
    out.add("schedule/warmup_cosine", schedule_factors(
        lambda o: after_warm_up(o, 0.2, 5, s.CosineAnnealingLR(o, T_max=25, eta_min=0.1)), 31))
    out.add("schedule/warmup_step", schedule_factors(
        lambda o: after_warm_up(o, 0.5, 3, s.StepLR(o, step_size=5, gamma=0.5)), 20))


def initial_values(out):
    """The bounds and deviations that torch.nn.init passes to the generator, for one shape per row."""
    rows = []

    def record(_, a, b, **__):
        rows[-1] += [a, b]

    for shape in ((50, 300), (7, 3), (16, 8, 3, 5), (4, 6, 9)):
        t = torch.empty(shape)
        rows.append([*(list(shape) + [0] * (4 - len(shape)))])
        rows[-1] += list(torch.nn.init._calculate_fan_in_and_fan_out(t))
        with unittest.mock.patch.object(torch.Tensor, "uniform_", record), \
             unittest.mock.patch.object(torch.Tensor, "normal_", record):
            torch.nn.init.kaiming_uniform_(t, nonlinearity="relu")
            torch.nn.init.kaiming_uniform_(t, a=math.sqrt(5))
            torch.nn.init.kaiming_normal_(t, nonlinearity="relu")
            torch.nn.init.xavier_uniform_(t)
            torch.nn.init.xavier_normal_(t, gain=5 / 3)
    out.add("init", np.array(rows, np.float64))


def main():
    out = File()
    for seed, (name, overrides) in enumerate(CASES.items()):
        run_case(out, name, overrides, seed)
    schedules(out)
    initial_values(out)
    out.save(pathlib.Path(__file__).with_name("golden.bin"))


if __name__ == "__main__":
    main()
