#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The trainer of linear.c through the protobuf API alone: gradients and parameters travel inside gRPC messages.

    gaccctl run -n 2 -f linear.yaml -- ./push_inline.py /usr/share/gacc/gacc.protoset

This is the way for trainers that cannot map the node's memory: another machine, another language, a sandbox. Where memory can
be mapped, map_slots.py is faster. The order of calls is that of proto/gacc/v1/gradient.proto.
"""
import os
import sys

import numpy as np

import linear
from protoset import Service

CHUNK = 1 << 20  # bytes in one message of a stream; 4 MiB at most

gacc = Service(sys.argv[1], "gacc.v1.GradientService")
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

# Who we are. The nonce makes a repeated Attach the same session; a new one would fence the old session.
attached = gacc.Attach(job=os.environ["GACC_JOB_ID"], rank=rank, world_size=ranks, pid=os.getpid(), nonce=os.urandom(16),
                       protocol_min=1, protocol_max=1, wants_shared_memory=False)
session = attached.session

# What we train. The answer tells where each tensor lies in a gradient buffer and in the parameters.
F32 = 1
layout = gacc.RegisterTensors(session=session, tensors=[{"name": name, "dtype": F32, "shape": shape}
                                                        for name, shape in linear.TENSORS])


def chunks(data):
    return ((at, data[at:at + CHUNK]) for at in range(0, len(data), CHUNK))


def put_parameters(data):
    message = gacc.message("PutParametersInlineRequest")
    gacc.PutParametersInline(message(session=session if at == 0 else None, offset=at, data=piece,
                                     last=at + len(piece) == len(data)) for at, piece in chunks(data))


def get_parameters():
    data = b"".join(chunk.data for chunk in gacc.GetParameters(session=session))
    return [np.frombuffer(data, np.float32, t.count, t.param_offset) for t in layout.layout]


def push(window, micro, grads, loss):
    """Counted exactly once when it returns. After a lost reply the same push may be sent again."""
    data = bytearray(layout.slot_bytes)
    for t, grad in zip(layout.layout, grads):
        data[t.slot_offset:t.slot_offset + grad.nbytes] = grad.tobytes()
    header = gacc.message("PushRequest")(session=session, window=window, micro=micro, weight=linear.BLOCK, loss=loss)
    message = gacc.message("PushInlineRequest")
    return gacc.PushInline(message(header=header if at == 0 else None, offset=at, data=bytes(piece))
                           for at, piece in chunks(data))


if layout.params_needed:
    put_parameters(bytes(layout.param_bytes))  # zeros; the first rank that gives them wins

# Where to resume: after a restart, `missing` has exactly the micro-batches that were not counted.
ready = gacc.WaitReady(session=session)
window, missing, micro_size = ready.window, list(ready.missing), ready.micro_size
parameters = get_parameters()
done = False
while not done:
    for micro in missing:
        grads, loss = linear.gradient(*parameters, linear.block_of(window, micro, micro_size, rank, ranks))
        push(window, micro, grads, loss)
    step = gacc.WaitStep(session=session, window=window)
    parameters = get_parameters()
    window, micro_size, done = window + 1, step.micro_size, step.job_done
    missing = range(micro_size)
    if rank == 0:
        print(f"step {step.result.applied_step}   loss {step.result.mean_loss:.4f}", flush=True)

linear.print_parameters(*parameters)
gacc.Detach(session=session, done=True)
