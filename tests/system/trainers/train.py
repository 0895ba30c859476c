#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of a Workload as a process of its own, which can be told to die or to stop at a certain point.

    train.py ENDPOINT JOB RANK WORKLOAD-JSON OUT.npz [--at WHAT:WINDOW:MICRO]

WHAT: fill   dies by SIGKILL between filling the slot and pushing it
      sent   stops by SIGSTOP when the engine has counted the push, without having looked at the reply
      kill   dies by SIGKILL right after the push was answered
Prints where it resumes, as JSON; null if the job has ended already. Saves the parameters when the job is done.
"""
import argparse
import json
import os
import pathlib
import signal
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import GaccError, Rank  # noqa: E402
from workload import Workload, train  # noqa: E402


def push_and_stop(trainer, request):
    """In canonical order this many are counted when this one is."""
    count = request.micro * trainer.ranks + trainer.rank + 1
    sent = (trainer.pool.submit(trainer.gacc.Push, request) if trainer.box else
            trainer.gacc.Push.stub.future(request, timeout=60, wait_for_ready=True))
    while trainer.status().counted < count:
        pass
    os.kill(os.getpid(), signal.SIGSTOP)
    return sent  # a call that nobody holds is cancelled


def push(trainer, work, params, micro, at):
    here = [str(trainer.window), str(micro)]
    trainer.fill(work.gradients(params, trainer.window, micro, trainer.rank))
    header = work.header(trainer.window, micro, trainer.rank)
    if at == ["fill", *here]:
        os.kill(os.getpid(), signal.SIGKILL)
    if at == ["sent", *here]:
        push_and_stop(trainer, trainer.push_request(micro=micro, **header))
    trainer.push(micro=micro, **header)
    if at == ["kill", *here]:
        os.kill(os.getpid(), signal.SIGKILL)


def main():
    a = argparse.ArgumentParser()
    for name in ("endpoint", "job", "rank", "workload", "out"):
        a.add_argument(name)
    a.add_argument("--at", default="")
    a = a.parse_args()
    work, at = Workload.from_json(a.workload), a.at.split(":")
    trainer = Rank(a.endpoint, int(a.job), int(a.rank), work.tensors, attach=False)
    try:
        trainer.attach(work.ranks)
        ready = trainer.start(work.initial())
    except GaccError as e:
        if e.reason != "JOB_ENDED":
            raise
        print("null", flush=True)
        return
    print(json.dumps({"window": ready.window, "missing": list(ready.missing), "pid": os.getpid()}), flush=True)
    params = train(trainer, work, lambda params, micro: push(trainer, work, params, micro, at))
    np.savez(a.out + ".tmp.npz", **params)
    os.rename(a.out + ".tmp.npz", a.out)
    trainer.detach()
    trainer.close()


if __name__ == "__main__":
    main()
