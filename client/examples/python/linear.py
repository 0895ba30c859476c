#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The trainer of linear.c with the Python package gacc: the same data, and at the end the same bits.

    gaccctl run -n 2 -f client/examples/linear.yaml -- client/examples/python/linear.py

Without a launcher it is the only rank of a job of its own: GACC_ENDPOINT=/tmp/gacc/gaccd.sock client/examples/python/linear.py
Needs the package (pip install client/python) and numpy.
"""
import os
import pathlib
import sys

import numpy as np

import gacc

sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])
import linear  # noqa: E402  client/examples/linear.py: the model, its data and its gradients

ALONE = {"name": "linear", "micro_size": 4, "steps": 40, "optimizer": {"type": "sgd", "lr": 0.01, "momentum": 0.5}}


def main():
    with gacc.attach(spec=None if "GACC_JOB_ID" in os.environ else ALONE) as session:
        session.register({name: ("f32", shape) for name, shape in linear.TENSORS})
        if session.params_needed:
            session.upload([np.zeros(shape, np.float32) for _, shape in linear.TENSORS])
        parameters = session.parameters  # read-only, in the shared memory itself
        while not session.done:
            for micro in session.missing:
                block = linear.block_of(session.window, micro, session.micro_size, session.rank, session.world_size)
                gradients, loss = linear.gradient(parameters["weight"], parameters["bias"], block)
                session.fill(gradients)
                session.push(weight=linear.BLOCK, loss=loss)
            step = session.wait()  # and the new parameters are in `parameters`
            if session.rank == 0:
                print(f"step {step.applied_step}   loss {step.mean_loss:.4f}", flush=True)
        linear.print_parameters(parameters["weight"], parameters["bias"])


main()
