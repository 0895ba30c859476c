# SPDX-License-Identifier: Apache-2.0
"""gacc.torch.Sampler: every sample once in an epoch, the same windows for any number of ranks, and what a restarted rank gets."""
import pytest
import torch

from loops import fresh_name, gacc, in_threads


def dealt(endpoint, world, micro_size, size=50, batch=4, epochs=2, stop=None, job=None, **how):
    """{window: sorted samples of all ranks}, through a DataLoader; `stop`: each rank goes after so many micro-batches, without a word."""
    job = job or fresh_name()

    def train(rank):
        m = torch.nn.Linear(1, 1, bias=False)
        opt = gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=micro_size, job=job, rank=rank, world=world)
        sampler = gacc.torch.Sampler(range(size), batch, opt, seed=3, **how)
        windows, given = {}, 0
        assert len(sampler) <= sampler.windows * micro_size
        while sampler.epoch < epochs:
            for ids in torch.utils.data.DataLoader(range(size), batch_sampler=sampler):
                windows.setdefault(opt.window, []).append(ids.tolist())
                m(ids.float()[:, None]).mean().backward()
                opt.step(weight=len(ids))
                given += 1
                if given == stop:
                    opt.__exit__(ValueError, None, None)
                    return windows
            if sampler.epoch < epochs and opt.missing != list(range(micro_size)) or world > 1 and opt.window % sampler.windows:
                opt.flush()
        opt.close()
        return windows
    all_of = in_threads(world, train)
    return {w: [b for r in all_of for b in r.get(w, [])] for w in sorted(set().union(*all_of))}


def flat(windows):
    return {w: sorted(i for b in batches for i in b) for w, batches in windows.items()}


@pytest.mark.parametrize("how", [{}, {"shuffle": False}])
def test_every_sample_once_in_an_epoch(endpoint, how):
    windows = dealt(endpoint, 1, 4, **how)
    assert [len(b) for w in windows.values() for b in w] == ([4] * 12 + [2]) * 2 and list(windows) == list(range(8))
    first, second = [[i for w in part for b in windows[w] for i in b] for part in (range(4), range(4, 8))]
    assert sorted(first) == sorted(second) == list(range(50))
    assert (first == second == sorted(first)) if how else (first != second and first != sorted(first))


def test_the_same_windows_for_other_numbers_of_ranks(endpoint):
    assert flat(dealt(endpoint, 1, 4)) == flat(dealt(endpoint, 2, 2))


def test_a_restarted_rank_gets_the_rest(endpoint):
    job, whole = fresh_name(), dealt(endpoint, 1, 4)
    first = dealt(endpoint, 1, 4, stop=6, job=job)
    rest = dealt(endpoint, 1, 4, job=job)
    assert {w: first.get(w, []) + rest.get(w, []) for w in range(8)} == whole and first.keys() & rest.keys() == {1}


def test_other_samples_for_a_micro_batch_that_was_counted(endpoint):
    m = torch.nn.Linear(1, 1, bias=False)
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=2, boundary="step") as opt:
        gacc.torch.Sampler(range(8), 2, opt)
        m(torch.ones(1, 1)).sum().backward()
        gacc.torch.Sampler(range(8), 2, opt, seed=1)
        opt._micro = 0
        with pytest.raises(gacc.GaccError) as e:
            m(torch.ones(1, 1)).sum().backward()
        assert e.value.reason == "DATA_KEY_MISMATCH"
        opt._gradients.clear()
