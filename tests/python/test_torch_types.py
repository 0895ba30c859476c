# SPDX-License-Identifier: Apache-2.0
"""gacc.torch with parameters and gradients of 16 bits, and with what does not fit them."""
import copy

import pytest
import torch

from loops import FEATURES, gacc


def test_bf16_parameters_have_an_f32_master(endpoint):
    """Steps that bf16 alone would round away."""
    begin = torch.nn.Linear(FEATURES, 1, bias=False)
    torch.nn.init.ones_(begin.weight)
    m = copy.deepcopy(begin).bfloat16()
    with gacc.torch.Optimizer(m, "sgd", lr=2.0 ** -11, micro_size=1) as opt:
        for _ in range(8):
            m(torch.ones(1, FEATURES, dtype=torch.bfloat16)).sum().backward()
            opt.step()
    assert m.weight.dtype == torch.bfloat16 and (m.weight == 1 - 2.0 ** -8).all()


@pytest.mark.parametrize("own, sent, grows", [(torch.float32, "bf16", 1.0), (torch.bfloat16, "f32", 1.0), (torch.float32, "f16", 1 + 2.0 ** -9)])
def test_gradients_of_another_type_than_the_parameters(endpoint, own, sent, grows):
    """They are rounded on their way to the slot: 1 + 2^-9 is none of bf16's numbers."""
    m = torch.nn.Linear(FEATURES, 2, bias=False, dtype=own)
    torch.nn.init.zeros_(m.weight)
    with gacc.torch.Optimizer(m, "sgd", lr=1.0, micro_size=2, spec={"gradient_dtype": sent}) as opt:
        for scale in (1.0, 3.0):
            (m(torch.full((1, FEATURES), 1 + 2.0 ** -9, dtype=own)).sum() * scale).backward()
            opt.step(weight=1)
    assert (m.weight == -2 * grows).all()


def test_a_parameter_of_another_shape_is_refused(endpoint):
    m = torch.nn.Linear(FEATURES, 2, bias=False)
    with gacc.torch.Optimizer(m, "sgd", lr=1.0, micro_size=2):
        m.weight.data = torch.zeros(1, FEATURES)
        with pytest.raises(gacc.GaccError, match=r"the gradient of weight has the shape \(1, 6\), and the parameter had \(2, 6\)"):
            m(torch.ones(1, FEATURES)).sum().backward()
