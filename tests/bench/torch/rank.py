# SPDX-License-Identifier: Apache-2.0
"""One rank of the comparison with DDP, started by compare.py or nodes.py: runs blocks of steps of each variant in turn and reports their cost.

Every variant sees the same batches and the same initial parameters:
  bare         forward and backward of 4 micro-batches, nothing else
  ddp          DistributedDataParallel (gloo) as its users write it: no_sync, clip_grad_norm_, AdamW
  ddp_tuned    gradient_as_bucket_view, fused AdamW, foreach clipping
  gacc         libgacc, backward() adds into the slot, which the daemon zeroes as it reads it; two slots, pushed asynchronously
  gacc_copy    libgacc, two slots, a hook copies each gradient into the slot while it is in the cache
  gacc_direct  libgacc, two slots, the matrix product that is a weight's gradient has its output in the slot
  gacc_1slot, gacc_direct_1slot  the same with one slot, so that a rank waits for each of its pushes
  gacc_copy_both  gacc_copy, and the new parameters are copied out of the daemon's memory after each step, as the package does
  gacc_package  the Python package: gacc.torch.Optimizer as its users write it, with the job of gacc_copy
  gacc_package_view  the same with parameters="view"
  gacc_package_fused, gacc_package_both  these two with gacc.torch.fuse()
  bare_direct, ddp_direct, ddp_tuned_direct  the same without gacc: the same layers, their output in memory of their own, from which DDP takes it

The first steps of each are compared: parameters, norms of gradients and losses. Not the last ones: f32 itself goes astray on this data, as
Adam divides what is left of a gradient by its own size (docs/performance.md has figures).
"""
import argparse
import json
import os
import pathlib
import resource
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gacc_lib import Client, Job

MODELS = {"S": [784, 512, 512, 10], "M": [784, 2048, 2048, 2048, 10], "L": [784, 4096, 4096, 4096, 4096, 10]}
K, BATCH, LR, CLIP = 4, 16, 1e-4, 1.0
SPEC = ("metadata: {{name: {name}}}\nspec: {{micro_size: 4, clip_norm: 1.0, slots_per_rank: {slots}, batch: 16, "
        "optimizer: {{type: adamw, lr: 1.0e-4, weight_decay: 0.01}}{where}}}\n")


def spec_of(name, slots):
    """Of a job that has a part on each node that nodes.py names; without nodes.py, on the one node that there is."""
    nodes = os.environ.get("GACC_BENCH_NODES")
    return SPEC.format(name=name, slots=slots, where=f', parts: {len(nodes.split(","))}, nodes: "{nodes}"' if nodes else "")


def mlp(sizes):
    torch.manual_seed(1)
    layers = []
    for n, m in zip(sizes, sizes[1:]):
        layers += [torch.nn.Linear(n, m), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


class Data:
    """Batches that depend on (step, micro, rank) alone; made before anything is timed."""

    def __init__(self, rank):
        g = torch.Generator().manual_seed(1000 + rank)
        self.x = torch.rand(64, BATCH, 784, generator=g)
        self.y = torch.randint(0, 10, (64, BATCH), generator=g)

    def __call__(self, step, micro):
        i = (step * K + micro) % 64
        return self.x[i], self.y[i]


class Variant:
    def __init__(self, data, sizes):
        self.data, self.model, self.steps = data, mlp(sizes), 0

    def loss(self, micro):
        x, y = self.data(self.steps, micro)
        self.last_loss = torch.nn.functional.cross_entropy(self.model(x), y)
        return self.last_loss

    def close(self):
        pass


class Bare(Variant):
    """Trains nothing."""

    def step(self):
        for micro in range(K):
            (self.loss(micro) / K).backward()
        self.model.zero_grad(set_to_none=True)
        self.steps += 1


class Ddp(Variant):
    tuned = False

    def __init__(self, data, sizes):
        super().__init__(data, sizes)
        self.model = DistributedDataParallel(self.model, gradient_as_bucket_view=self.tuned)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR, weight_decay=0.01, **({"fused": True} if self.tuned else {}))

    def step(self):
        for micro in range(K - 1):
            with self.model.no_sync():
                (self.loss(micro) / K).backward()
        (self.loss(K - 1) / K).backward()
        self.norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP, **({"foreach": True} if self.tuned else {}))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not self.tuned)
        self.steps += 1


class DdpTuned(Ddp):
    tuned = True


