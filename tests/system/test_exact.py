# SPDX-License-Identifier: Apache-2.0
"""The definition of a sum over parts (exact.py), by numbers small enough to check by hand."""
import numpy as np
import pytest

from exact import Exact, Micro

F32_MIN = np.float32(2.0**-126)


def job(parts, dtype=None):
    spec = {"ranks": 4, "micro_size": 2, "parts": parts, "optimizer": {"type": "sgd", "lr": 1.0}, "reduction": "sum"}
    if dtype:
        spec["accumulate_dtype"] = dtype
    return Exact(spec, [("a", [1])])


def micros(values, weights=None):
    """values: (rank, micro) -> gradient."""
    return [Micro(r, m, (weights or {}).get((r, m), 1.0), 0.5, {"a": np.array([v], np.float32)}) for (r, m), v in values.items()]


def bits(x):
    return x.tobytes()


def test_parts_are_equal_blocks_of_ranks():
    of = [[m.rank for m in part] for part in job(3).by_part(micros({(r, 0): 1 for r in range(4)}))]
    assert of == [[0], [1], [2, 3]]


def test_the_order_is_by_part_and_within_a_part_by_micro_batch():
    big, one = np.float32(2.0**24), np.float32(1)
    m = micros({(0, 0): big, (1, 0): one, (2, 0): -big, (3, 0): one})
    # one part: ((big + 1) - big) + 1, and big + 1 is rounded to big
    assert job(1).sum(m)["a"][0] == 1
    # two: (big + 1) + (-big + 1), where -big + 1 is exact
    assert job(2).sum(m)["a"][0] == 1
    # four, in the order of the ranks
    assert job(4).sum(micros({(0, 0): big, (1, 0): -big, (2, 0): one, (3, 0): one}))["a"][0] == 2
    m = micros({(0, 0): one, (1, 0): -big, (0, 1): big, (1, 1): one})
    assert job(1).sum(m)["a"][0] == 2
    assert job(4).sum(m)["a"][0] == 1  # (1 + big) + (-big + 1): the first is rounded


def test_what_is_not_there_is_zero():
    assert bits(job(2).sum(micros({(0, 0): -0.0, (3, 1): -0.0}))["a"]) == bits(np.array([0.0], np.float32))
    assert job(4).sum(micros({(2, 0): 3.0}))["a"][0] == 3
    assert job(2).sum([])["a"][0] == 0


@pytest.mark.parametrize("parts,expected", [(1, 0.0), (2, 0.0)])
def test_subnormals_are_zero_in_f32(parts, expected):
    m = micros({(0, 0): F32_MIN * np.float32(1.5), (3, 0): -F32_MIN})  # the sum is half of the least
    assert job(parts).sum(m)["a"][0] == expected


def test_in_f64_they_are_not():
    m = micros({(0, 0): F32_MIN * np.float32(1.5), (3, 0): -F32_MIN})
    assert job(2, "f64").sum(m)["a"][0] == 2.0**-127


def test_weights_are_summed_like_gradients():
    w = {(0, 0): 2.0**53, (1, 0): 1.0, (2, 0): 1.0, (3, 0): 1.0}
    m = micros({k: 1 for k in w}, w)
    assert job(1).weigh(m)[0] == 2.0**53
    assert job(2).weigh(m)[0] == 2.0**53 + 2
