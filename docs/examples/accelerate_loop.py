"""Accelerate, in two processes.

    accelerate launch --cpu --num_processes 2 --no_python laggard run docs/examples/accelerate_loop.py

On GPUs leave out --cpu. Without `laggard run` the one line in it attaches the hooks.
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