class Gacc(Variant):
    copy, into_slot, slots, client = False, False, 2, None

    def __init__(self, data, sizes):
        super().__init__(data, sizes)
        names, self.params = zip(*self.model.named_parameters())
        spec = spec_of(f"{type(self).__name__.lower()}-{os.environ['GACC_BENCH_RUN']}", self.slots)
        Gacc.client = Gacc.client or Client(os.environ["GACC_LIBRARY"], os.environ["GACC_ENDPOINT"])
        if dist.get_rank():
            dist.barrier()  # rank 0 is where jobs are made: on the node that coordinates
        self.job = Job(Gacc.client, spec, dist.get_rank(), dist.get_world_size(), names, self.params,
                       attached=(lambda: None) if dist.get_rank() else dist.barrier)
        if self.copy:
            for t, p in enumerate(self.params):
                p.register_post_accumulate_grad_hook(lambda p, t=t: self.take(p, t))

    def take(self, p, t):
        self.slot[t].copy_(p.grad)
        p.grad = None

    def step(self):
        micro = 0
        while self.job.next():
            self.slot = self.job.slot()
            adds = not (self.copy or self.into_slot)
            if adds:
                for p, grad in zip(self.params, self.slot):
                    p.grad = grad
            self.loss(micro).backward()
            self.job.push(BATCH, zero_after=adds, asynchronous=self.slots > 1)
            micro += 1
        self.norm = self.job.wait().grad_norm
        self.steps += 1

    def close(self):
        self.job.close(True)


class GaccCopy(Gacc):
    copy = True


class GaccCopyBoth(GaccCopy):
    def __init__(self, data, sizes):
        super().__init__(data, sizes)
        self.daemons = [p.data for p in self.params]
        for p in self.params:
            p.data = p.data.clone()

    def step(self):
        super().step()
        with torch.no_grad():
            for p, new in zip(self.params, self.daemons):
                p.copy_(new)

    def close(self):
        self.daemons.clear()
        super().close()


class Gacc1slot(Gacc):
    slots = 1


class Linear(torch.autograd.Function):
    """torch.nn.functional.linear, but backward() writes the gradients of weight and bias into `grads`, tensors of their shapes: nothing is
    allocated, zeroed, added or copied. Megatron-LM's gradient_accumulation_fusion does the same with a kernel. With hand_on autograd gets
    them, too, to do with them what it does with any other gradient."""

    @staticmethod
    def forward(ctx, x, weight, bias, grads, hand_on):
        ctx.save_for_backward(x, weight)
        ctx.grads, ctx.hand_on = grads, hand_on
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        torch.mm(dy.t(), x, out=ctx.grads[0])
        torch.sum(dy, 0, out=ctx.grads[1])
        own = ctx.grads if ctx.hand_on else (None, None)
        return dy.mm(weight) if ctx.needs_input_grad[0] else None, *own, None, None


def write_gradients(model, grads, hand_on=False):
    """backward() will write the gradients of all linear layers into grads(), two tensors for each layer."""
    for i, layer in enumerate(m for m in model if isinstance(m, torch.nn.Linear)):
        layer.forward = lambda x, layer=layer, i=i: Linear.apply(x, layer.weight, layer.bias, grads()[2 * i:2 * i + 2], hand_on)


class BareDirect(Bare):
    def __init__(self, data, sizes):
        super().__init__(data, sizes)
        grads = [torch.zeros_like(p) for p in self.model.parameters()]
        write_gradients(self.model, lambda: grads)


class DdpDirect(Ddp):
    def __init__(self, data, sizes):
        super().__init__(data, sizes)
        grads = [torch.zeros_like(p) for p in self.model.parameters()]
        write_gradients(self.model.module, lambda: grads, hand_on=True)


class DdpTunedDirect(DdpDirect):
    tuned = True


class GaccDirect(Gacc):
    into_slot = True

    def __init__(self, data, sizes):
        super().__init__(data, sizes)
        write_gradients(self.model, lambda: self.slot)


class GaccDirect1slot(GaccDirect):
    slots = 1


class GaccPackage(Variant):
    """The loop of docs/python.md, section 6."""
    parameters, fused = "copy", False

    def __init__(self, data, sizes):
        super().__init__(data, sizes)
        import gacc.torch  # the other variants run without the package
        if self.fused:
            gacc.torch.fuse(self.model)
        self.optimizer = gacc.torch.Optimizer(self.model, "adamw", lr=LR, weight_decay=0.01, micro_size=K, clip_norm=CLIP, spec={"slots_per_rank": 2},
                                              parameters=self.parameters, job=f"gacc-package-{self.parameters}-{self.fused}-{os.environ['GACC_BENCH_RUN']}", rank=dist.get_rank(), world=dist.get_world_size())

    def step(self):
        for micro in range(K):
            self.loss(micro).backward()
            self.optimizer.step(weight=BATCH)
        assert self.optimizer.stepped, "the package's window is not the benchmark's step"
        self.norm = self.optimizer.last.grad_norm
        self.steps += 1

    def close(self):
        self.optimizer.close()


