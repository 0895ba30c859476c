#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A loop that accumulates by hand, with all that people forget; torch_after.py is the same with gacc."""
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
batches = [(x, x.sum(1, keepdim=True)) for x in torch.randn(88, 8).split([3, 7, 5, 9, 1, 4, 6, 5, 8, 2, 38])]  # 11 batches, of any size
k = 4

opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1 / (1 + step))
for epoch in range(3):
    for i, (x, y) in enumerate(batches):
        window = batches[i // k * k:i // k * k + k]  # the last one is shorter
        samples = sum(len(x) for x, _ in window)  # of the whole window, before its first backward
        loss = torch.nn.functional.mse_loss(model(x), y)
        (loss * len(x) / samples).backward()
        if i % k == k - 1 or i == len(batches) - 1:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            scheduler.step()
            opt.zero_grad()
print(f"parameters {torch.cat([p.detach().flatten() for p in model.parameters()]).double().norm().item():.5f}")
