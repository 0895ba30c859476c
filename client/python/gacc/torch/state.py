# SPDX-License-Identifier: Apache-2.0
"""gacc.torch.TrainerState: what a training loop has besides parameters and optimizer."""
from __future__ import annotations

import io
import logging
import random
from typing import Any, Optional

import numpy as np
import torch

from ..errors import GaccError
from .optimizer import Optimizer

log = logging.getLogger("gacc")


class TrainerState:
    """Random number generators (torch, also CUDA's, numpy, Python), the model's buffers (BatchNorm's statistics), the learning rates of opt, and whatever
    has a state_dict(): saved with the job's checkpoints, and given back to this rank.

        state = gacc.torch.TrainerState(opt, model, scheduler=scheduler)
        state.restore()                       # after a restart, or in a job with restore_from
        for x, y in loader:
            state.save()                      # before the forward of each micro-batch: once in a window it does something
            ...
        state.save()                          # after the last window

    opt       the gacc.torch.Optimizer
    model     whose buffers are saved; None: of none
    every     only in windows with so many applied steps, or a multiple: that of checkpoint.every_steps costs least. 1: each, so that a rank that died, and
              checkpoints on request, have it, too
    parts     objects with state_dict() and load_state_dict(), by names of yours
    values    a dictionary of yours, saved and restored with the rest: numbers, strings, tensors, lists and dictionaries of them
    """

    def __init__(self, opt: Optimizer, model: Optional[torch.nn.Module] = None, every: int = 1, **parts: Any):
        if every < 1:
            raise GaccError(f"every is {every}: 1 or more", reason="INVALID_ARGUMENT")
        self._opt, self._model, self._every, self._parts = opt, model, every, {"optimizer": opt, **parts}  # whose groups have the lr of now
        self._window: Optional[int] = None  # that was saved last
        self.values: dict[str, Any] = {}

    def save(self) -> bool:
        """Before the forward of the window's first micro-batch; later in the window, and in windows that `every` leaves out, it does nothing. True: it
        was saved."""
        s = self._opt.session
        begun = not s.done and len(s.missing) < s.micro_size
        if begun or s.window == self._window or s.applied_step % self._every:
            return False
        s.save_state(self._packed())
        self._window = s.window
        return True

    def restore(self) -> bool:
        """True: the state that this rank had before the open window's first micro-batch is back. Is the window's first micro-batch counted already (it is
        not in opt.missing), let the loop pass over the forward of those that are, or seed by (opt.window, micro-batch). False: there is none, or of an
        earlier window alone, and nothing has changed."""
        s = self._opt.session
        saved = s.saved_state()
        if saved is None:
            return False
        if saved.window != s.window:
            log.warning("rank %d: its own state is that of window %d, and window %d is open: it is not restored", s.rank, saved.window, s.window)
            return False
        self._unpack(saved.data)
        self._window = s.window
        return True

    def _packed(self) -> bytes:
        of_numpy: Any = np.random.get_state()
        name, keys, *rest = of_numpy
        all_of = {"torch": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
                  "numpy": [name, torch.from_numpy(keys.astype(np.int64)), *rest], "python": random.getstate(),
                  "buffers": {} if self._model is None else dict(self._model.named_buffers()),
                  "parts": {k: p.state_dict() for k, p in self._parts.items()}, "values": self.values}
        out = io.BytesIO()
        torch.save(all_of, out)
        return out.getvalue()

    def _unpack(self, data: bytes) -> None:
        """weights_only: the bytes come from a file, and must not be able to run code."""
        all_of = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        buffers = {} if self._model is None else dict(self._model.named_buffers())
        for what, is_, was in (("buffers", buffers, all_of["buffers"]), ("parts", self._parts, all_of["parts"])):
            if set(is_) != set(was):
                raise GaccError(f"the saved state has the {what} {sorted(was)}, and here are {sorted(is_)}", reason="STATE_MISMATCH",
                                hint="make TrainerState with the same model and names as before")
        torch.set_rng_state(all_of["torch"])
        if all_of["cuda"]:
            torch.cuda.set_rng_state_all(all_of["cuda"])
        name, keys, *rest = all_of["numpy"]
        np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
        random.setstate(all_of["python"])
        with torch.no_grad():
            for k, b in buffers.items():
                b.copy_(all_of["buffers"][k])
        for k, p in self._parts.items():
            p.load_state_dict(all_of["parts"][k])
        self.values = all_of["values"]
