#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch on a GPU with gacc in the place of the optimizer: gradients go to slots in host memory as backward makes them, the new parameters come back.

    gaccctl run -n 1 --micro-size 1 --steps 50 --set accumulate=none --set optimizer.type=adamw --set optimizer.lr=0.01 -- ./torch_offload.py gacc.protoset cuda

With `cpu` in place of `cuda` it runs without a GPU. Slots and parameters are pinned, so copies are queued in the current stream and the program goes on. A hook
copies each gradient to the slot and drops it. After backward() an event is recorded; a thread waits for it and pushes, while the next micro-batch is computed into
the other slot. backward() joins its streams with the current one; copy streams of your own must be joined before the event. Load data in workers that do
not inherit the GPU (multiprocessing_context="forkserver"). Gradients are f32 here. Needs grpcio, protobuf and torch.
"""
import concurrent.futures
import os
import sys
import warnings

import torch

import linear
from attach_socket import PARAMETERS, SLOT, map_session
from protoset import Service

F32 = 1
PORTABLE, MAPPED, READ_ONLY = 1, 2, 8  # cudaHostRegister
warnings.filterwarnings("ignore", message="The given buffer is not writable")  # the parameters are read-only: so they are

device = torch.device(sys.argv[2] if len(sys.argv) > 2 else "cuda")
if device.type == "cuda":
    torch.cuda.init()
    torch.cuda.set_device(device)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(linear.FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
names, params = zip(*model.named_parameters())
X, Y = (t.to(device) for t in (torch.tensor(linear.X, dtype=torch.float32), torch.tensor(linear.Y, dtype=torch.float32)[:, None]))

gacc = Service(sys.argv[1], "gacc.v1.GradientService")
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
attached = gacc.Attach(job=os.environ["GACC_JOB_ID"], rank=rank, world_size=ranks, pid=os.getpid(), nonce=os.urandom(16),
                       protocol_min=1, protocol_max=1, wants_shared_memory=True)
session = attached.session
layout = gacc.RegisterTensors(session=session, tensors=[{"name": n, "dtype": F32, "shape": p.shape} for n, p in zip(names, params)])
assert layout.slots == 2, "give the job slots_per_rank: 2"
memory, lifeline = map_session(gacc, attached, device=device.type == "cuda")


def pin(kind, index, flags):
    """The whole mapping. Parameters that cannot be pinned are copied all the same, but each copy waits."""
    buffer, start = memory[kind, index]
    data = torch.frombuffer(buffer, dtype=torch.uint8)
    result = int(torch.cuda.cudart().cudaHostRegister(data.data_ptr(), data.numel(), flags))
    if result and kind == SLOT:
        sys.exit(f"torch_offload: slot {index} cannot be pinned: CUDA error {result}")


def views(kind, index, offsets):
    buffer, start = memory[kind, index]
    return [torch.frombuffer(buffer, dtype=torch.float32, count=p.numel(), offset=start + offset).view(p.shape) for p, offset in zip(params, offsets)]


slots = [views(SLOT, i, [t.slot_offset for t in layout.layout]) for i in range(2)]
values = views(PARAMETERS, 0, [t.param_offset for t in layout.layout])
if layout.params_needed:  # this model's initial values, through a slot, in the layout of the parameters
    for value, p in zip(views(SLOT, 0, [t.param_offset for t in layout.layout]), params):
        value.copy_(p.detach())
    gacc.PutParameters(session=session, slot=0, offset=0, bytes=layout.param_bytes, last=True)
if device.type == "cuda":
    for i in range(2):
        pin(SLOT, i, PORTABLE | MAPPED)
    pin(PARAMETERS, 0, PORTABLE | MAPPED | READ_ONLY)
model.to(device)
current = 0  # the slot that backward() fills


def to_slot(t):
    """Called when a parameter's gradient is complete."""
    def hook(p):
        slots[current][t].copy_(p.grad, non_blocking=True)
        p.grad = None
    return hook


for t, p in enumerate(params):
    p.register_post_accumulate_grad_hook(to_slot(t))


def fetch_parameters():
    with torch.no_grad():
        for p, value in zip(params, values):
            p.copy_(value, non_blocking=True)


def push(window, micro, slot, loss, full):
    """In a thread: when all copies to the slot are done."""
    if full:
        full.synchronize()
    return gacc.Push(session=session, window=window, micro=micro, slot=slot, weight=linear.BLOCK, loss=loss.item())


pushes, pool = [None, None], concurrent.futures.ThreadPoolExecutor(1)  # one thread: pushes keep their order
ready = gacc.WaitReady(session=session)
window, missing, micro_size, done = ready.window, list(ready.missing), ready.micro_size, False
while not done:
    fetch_parameters()
    for micro in missing:
        if pushes[current]:
            pushes[current].result()
        block = linear.block_of(window, micro, micro_size, rank, ranks)
        rows = slice(block * linear.BLOCK, (block + 1) * linear.BLOCK)
        loss = torch.nn.functional.mse_loss(model(X[rows]), Y[rows])
        loss.backward()
        full = None
        if device.type == "cuda":
            full = torch.cuda.Event()
            full.record()
        pushes[current] = pool.submit(push, window, micro, current, loss.detach(), full)
        current = 1 - current
    for pushed in filter(None, pushes):
        pushed.result()
    step = gacc.WaitStep(session=session, window=window)
    window, micro_size, done = window + 1, step.micro_size, step.job_done
    missing = range(micro_size)
    if rank == 0 and step.result.applied_step % 10 == 0:
        print(f"step {step.result.applied_step}   loss {step.result.mean_loss:.4f}   gradient norm {step.result.grad_norm:.4f}", flush=True)

print("parameters", torch.cat([v.flatten() for v in values]).double().norm().item())
gacc.Detach(session=session, done=True)
