# SPDX-License-Identifier: Apache-2.0
"""What MindSpore's tutorial and API call Accumulator and GradAccumulation."""
from __future__ import annotations

from typing import Any, Optional

import mindspore as ms
from mindspore import nn

from ..errors import GaccError
from .optimizer import Optimizer


class Accumulator(Optimizer):
    """The Accumulator of MindSpore's tutorial on gradient accumulation: called with the gradients of loss / accumulate_step, and every
    accumulate_step-th call takes the step.

        accumulator = gacc.mindspore.Accumulator(nn.SGD(net.trainable_params(), 0.01), accumulate_step=2)
        loss, grads = grad_fn(x, y)                 # of loss / accumulate_step
        accumulator(grads)

    optimizer     an optimizer of MindSpore: see Optimizer
    clip_norm     2-norm at which the averaged gradient is clipped; None or 0: not at all, as in the tutorial, which never reads it
    more          of Optimizer's arguments: job=, rank=, world=, spec=

    The division is undone as gradients are copied, and the daemon divides by what came: a short last window (flush()) has its true mean.
    """

    def __init__(self, optimizer: Any, accumulate_step: int, clip_norm: Optional[float] = None, **more: Any):
        if isinstance(optimizer, str) or not hasattr(optimizer, "parameters"):
            raise GaccError(f"Accumulator takes an optimizer of MindSpore, not {optimizer!r}", reason="INVALID_ARGUMENT",
                            hint="gacc.mindspore.Optimizer takes a network and an optimizer's name")
        super().__init__(optimizer.parameters, optimizer, micro_size=accumulate_step, clip_norm=clip_norm, scale=float(accumulate_step), **more)


class GradAccumulation(nn.Cell):  # type: ignore[misc, unused-ignore]
    """A network whose call is a step: the batch is cut into micro_size parts, each goes forward and backward and is pushed, and the network has the new
    parameters. Also for mindspore.train.Model(cell).train(..).

        net = gacc.mindspore.GradAccumulation(nn.WithLossCell(backbone, loss_fn), 4, "adamw", lr=1e-3)
        for x, y in dataset:
            loss = net(x, y)                        # the mean of this batch

    network      returns the loss, the mean over the rows of its inputs (their first dimension)
    micro_size   parts of a batch. They need not be of the same size; a batch with fewer rows than this makes a step of what it has
    optimizer, more    as for Optimizer

    The call runs as Python in every mode; `jit=True` compiles the forward and backward of a part.
    """

    def __init__(self, network: Any, micro_size: int, optimizer: Any = None, *, jit: bool = False, **more: Any):
        super().__init__(auto_prefix=False)
        if not isinstance(network, nn.Cell):
            raise GaccError(f"the network is a {type(network).__name__}, not a Cell", reason="INVALID_ARGUMENT", hint="nn.WithLossCell(backbone, loss_fn)")
        self.network = network
        self.optimizer = Optimizer(network, optimizer, micro_size=micro_size, **more)
        grad = ms.value_and_grad(network, None, self.optimizer.parameters)
        self._grad = ms.jit(grad) if jit else grad

    def __call__(self, *inputs: Any) -> Any:
        opt, rows = self.optimizer, self._rows(inputs)
        parts, total, weight, ended = min(rows, opt.session.micro_size), 0.0, 0, False
        for i in opt.missing:  # all of them, but in a rank that was started again
            if i >= parts or ended:
                break
            first, end = i * rows // parts, (i + 1) * rows // parts
            loss, grads = self._grad(*[t[first:end] if self._is_batch(t) else t for t in inputs])
            if not isinstance(loss, ms.Tensor) or loss.size != 1:
                said = f"the shape {list(loss.shape)}" if isinstance(loss, ms.Tensor) else f"a {type(loss).__name__}"
                raise GaccError(f"the network returns {said}: it must be the mean loss alone", reason="INVALID_ARGUMENT",
                                hint="a loss with reduction=\"mean\"")
            ended = opt.step(grads, weight=end - first, loss=loss)
            total, weight = total + float(loss.asnumpy().item()) * (end - first), weight + end - first
        if not ended:
            opt.flush()
        return ms.Tensor(total / weight if weight else float("nan"), ms.float32)

    @staticmethod
    def _is_batch(t: Any) -> bool:
        return isinstance(t, ms.Tensor) and t.ndim > 0

    def _rows(self, inputs: Any) -> int:
        rows = {int(t.shape[0]) for t in inputs if self._is_batch(t)}
        if len(rows) != 1 or rows == {0}:
            raise GaccError(f"the inputs have {sorted(rows) or 'no'} rows: all tensors of a batch have the same number, at least 1",
                            reason="INVALID_ARGUMENT", hint="the first dimension is the batch's")
        return rows.pop()

    def flush(self) -> bool:
        return self.optimizer.flush()

    def finish(self) -> None:
        """See Optimizer.finish()."""
        self.optimizer.finish()

    def close(self) -> None:
        self.optimizer.close()
