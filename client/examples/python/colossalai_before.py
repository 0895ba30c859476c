#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The loop of Colossal-AI's guide to gradient accumulation, on CPUs, with a small network; colossalai_after.py is the same with gacc.

It steps after every fourth batch, where the guide's `idx % (GRADIENT_ACCUMULATION - 1)` makes windows of 1, 3, 3, .. batches.
"""
import colossalai
import torch
from colossalai.booster import Booster
from colossalai.booster.plugin import TorchDDPPlugin

GRADIENT_ACCUMULATION = 4
colossalai.launch(rank=0, world_size=1, host="127.0.0.1", port=0, verbose=False)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
dataset = torch.utils.data.TensorDataset(torch.randn(96, 8), torch.randint(10, (96,)))
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)

plugin = TorchDDPPlugin()
booster = Booster(plugin=plugin)
train_dataloader = plugin.prepare_dataloader(dataset, batch_size=8, shuffle=True, drop_last=True)
model, optimizer, criterion, train_dataloader, _ = booster.boost(model, optimizer, criterion, train_dataloader)

optimizer.zero_grad()
for idx, (img, label) in enumerate(train_dataloader):
    sync_context = booster.no_sync(model)
    if (idx + 1) % GRADIENT_ACCUMULATION != 0:
        with sync_context:
            train_loss = criterion(model(img), label) / GRADIENT_ACCUMULATION
            booster.backward(train_loss, optimizer)
    else:
        train_loss = criterion(model(img), label) / GRADIENT_ACCUMULATION
        booster.backward(train_loss, optimizer)
        optimizer.step()
        optimizer.zero_grad()
print(f"parameters {torch.cat([p.detach().flatten() for p in model.parameters()]).double().norm().item():.5f}")
torch.distributed.destroy_process_group()
