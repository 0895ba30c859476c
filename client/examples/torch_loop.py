#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch with gacc in the place of the optimizer, through the protobuf API and the node's shared memory.

    gaccctl run -n 2 --micro-size 4 --steps 50 --set optimizer.type=adamw --set optimizer.lr=0.01 -- ./torch_loop.py gacc.protoset

The gradients are views of the slot, the parameters views of the daemon's: nothing is copied. backward() adds into .grad, so the
slot must be zero when it begins: zero_after lets the daemon zero it in the pass that adds it. No optimizer, no zero_grad (it would
drop the views), no division of the loss by the number of micro-batches. Needs grpcio, protobuf and torch.
"""
import os
import sys
import warnings

import torch

import linear
from attach_socket import PARAMETERS, SLOT, map_session
from protoset import Service

F32 = 1
warnings.filterwarnings("ignore", message="The given buffer is not writable")  # the parameters are read-only: so they are

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(linear.FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
names, params = zip(*model.named_parameters())
X, Y = torch.tensor(linear.X, dtype=torch.float32), torch.tensor(linear.Y, dtype=torch.float32)[:, None]

gacc = Service(sys.argv[1], "gacc.v1.GradientService")
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
attached = gacc.Attach(job=os.environ["GACC_JOB_ID"], rank=rank, world_size=ranks, pid=os.getpid(), nonce=os.urandom(16),
                       protocol_min=1, protocol_max=1, wants_shared_memory=True)
session = attached.session
layout = gacc.RegisterTensors(session=session, tensors=[{"name": n, "dtype": F32, "shape": p.shape} for n, p in zip(names, params)])
memory, lifeline = map_session(gacc, attached)


def views(kind, offsets):
    buffer, start = memory[kind, 0]
    return [torch.frombuffer(buffer, dtype=torch.float32, count=p.numel(), offset=start + offset).view_as(p)
            for p, offset in zip(params, offsets)]


if layout.params_needed:  # this model's initial values, through the slot, in the layout of the parameters
    for value, p in zip(views(SLOT, [t.param_offset for t in layout.layout]), params):
        value.copy_(p.detach())
    gacc.PutParameters(session=session, slot=0, offset=0, bytes=layout.param_bytes, last=True)
for p, value, grad in zip(params, views(PARAMETERS, [t.param_offset for t in layout.layout]),
                          views(SLOT, [t.slot_offset for t in layout.layout])):
    p.data, p.grad = value, grad.zero_()  # the slot may hold what a predecessor left

ready = gacc.WaitReady(session=session)
window, missing, micro_size, done = ready.window, list(ready.missing), ready.micro_size, False
while not done:
    for micro in missing:
        block = linear.block_of(window, micro, micro_size, rank, ranks)
        rows = slice(block * linear.BLOCK, (block + 1) * linear.BLOCK)
        loss = torch.nn.functional.mse_loss(model(X[rows]), Y[rows])
        loss.backward()
        gacc.Push(session=session, window=window, micro=micro, slot=0, weight=linear.BLOCK, loss=loss.item(), zero_after=True)
    step = gacc.WaitStep(session=session, window=window)
    window, micro_size, done = window + 1, step.micro_size, step.job_done
    missing = range(micro_size)
    if rank == 0 and step.result.applied_step % 10 == 0:
        print(f"step {step.result.applied_step}   loss {step.result.mean_loss:.4f}   gradient norm {step.result.grad_norm:.4f}", flush=True)

print("parameters", torch.cat([p.detach().flatten() for p in params]).double().norm().item())
gacc.Detach(session=session, done=True)