class GaccPackageView(GaccPackage):
    parameters = "view"


class GaccPackageFused(GaccPackage):
    fused = True


class GaccPackageBoth(GaccPackageView):
    fused = True


VARIANTS = {"bare": Bare, "bare_direct": BareDirect, "ddp": Ddp, "ddp_tuned": DdpTuned, "ddp_direct": DdpDirect,
            "ddp_tuned_direct": DdpTunedDirect, "gacc": Gacc, "gacc_1slot": Gacc1slot, "gacc_copy": GaccCopy, "gacc_direct": GaccDirect,
            "gacc_direct_1slot": GaccDirect1slot, "gacc_package": GaccPackage, "gacc_package_view": GaccPackageView, "gacc_package_fused": GaccPackageFused,
            "gacc_package_both": GaccPackageBoth, "gacc_copy_both": GaccCopyBoth}


def stat_of(pid):
    """Parent; CPU seconds."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[1]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def daemons():
    """gaccds and their engines."""
    known, found = set(map(int, os.environ["GACC_BENCH_DAEMON"].split(","))), []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            if known & {pid, stat_of(pid)[0]}:
                found.append(pid)
        except OSError:
            pass
    return found


def cpu():
    """Of this rank; rank 0 adds the daemons'. Seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    mine = usage.ru_utime + usage.ru_stime
    return mine + (sum(stat_of(pid)[1] for pid in daemons()) if dist.get_rank() == 0 else 0)


def pss(pid):
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def total(value):
    t = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(t)
    return t.item()


def block(variant, steps):
    """(wall, CPU of all processes) of one step, averaged over `steps`."""
    dist.barrier()
    cpu0, start = cpu(), time.monotonic()
    for _ in range(steps):
        variant.step()
    dist.barrier()
    wall = (time.monotonic() - start) / steps
    return wall, total(cpu() - cpu0) / steps


def parameters(v):
    return torch.cat([p.detach().flatten() for p in v.model.parameters()])


def first_steps(variants, steps):
    """Each variant's first steps, against the first one's that trains: how far apart the parameters are, as a fraction of the way
    that they have gone, the norms of the gradients, and the losses of each step's last micro-batch, on any rank. A scale that is wrong shows in the
    norms alone: Adam and clipping hide it."""
    start = parameters(next(v for v in variants.values() if isinstance(v, Bare)))
    trained = {name: v for name, v in variants.items() if not isinstance(v, Bare)}
    norms, losses = {name: [] for name in trained}, {name: [] for name in trained}
    for name, v in variants.items():
        for _ in range(steps):
            v.step()
            if name in trained:
                norms[name].append(float(v.norm))
                losses[name].append(v.last_loss.item())
    base = next(iter(trained))
    end = parameters(trained[base])
    way = (end - start).norm()
    apart = {"parameters": [((parameters(v) - end).norm() / way).item() for v in trained.values()],
             **{what: [abs(x / y - 1) for n in trained for x, y in zip(found[n], found[base])] for what, found in (("norms", norms), ("losses", losses))}}
    return {what: largest(max(values)) for what, values in apart.items()}


def largest(value):
    """Of all ranks'."""
    t = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return t.item()


def compare(a, variants):
    apart = first_steps(variants, a.first)  # also the warm-up: allocations, page faults, DDP's bucket rebuild
    rounds = {name: [] for name in variants}
    for _ in range(a.rounds):
        for name, v in variants.items():
            rounds[name].append(block(v, a.steps))
    return {"rounds": rounds, "apart": apart}


def memory(variants):
    """Bytes (PSS) of all processes, after a step of the one variant: all that it needs is there."""
    for v in variants.values():
        block(v, 1)
    dist.barrier()
    mine = pss(os.getpid()) + (sum(map(pss, daemons())) if dist.get_rank() == 0 else 0)
    return {"pss": total(mine)}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("what", choices=("compare", "memory"))
    p.add_argument("model", choices=MODELS)
    p.add_argument("variants")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--first", type=int, default=4)
    a = p.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = Data(dist.get_rank())
    variants = {name: VARIANTS[name](data, MODELS[a.model]) for name in a.variants.split(",")}
    result = compare(a, variants) if a.what == "compare" else memory(variants)
    dist.barrier()
    for v in variants.values():
        v.close()
    if dist.get_rank() == 0:
        json.dump(result, sys.stdout)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
