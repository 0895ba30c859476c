# SPDX-License-Identifier: Apache-2.0
"""gacc.transformers with transformers' own Trainer and a small Llama, beside plain torch with the true mean over all labels."""
import copy
import math
from importlib import metadata

import pytest
import torch

transformers = pytest.importorskip("transformers")

from loops import check, fresh_name, gacc  # noqa: E402
from ranks import Rank  # noqa: E402

K, NAN, CLIP = 4, 1, 0.4  # batches in a window; the window that has a NaN


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=31, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
                                      max_position_embeddings=16, tie_word_embeddings=True)
    return transformers.LlamaForCausalLM(config)


def batch(*key):
    """Two rows of 12 tokens, of which random ones are labels."""
    drawn = torch.Generator().manual_seed(hash((3,) + key) & (1 << 60) - 1)
    ids = torch.randint(0, 31, (2, 12), generator=drawn)
    hidden = int(torch.randint(0, 11, (), generator=drawn)) if key[-1] else 0  # the first token is never predicted, whatever its label
    labels = ids.clone()
    labels[:, :hidden] = -100
    return {"input_ids": ids, "labels": labels}


def labels(b):
    return int(b["labels"][:, 1:].ne(-100).sum())


def mean_loss(m, b):
    return torch.nn.functional.cross_entropy(m(b["input_ids"]).logits[:, :-1].flatten(0, 1), b["labels"][:, 1:].flatten())


class Trainer(transformers.Trainer):
    """With batches that are made already, and a loss that is NaN once."""
    bad = ()

    def get_train_dataloader(self):
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=None, shuffle=False)

    def compute_loss(self, model, inputs, *args, **kwargs):
        self.seen = getattr(self, "seen", -1) + 1
        return super().compute_loss(model, inputs, *args, **kwargs) * (math.nan if self.seen in self.bad else 1)


def arguments(tmp, **more):
    return transformers.TrainingArguments(str(tmp), per_device_train_batch_size=2, gradient_accumulation_steps=K, num_train_epochs=1, logging_steps=1,
                                          report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True, **{"max_grad_norm": CLIP, **more})


def decay(o):
    return torch.optim.lr_scheduler.LambdaLR(o, lambda e: 1 / (1 + e))


def train(rank, world, n, job, tmp, bad=()):
    """Trainer's loop: the parameters and its logs."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    m = llama()
    opt = gacc.torch.Optimizer(m, "sgd", lr=0.5, momentum=0.9, micro_size=16, clip_norm=CLIP, job=job, rank=rank, world=world)
    trainer = Trainer(m, arguments(tmp), train_dataset=[batch(rank, i) for i in range(n)], optimizers=(opt, decay(opt)))
    trainer.bad = bad
    gacc.transformers.attach(trainer)
    trainer.train()
    applied = opt.last.applied_step
    opt.close()
    return {name: p.numpy().copy() for name, p in m.state_dict().items()}, trainer.state.log_history, trainer.state.global_step, applied


def against_plain_torch(state, logs, windows, skipped=()):
    got, begin = llama(), llama()
    got.load_state_dict({n: torch.from_numpy(v) for n, v in state.items()})
    wanted = check(got, begin, lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9), windows, clip=CLIP, scheduler=decay, skipped=skipped, loss=mean_loss,
                   weight=labels)
    seen = [(e["grad_norm"], e["learning_rate"], e["loss"]) for e in logs if "grad_norm" in e and math.isfinite(float(e["grad_norm"]))]
    assert min(norm for norm, _, _ in wanted) > CLIP, "clipping bites"
    return seen, wanted


def test_a_loop_with_a_short_window_tokens_clipping_a_scheduler_and_nan(endpoint, tmp_path):
    """14 batches: windows of 4, 4 (NaN, skipped), 4 and 2. What Trainer logs is what plain torch has."""
    state, logs, global_step, applied = train(0, 1, 14, None, tmp_path, bad=(K * NAN + 1,))
    windows = [[batch(0, i) for i in range(at, min(at + K, 14))] for at in range(0, 14, K)]
    seen, wanted = against_plain_torch(state, logs, windows, (NAN,))
    assert [s[:2] for s in seen] == [pytest.approx(w[:2], rel=1e-4) for w in wanted]
    assert [seen[0][2], seen[2][2]] == pytest.approx([wanted[0][2], wanted[2][2]], rel=1e-3)
    assert (global_step, applied) == (4, 3)


def test_two_ranks_with_6_and_4_batches(node, tmp_path):
    """Each logs its own losses, and both the norm and the learning rate of the job."""
    job, counts = fresh_name(), (6, 4)
    ranks = [Rank(node, train, r, 2, counts[r], job, str(tmp_path / str(r))) for r in range(2)]
    (state, logs, *_), (other, logs_of_other, *_) = [r.result() for r in ranks]
    assert all((state[n] == other[n]).all() for n in state)
    windows = [[batch(r, i) for r in range(2) for i in range(at, min(at + K, counts[r]))] for at in (0, K)]
    seen, wanted = against_plain_torch(state, logs, windows)
    assert [s[:2] for s in seen] == [pytest.approx(w[:2], rel=1e-4) for w in wanted]
    assert next(e["grad_norm"] for e in logs_of_other) == pytest.approx(seen[0][0])


def test_max_grad_norm_must_be_clip_norm(endpoint, tmp_path):
    m = llama()
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=4) as opt:
        trainer = Trainer(m, arguments(tmp_path, max_grad_norm=1.0), train_dataset=[batch(0, 0)], optimizers=(opt, None))
        with pytest.raises(gacc.GaccError, match="clipping at 1, and the job has clip_norm 0"):
            gacc.transformers.attach(trainer)
    trainer = Trainer(copy.deepcopy(m), arguments(tmp_path), train_dataset=[batch(0, 0)])
    with pytest.raises(gacc.GaccError, match="no optimizer yet"):
        gacc.transformers.attach(trainer)


def test_an_older_release_is_refused(endpoint, tmp_path, monkeypatch):
    """Its Trainer divides in another way: 1.9e-2 off with 4.51, without an error."""
    m = llama()
    with gacc.torch.Optimizer(m, "sgd", lr=0.1, micro_size=4) as opt:
        trainer = Trainer(m, arguments(tmp_path), train_dataset=[batch(0, 0)], optimizers=(opt, None))
        monkeypatch.setattr(metadata, "version", {"transformers": "4.57.1"}.get)
        with pytest.raises(gacc.GaccError, match="transformers 4.57.1 divides losses in another way"):
            gacc.transformers.attach(trainer)
