#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The trainer of linear.c with the node's shared memory and a mailbox: its pushes and waits are no calls at all.

    gaccctl run -n 2 -f linear.yaml -- ./push_mailbox.py /usr/share/gacc/gacc.protoset

Differs from map_slots.py in one thing: with its memory the session gets a mailbox (mailbox.py), through which the engine takes
pushes. What is not accepted there, and all that follows when there is none, goes by RPC as in map_slots.py, which also says why.
"""
import os
import sys

import numpy as np

import linear
from attach_socket import ANSWER, MAILBOX, PARAMETERS, SLOT, SUBMIT, map_session
from mailbox import Mailbox
from protoset import Service

F32 = 1
PATIENCE_S = 60  # then RPC, which can say what is late

gacc = Service(sys.argv[1], "gacc.v1.GradientService")
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
attached = gacc.Attach(job=os.environ["GACC_JOB_ID"], rank=rank, world_size=ranks, pid=os.getpid(), nonce=os.urandom(16),
                       protocol_min=1, protocol_max=1, wants_shared_memory=True)
session = attached.session
layout = gacc.RegisterTensors(session=session, tensors=[{"name": name, "dtype": F32, "shape": shape}
                                                        for name, shape in linear.TENSORS])


def open_mailbox(bells, lifeline):
    """None: an older gaccd, or it could not make one."""
    if len(bells) < 3:
        return None
    box = Mailbox(bells[MAILBOX], bells[SUBMIT], bells[ANSWER], lifeline)
    if (box.job, box.rank, box.sgen) != (attached.job_id, rank, attached.generation):
        raise ValueError("the mailbox of another session")
    return box


bells = {} if os.environ.get("GACC_MAILBOX") != "0" else None
memory, lifeline = map_session(gacc, attached, bells)
box = open_mailbox(bells, lifeline) if bells else None
by_mailbox = by_rpc = 0


def views(kind, offsets):
    """One numpy array per tensor, in the shared memory itself."""
    base, start = memory[kind, 0]
    return [np.frombuffer(base, np.float32, t.count, start + offset) for t, offset in zip(layout.layout, offsets)]


def push(window, micro, loss):
    """Slot 0. Counted exactly once when it returns, whichever way it went."""
    global by_mailbox, by_rpc
    answer = box and box.push(window, micro, 0, linear.BLOCK, loss, PATIENCE_S)
    if answer and answer.status == 0:
        by_mailbox += 1
        return
    gacc.Push(session=session, window=window, micro=micro, slot=0, weight=linear.BLOCK, loss=loss)
    by_rpc += 1


def wait_step(window):
    """Until the new parameters are in `parameters`: (steps applied, mean loss, micro_size of the next window, was it the last)."""
    step = box and box.wait_step(window, PATIENCE_S)
    if step:
        return step.applied_step, step.mean_loss, step.next_micro_size, step.final
    told = gacc.WaitStep(session=session, window=window)
    return told.result.applied_step, told.result.mean_loss, told.micro_size, told.job_done


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
        push(window, micro, loss)
    applied_step, mean_loss, micro_size, done = wait_step(window)
    window, missing = window + 1, range(micro_size)
    if rank == 0:
        print(f"step {applied_step}   loss {mean_loss:.4f}", flush=True)

linear.print_parameters(*parameters)
print(f"rank {rank}: {by_mailbox} pushes through the mailbox, {by_rpc} by RPC", file=sys.stderr, flush=True)
gacc.Detach(session=session, done=True)
