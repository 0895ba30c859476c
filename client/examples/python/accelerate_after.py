#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""accelerate_before.py with gacc: another optimizer, and attach()."""
import torch
from accelerate import Accelerator

import gacc
import gacc.torch

x = torch.tensor([1., 2., 3., 4., 5., 6., 7., 8.])
y = torch.tensor([2., 4., 6., 8., 10., 12., 14., 16.])
dataloader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=2)
criterion = torch.nn.MSELoss()
model = torch.nn.Linear(1, 1, bias=False)
model.weight.data.zero_()

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
optimizer = gacc.torch.Optimizer(model, "sgd", lr=0.02, micro_size=4)
model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
opt = gacc.accelerate.attach(accelerator, optimizer)
for inputs, targets in dataloader:
    with accelerator.accumulate(model):
        loss = criterion(model(inputs.view(-1, 1)), targets.view(-1, 1))
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
print(f"w/ accumulation, the final model weight is {model.weight.item():.5f}")
opt.close()
