# SPDX-License-Identifier: Apache-2.0
"""The model of linear.c in numpy: the same data, and gradients of the same bits, because they are made of integers."""
import numpy as np

FEATURES, SAMPLES, BLOCK, SCALE = 8, 256, 8, 65536
TENSORS = [("weight", [FEATURES]), ("bias", [1])]

_i, _j = np.arange(SAMPLES)[:, None], np.arange(FEATURES)[None, :]
X = (_i * (2 * _j + 3) + _i * _i * (_j + 1)) % 17 - 8
Y = X @ (np.arange(FEATURES) - 3) + np.arange(SAMPLES) * 5 % 7 - 3


def block_of(window, micro, micro_size, rank, ranks):
    """Which samples a micro-batch has: the same after any restart."""
    return ((window * micro_size + micro) * ranks + rank) % (SAMPLES // BLOCK)


def gradient(weight, bias, block):
    """Gradient of half the mean squared error over one block, as [weight, bias] in float32, and that error."""
    x, y = X[block * BLOCK:][:BLOCK], Y[block * BLOCK:][:BLOCK]
    fixed = lambda v: np.rint(v.astype(np.float64) * SCALE).astype(np.int64)
    error = x @ fixed(weight) + fixed(bias) - y * SCALE
    grads = [error @ x / (SCALE * BLOCK), np.array([error.sum() / (SCALE * BLOCK)])]
    return [g.astype(np.float32) for g in grads], float(error @ error) / 2 / BLOCK / SCALE / SCALE


def print_parameters(weight, bias):
    bits = np.concatenate([weight, bias]).view(np.uint32)
    print("parameters", "".join(f"{b:08x}" for b in bits), sep=" ", flush=True)
