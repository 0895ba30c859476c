# SPDX-License-Identifier: Apache-2.0
"""gacc.lightning with Lightning's own Trainer, automatic and manual optimization, beside plain torch."""
import logging
import math

import pytest
import torch

lightning = pytest.importorskip("lightning.pytorch")

from loops import batch, check, fresh_name, gacc, loss_of, model  # noqa: E402
from ranks import Rank  # noqa: E402

K, NAN, CLIP = 4, 1, 0.7
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def decay(o):
    return torch.optim.lr_scheduler.LambdaLR(o, lambda e: 1 / (1 + e))


class Module(lightning.LightningModule):
    def __init__(self, how, bad=(), manual=False):
        super().__init__()
        self.net, self.how, self.bad, self.told, self.automatic_optimization = model(), how, bad, [], not manual

    def training_step(self, b, i):
        loss = loss_of(self.net, b) * (math.nan if i in self.bad else 1)
        if self.automatic_optimization:
            self.opt.micro(weight=len(b[0]))
            return loss
        self.manual_backward(loss)
        self.optimizers().step(weight=len(b[0]), loss=loss)

    def on_before_zero_grad(self, optimizer):
        pass

    def optimizer_step(self, epoch, batch_idx, optimizer, closure):
        lr = self.opt.param_groups[0]["lr"]
        super().optimizer_step(epoch, batch_idx, optimizer, closure)
        if self.opt.last and (not self.told or self.told[-1][0] != self.opt.last.window):
            self.told.append((self.opt.last.window, self.opt.last.grad_norm, lr, self.opt.last.mean_loss, self.opt.stepped))

    def configure_optimizers(self):
        self.opt = gacc.torch.Optimizer(self.net, "sgd", lr=0.1, momentum=0.9, clip_norm=CLIP, **self.how)
        if not self.automatic_optimization:
            return self.opt
        return {"optimizer": self.opt, "lr_scheduler": {"scheduler": decay(self.opt), "interval": "step"}}


def train(rank, n, how, bad=(), manual=False):
    torch.set_num_threads(1)
    m = Module(how, bad, manual)
    clip = {} if manual else {"gradient_clip_val": CLIP, "accumulate_grad_batches": K}
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                                enable_model_summary=False, callbacks=[gacc.lightning.Callback()], **clip)
    trainer.fit(m, torch.utils.data.DataLoader([batch(rank, i) for i in range(n)], batch_size=None))
    applied = m.opt.last.applied_step
    m.opt.close()
    return {name: p.numpy().copy() for name, p in m.net.state_dict().items()}, m.told, trainer.global_step, applied


def against_plain_torch(state, windows, scheduler=decay, skipped=()):
    got, begin = model(), model()
    got.load_state_dict({n: torch.from_numpy(v) for n, v in state.items()})
    wanted = check(got, begin, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), windows, clip=CLIP, scheduler=scheduler, skipped=skipped)
    assert min(norm for norm, _, _ in wanted) > CLIP, "clipping bites"
    return wanted


def windows_of(n):
    return [[batch(0, i) for i in range(at, min(at + K, n))] for at in range(0, n, K)]


def test_a_loop_with_a_short_window_tokens_clipping_a_scheduler_and_nan(endpoint):
    state, told, global_step, applied = train(0, 14, {"micro_size": 16}, bad=(K * NAN + 1,))
    wanted = against_plain_torch(state, windows_of(14), skipped=(NAN,))
    assert [t[-1] for t in told] == [True, False, True, True]
    assert [t[1:4] for t in told if t[-1]] == [pytest.approx(w, rel=1e-5) for w in wanted]
    assert (global_step, applied) == (4, 3)


def test_manual_optimization(endpoint):
    state, _, _, applied = train(0, 10, {"micro_size": K}, manual=True)
    against_plain_torch(state, windows_of(10), scheduler=None)
    assert applied == 3


def test_two_ranks_with_6_and_4_batches(node):
    job, counts = fresh_name(), (6, 4)
    ranks = [Rank(node, train, r, counts[r], {"micro_size": 16, "job": job, "rank": r, "world": 2}) for r in range(2)]
    (state, *_), (other, *_) = [r.result() for r in ranks]
    assert all((state[n] == other[n]).all() for n in state)
    against_plain_torch(state, [[batch(r, i) for r in range(2) for i in range(at, min(at + K, counts[r]))] for at in (0, K)])


def test_gradient_clip_val_must_be_clip_norm(endpoint):
    m = Module({"micro_size": 16})
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                                enable_model_summary=False, callbacks=[gacc.lightning.Callback()], gradient_clip_val=1.0)
    with pytest.raises(gacc.GaccError, match="clipping at 1, and the job has clip_norm 0.7"):
        trainer.fit(m, torch.utils.data.DataLoader([batch(0, 0)], batch_size=None))
    m.opt.close()
