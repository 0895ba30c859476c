#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""train.py with the Python package: one rank of a Workload as a process of its own, which can be told to die at a certain point.

    train_package.py ENDPOINT JOB RANK WORKLOAD-JSON OUT.npz [--at WHAT:WINDOW:MICRO] [--pause S] [--asynchronous]

WHAT: fill   dies by SIGKILL between filling the slot and pushing it
      kill   dies by SIGKILL right after the push was answered
Prints where it resumes, as JSON; null if the job has ended already. Then "push WINDOW MICRO" before each push, with --pause after so many seconds. Saves the
parameters when the job is done. Arrays of slots and parameters are asked for once, so that they must outlive restarts of gaccd.
"""
import argparse
import json
import os
import pathlib
import signal
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from python_package import gacc  # noqa: E402
from workload import Workload  # noqa: E402


def push(session, slots, work, params, micro, at, asynchronous):
    here = [str(session.window), str(micro)]
    views = slots[micro % len(slots)]
    for name, gradient in work.gradients(params, session.window, micro, session.rank).items():
        views[name][:] = gradient
    if at == ["fill", *here]:
        os.kill(os.getpid(), signal.SIGKILL)
    print("push", *here, flush=True)
    pushed = session.push(micro=micro, slot=micro % len(slots), asynchronous=asynchronous, **work.header(session.window, micro, session.rank))
    assert pushed.counted or (asynchronous and pushed.result == "sent"), pushed
    if at == ["kill", *here]:
        os.kill(os.getpid(), signal.SIGKILL)


def main():
    a = argparse.ArgumentParser()
    for name in ("endpoint", "job", "rank", "workload", "out"):
        a.add_argument(name)
    a.add_argument("--at", default="")
    a.add_argument("--pause", type=float, default=0.0)
    a.add_argument("--asynchronous", action="store_true")
    a = a.parse_args()
    work, at = Workload.from_json(a.workload), a.at.split(":")
    try:
        session = gacc.attach(a.job, int(a.rank), work.ranks, endpoint=a.endpoint)
        session.register({name: ("f32", shape) for name, shape in work.tensors})
        session.upload(work.initial())
        print(json.dumps({"window": session.window, "missing": session.missing, "pid": os.getpid()}), flush=True)
    except gacc.GaccError as e:
        if e.reason != "JOB_ENDED":
            raise
        print("null", flush=True)
        return
    slots, params = [session.slot(i) for i in range(session.slots)], session.parameters
    while not session.done:
        for micro in session.missing:
            time.sleep(a.pause)
            push(session, slots, work, params, micro, at, a.asynchronous)
        session.wait()
    np.savez(a.out + ".tmp.npz", **params)
    os.rename(a.out + ".tmp.npz", a.out)
    session.detach()


if __name__ == "__main__":
    main()
