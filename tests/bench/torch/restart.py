# SPDX-License-Identifier: Apache-2.0
"""C11: a trainer is killed in the middle of a window and started again. Prints, as JSON, how long its process took to its first line
of work and how long attaching took until it could go on; compare.py starts it.

    restart.py first|again MODEL
"""
import json
import os
import signal
import sys
import time

import torch

from gacc_lib import Client, Job
from rank import K, MODELS, Data, mlp, spec_of

started = float(os.environ["GACC_BENCH_STARTED"])  # CLOCK_MONOTONIC when the process was started
torch.set_num_threads(1)
model = mlp(MODELS[sys.argv[2]])
names, params = zip(*model.named_parameters())
data = Data(0)
for micro in range(2):  # what any trainer does before it can attach: its libraries and its first backward
    torch.nn.functional.cross_entropy(model(data(0, micro)[0]), data(0, micro)[1]).backward()
attach = time.monotonic()
job = Job(Client(os.environ["GACC_LIBRARY"], os.environ["GACC_ENDPOINT"]), spec_of("restart", 1), 0, 1, names, params)
ready = time.monotonic()
job.next()
first_micro = job.at.micro
pushed = 0
for _ in range(2 if sys.argv[1] == "first" else K - first_micro):
    job.next()
    for p, grad in zip(params, job.slot()):
        p.grad = grad
    torch.nn.functional.cross_entropy(model(data(0, job.at.micro)[0]), data(0, job.at.micro)[1]).backward()
    job.push(16, zero_after=True)
    pushed += 1
print(json.dumps({"start": attach - started, "attach": ready - attach, "micro": first_micro, "pushed": pushed}), flush=True)
if sys.argv[1] == "first":
    os.kill(os.getpid(), signal.SIGKILL)
job.wait()
job.close(True)
