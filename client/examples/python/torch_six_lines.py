#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch with gacc.torch.Optimizer: no `/ k`, no `% k`, no zero_grad, and the right mean for batches of any size.

    client/examples/python/torch_six_lines.py

It is the only rank of a job of its own; two ranks: GACC_WORLD_SIZE=2 GACC_JOB_ID=six GACC_RANK=0 client/examples/python/torch_six_lines.py, and the
same with GACC_RANK=1. Needs the package (pip install client/python) and torch.
"""
import torch

import gacc
import gacc.torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
x = torch.randn(500, 8)
y = x.pow(2).sum(1, keepdim=True)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)  # 32 batches, the last one of 4

opt = gacc.torch.Optimizer(model, "adamw", lr=1e-2, micro_size=8, clip_norm=10.0)
for epoch in range(10):
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step(weight=len(x), loss=loss)  # every batch; the eighth one takes the step
        if opt.stepped and opt.last.applied_step % 10 == 0:
            print(f"step {opt.last.applied_step}   loss {opt.last.mean_loss:.4f}   gradient norm {opt.last.grad_norm:.4f}", flush=True)
opt.finish()
print("parameters", torch.cat([p.detach().flatten() for p in model.parameters()]).double().norm().item())
opt.close()
