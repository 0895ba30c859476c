# SPDX-License-Identifier: Apache-2.0
"""Threads about what the sum is divided by: tokens, samples, ranks, and short last windows."""
import math

import pytest
import torch
from loops import fresh_name

from scalar import mean, optimizer, plain_torch, ranks, scalar

WINDOW = [[8.0], [0.0, 0.0, 0.0]]  # four tokens in two micro-batches; their mean is 2, the mean of the means 4


def train(windows, k, flush=False, weight=len):
    m = scalar()
    with optimizer(m, k) as opt:
        for window in windows:
            for values in window:
                loss = mean(m, values)
                loss.backward()
                opt.step(weight=weight(values), loss=loss)
        if flush:
            opt.flush()
        return m.weight.item(), opt.last


def test_transformers_34242_mean_of_means(endpoint):
    """Loss averaged over each micro-batch and then over micro-batches is not the loss of the batch when the numbers of tokens differ. With the tokens
    as weights, gacc divides by all tokens of the window."""
    assert plain_torch([WINDOW]) == -4
    assert train([WINDOW], 2)[0] == -2


def test_opennmt_py_2209_normalized_by_the_wrong_total(endpoint):
    """Each micro-batch was divided by the tokens of the whole batch, and by the accumulation again. The divisor of gacc is what was pushed, and Step
    tells it: however 12 tokens are cut, the step is the same."""
    tokens = [float(i) for i in range(12)]
    assert plain_torch([[tokens[:4], tokens[4:]]], divisor=2 * 12) != -sum(tokens) / 12
    for cuts in ([12], [4, 12], [1, 5, 6, 12]):
        window = [tokens[a:b] for a, b in zip([0] + cuts, cuts)]
        weight, step = train([window], len(cuts))
        assert weight == pytest.approx(-sum(tokens) / 12, rel=1e-6) and step.total_weight == step.divisor == 12


def test_opennmt_py_526_sentences_in_the_place_of_tokens(endpoint):
    """Normalization by tokens was asked for, and sentences were counted. In gacc the weight is what the user says, and the log has it."""
    by_tokens, step = train([WINDOW], 2)
    by_sentences, other = train([WINDOW], 2, weight=lambda values: 1)
    assert (by_tokens, step.total_weight, by_sentences, other.total_weight) == (-2, 4, -4, 2)


def test_mlx_lm_1413_tokens_a_short_window_and_no_tokens(endpoint):
    """Sums of means were divided by a fixed number, the last partial window was dropped, and a window without any token divided by zero. gacc weighs by
    tokens, flush() steps with what is there, and a window without tokens moves nothing."""
    none = [[math.nan], [math.nan]]
    weight, step = train([WINDOW, none, [[1.0, 3.0]]], 2, flush=True, weight=lambda values: 0 if math.isnan(values[0]) else len(values))
    assert weight == -4 and step.micro_count == 1 and step.total_weight == 2


def test_torchtitan_2206_ranks_with_other_numbers_of_valid_tokens(endpoint):
    """Each rank divided by its own valid tokens, so tokens of short ranks counted more. gacc divides once, by the tokens of all ranks."""
    def give(opt, m, rank):
        mean(m, WINDOW[rank]).backward()
        opt.step(weight=len(WINDOW[rank]))
        return opt.last.total_weight
    assert plain_torch([WINDOW]) == -4  # what an all-reduced average of the ranks gives
    assert [(total, m.weight.item()) for total, m in ranks(2, give, 1, fresh_name())] == [(4, -2)] * 2


def test_verl_3332_not_divided_at_all(endpoint):
    """The loss was not divided by the number of micro-batches, so gradient and norm grew with it. With gacc there is no division to forget: the norm is
    that of the whole batch for 1, 2 and 4 micro-batches."""
    tokens = [1.0, 2.0, 3.0, 6.0]
    assert plain_torch([[tokens[:2], tokens[2:]]], divisor=1) == -6
    for k in (1, 2, 4):
        n = 4 // k
        weight, step = train([[tokens[i:i + n] for i in range(0, 4, n)]], k)
        assert (weight, step.grad_norm, step.mean_loss) == (-3, 3, 0)


def test_lightning_19987_the_last_window_of_an_epoch(endpoint):
    """With 6 batches and k = 4 the last window has two, and their sum is divided by four. gacc's flush() divides by two."""
    batches = [[4.0]] * 6
    assert plain_torch([batches[:4]]) + plain_torch([batches[4:]], divisor=4) == -6
    weight, step = train([batches], 4, flush=True)
    assert weight == -8 and step.micro_count == 2


