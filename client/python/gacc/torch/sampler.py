# SPDX-License-Identifier: Apache-2.0
"""gacc.torch.Sampler."""
from __future__ import annotations

import hashlib
import weakref
from typing import Any, Iterator

import torch

from ..errors import GaccError
from .optimizer import Optimizer


class Sampler(torch.utils.data.Sampler[Any]):
    """Deals samples to (window, micro-batch, rank), for DataLoader(dataset, batch_sampler=Sampler(dataset, batch, opt)). Each epoch is another permutation
    of all samples, drawn by `seed` and the epoch's number, cut into blocks of `batch`; block number (micro * ranks + rank) of a window's blocks is for
    that micro-batch of that rank. So a restarted rank gets what it owes, and a job with another number of ranks and the same number of micro-batches in a
    window has the same windows. The last window of an epoch may be short: call opt.flush() after each epoch.

    batch    samples in one micro-batch; the last one of an epoch may have fewer (drop_last: none has)

    Iterating yields the rest of the current epoch from where the job stands, as lists of indices; len() is that of a whole epoch for this rank. The
    blocks' hashes are pushed as data_key, so that a micro-batch that was counted before and now has other samples is refused. One pass at a time.
    """

    def __init__(self, data: Any, batch: int, opt: Optimizer, seed: int = 0, shuffle: bool = True, drop_last: bool = False):
        if batch < 1:
            raise GaccError("batch is the number of samples in a micro-batch", reason="INVALID_ARGUMENT")
        self._size, self._batch, self._seed, self._shuffle = len(data), batch, seed, shuffle
        self._blocks = self._size // batch if drop_last else -(-self._size // batch)
        if not self._blocks:
            raise GaccError("no samples", reason="INVALID_ARGUMENT")
        self._opt = weakref.ref(opt)
        self._session, self._micro_size = opt.session, opt.micro_size
        self._ranks, self._rank = opt.session.world_size, opt.session.rank
        self._dealt: tuple[int, list[int]] = (-1, [])
        opt.key_of = self.key_of

    @property
    def windows(self) -> int:
        """In an epoch."""
        return int(-(-self._blocks // (self._ranks * self._micro_size)))

    @property
    def epoch(self) -> int:
        """Of the open window."""
        return int(self._session.window) // self.windows

    def indices(self, window: int, micro: int) -> list[int]:
        """The samples of a micro-batch of this rank; [] if the epoch has none left for it."""
        epoch, at = divmod(window, self.windows)
        block = (at * self._micro_size + micro) * self._ranks + self._rank
        if block >= self._blocks:
            return []
        if self._dealt[0] != epoch:
            order = list(range(self._size))
            if self._shuffle:
                drawn = torch.Generator().manual_seed(int.from_bytes(hashlib.blake2b(f"{self._seed} {epoch}".encode(), digest_size=7).digest(), "little"))
                order = torch.randperm(self._size, generator=drawn).tolist()
            self._dealt = (epoch, order)
        return self._dealt[1][block * self._batch:(block + 1) * self._batch]

    def key_of(self, window: int, micro: int) -> int:
        ids = ",".join(map(str, self.indices(window, micro)))
        return int.from_bytes(hashlib.blake2b(ids.encode(), digest_size=8).digest(), "little") or 1

    def __iter__(self) -> Iterator[list[int]]:
        first, micros = self._session.window, self._session.missing
        for window in range(first, (first // self.windows + 1) * self.windows):
            for micro in micros if window == first else range(self._micro_size):
                block = self.indices(window, micro)
                if block:
                    yield block

    def __len__(self) -> int:
        whole = self.windows * self._micro_size
        return sum((m * self._ranks + self._rank) < self._blocks for m in range(whole))
