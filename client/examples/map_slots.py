#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The trainer of linear.c through the protobuf API, with the node's shared memory: a push is some tens of bytes.

    gaccctl run -n 2 -f linear.yaml -- ./map_slots.py /usr/share/gacc/gacc.protoset

Differs from push_inline.py in one thing: the descriptors of the gradient buffers and of the parameters come over the attach
socket (attach_socket.py), and numpy works in that memory.
"""
import os
import sys

import numpy as np

import linear
from attach_socket import PARAMETERS, SLOT, map_session
from protoset import Service

F32 = 1

gacc = Service(sys.argv[1], "gacc.v1.GradientService")
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
attached = gacc.Attach(job=os.environ["GACC_JOB_ID"], rank=rank, world_size=ranks, pid=os.getpid(), nonce=os.urandom(16),
                       protocol_min=1, protocol_max=1, wants_shared_memory=True)
session = attached.session
layout = gacc.RegisterTensors(session=session, tensors=[{"name": name, "dtype": F32, "shape": shape}
                                                        for name, shape in linear.TENSORS])

memory, lifeline = map_session(gacc, attached)


def views(kind, offsets):
    """One numpy array per tensor, in the shared memory itself."""
    base, start = memory[kind, 0]
    return [np.frombuffer(base, np.float32, t.count, start + offset) for t, offset in zip(layout.layout, offsets)]


slot = views(SLOT, [t.slot_offset for t in layout.layout])
parameters = views(PARAMETERS, [t.param_offset for t in layout.layout])  # read-only

if layout.params_needed:  # the initial parameters go through the slot, in the layout of the parameters
    base, start = memory[SLOT, 0]
    base[start:start + layout.param_bytes] = bytes(layout.param_bytes)
    gacc.PutParameters(session=session, slot=0, offset=0, bytes=layout.param_bytes, last=True)

ready = gacc.WaitReady(session=session)
window, missing, micro_size = ready.window, list(ready.missing), ready.micro_size
done = False
while not done:
    for micro in missing:
        grads, loss = linear.gradient(*parameters, linear.block_of(window, micro, micro_size, rank, ranks))
        for view, grad in zip(slot, grads):
            view[:] = grad
        gacc.Push(session=session, window=window, micro=micro, slot=0, weight=linear.BLOCK, loss=loss)
    step = gacc.WaitStep(session=session, window=window)  # and the new parameters are in `parameters`
    window, micro_size, done = window + 1, step.micro_size, step.job_done
    missing = range(micro_size)
    if rank == 0:
        print(f"step {step.result.applied_step}   loss {step.result.mean_loss:.4f}", flush=True)

linear.print_parameters(*parameters)
gacc.Detach(session=session, done=True)