def test_ms_swift_10084_a_trainer_of_its_own_divides_by_the_configured_k(endpoint):
    """A subclass divided by the configured number of micro-batches where the library knew the actual one. In a loop that steps at its boundaries, gacc
    counts for itself; `scale` undoes a division by k in full and in short windows alike."""
    k, m = 4, scalar()
    with optimizer(m, k, boundary="step") as opt:
        for i in range(6):
            opt.micro(weight=1, scale=k)
            (mean(m, [4.0]) / k).backward()
            if i in (3, 5):
                opt.step()
                assert opt.last.grad_norm == 4 and opt.last.micro_count == (4 if i == 3 else 2)
    assert m.weight.item() == -8 and torch.isfinite(m.weight).all()


def scaled(parts):
    """What plain torch makes of one window of (scale, values) when each micro-batch's mean is multiplied by its scale."""
    m = scalar()
    for scale, values in parts:
        (mean(m, values) * scale).backward()
    return -m.weight.grad.item()


def test_verl_5625_token_means_scaled_by_samples(endpoint):
    """Each micro-batch's loss was the mean of its own tokens, and was scaled by its share of the samples: two units that do not cancel. gacc takes one:
    with tokens as weights, however the samples are dealt, the step is the mean over all tokens."""
    samples = [[8.0], [4.0], [0.0] * 6, [2.0] * 4]
    tokens = sum(samples, [])
    for cuts in ([1, 1, 2], [2, 2], [3, 1]):
        window, at = [], 0
        for n in cuts:
            window.append(sum(samples[at:at + n], []))
            at += n
        assert scaled([(n / 4, values) for n, values in zip(cuts, window)]) != pytest.approx(-sum(tokens) / 12, rel=0.01)
        weight, step = train([window], len(cuts))
        assert weight == pytest.approx(-sum(tokens) / 12, rel=1e-6) and step.total_weight == 12


@pytest.mark.parametrize("mode", ["token-mean", "sequence-mean"])
def test_verl_906_accumulated_or_not(endpoint, mode):
    """A loss should be the same with and without accumulation, and one rule for all kinds of means cannot be: the library's was right for means over
    sequences alone. In gacc the weight goes with the loss: tokens for a mean over tokens, sequences for a mean over sequences."""
    sequences = [[1.0], [2.0, 4.0], [3.0, 3.0, 9.0]]
    by_token = mode == "token-mean"
    want = 22 / 6 if by_token else (1 + 3 + 5) / 3

    def loss(m, part):
        return mean(m, sum(part, [])) if by_token else sum(mean(m, s) for s in part) / len(part)
    for parts in ([sequences], [sequences[:1], sequences[1:]], [[s] for s in sequences]):
        m, plain = scalar(), scalar()
        with optimizer(m, len(parts)) as opt:
            for part in parts:
                (loss(plain, part) * (len(part) / 3)).backward()
                loss(m, part).backward()
                opt.step(weight=sum(map(len, part)) if by_token else len(part))
        assert m.weight.item() == pytest.approx(-want, rel=1e-6)
        assert (plain.weight.grad.item() == pytest.approx(want, rel=1e-6)) == (not by_token or len(parts) == 1)


def test_transformers_34191_a_loss_of_ones_own_is_not_divided_any_more(endpoint):
    """The library's repair left the division to the model's loss, so losses of users' own were summed: loss and norm grew by k. In gacc the division is
    nobody's but the daemon's, and Step tells norm and loss of the whole window, the same for each k."""
    tokens = [1.0, 2.0, 3.0, 6.0]
    for k in (1, 2, 4):
        n = 4 // k
        parts = [tokens[i:i + n] for i in range(0, 4, n)]
        assert scaled([(1, part) for part in parts]) == -3 * k
        m = scalar()
        with optimizer(m, k) as opt:
            for part in parts:
                loss = mean(m, part) + 5
                loss.backward()
                opt.step(weight=len(part), loss=loss)
            assert (opt.last.grad_norm, opt.last.mean_loss, m.weight.item()) == (3, 5, -3)


def test_deepspeed_6533_micro_batches_of_other_sizes(endpoint):
    """Two loaders, of large and of small images, have micro-batches of 2 and of 8 samples, and the configuration wants batch = micro-batch x k. In gacc
    a micro-batch has any size, and the loop may close a window by samples: micro_size is then the most that there may be."""
    m, counts = scalar(), []
    with optimizer(m, 16) as opt:
        rows = 0
        for n, value in [(8, 1.0), (2, 4.0), (2, 4.0), (2, 2.0), (2, 2.0), (8, 3.0), (8, 1.0)]:
            mean(m, [value] * n).backward()
            opt.step(weight=n)
            rows += n
            if rows >= 16:
                opt.flush()
                counts.append((opt.last.micro_count, opt.last.divisor))
                rows = 0
    assert counts == [(5, 16), (2, 16)]
    assert m.weight.item() == -(8 * 1 + 2 * 4 + 2 * 4 + 2 * 2 + 2 * 2) / 16 - (8 * 3 + 8 * 1) / 16
