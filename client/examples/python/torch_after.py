#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_before.py with gacc: the optimizer's line is another one, and what counts, divides, clips and zeroes is gone."""
import torch

import gacc
import gacc.torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
batches = [(x, x.sum(1, keepdim=True)) for x in torch.randn(88, 8).split([3, 7, 5, 9, 1, 4, 6, 5, 8, 2, 38])]  # 11 batches, of any size
k = 4

opt = gacc.torch.Optimizer(model, "adamw", lr=1e-2, micro_size=k, clip_norm=1.0)
scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1 / (1 + step))
for epoch in range(3):
    for x, y in batches:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step(weight=len(x), loss=loss)
        if opt.stepped:
            scheduler.step()
    opt.flush()
    scheduler.step()
print(f"parameters {torch.cat([p.detach().flatten() for p in model.parameters()]).double().norm().item():.5f}")
opt.close()
