"""Accelerate, in two ranks.

    torchrun --nproc-per-node 2 --no-python laggard run docs/examples/accelerate_loop.py

Without `laggard run` the one line in it attaches the hooks; Accelerate's own launcher: docs/hooks.md.
"""

import torch
from accelerate import Accelerator

import laggard.trainer_hooks

accelerator = Accelerator(cpu=not torch.cuda.is_available())
model = torch.nn.Linear(32, 4)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.DataLoader(torch.randn(160, 32), batch_size=8)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
laggard.trainer_hooks.attach(model, optimizer)

for batch in data:
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
    optimizer.zero_grad()
accelerator.end_training()
