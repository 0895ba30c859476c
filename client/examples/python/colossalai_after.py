#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""colossalai_before.py with gacc: another optimizer, and attach()."""
import colossalai
import torch
from colossalai.booster import Booster
from colossalai.booster.plugin import TorchDDPPlugin

import gacc
import gacc.torch

GRADIENT_ACCUMULATION = 4
colossalai.launch(rank=0, world_size=1, host="127.0.0.1", port=0, verbose=False)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
dataset = torch.utils.data.TensorDataset(torch.randn(96, 8), torch.randint(10, (96,)))
criterion = torch.nn.CrossEntropyLoss()
optimizer = gacc.torch.Optimizer(model, "sgd", lr=0.1, momentum=0.9, weight_decay=5e-4, micro_size=GRADIENT_ACCUMULATION)

plugin = TorchDDPPlugin()
booster = Booster(plugin=plugin)
train_dataloader = plugin.prepare_dataloader(dataset, batch_size=8, shuffle=True, drop_last=True)
model, optimizer, criterion, train_dataloader, _ = booster.boost(model, optimizer, criterion, train_dataloader)
opt = gacc.colossalai.attach(booster, model, optimizer, GRADIENT_ACCUMULATION)

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
opt.close()
torch.distributed.destroy_process_group()
