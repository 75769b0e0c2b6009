"""Accelerate, with gradients that are accumulated over two batches."""

import torch
from accelerate import Accelerator
from workload import plan
from workload.chores import after_step
from workload.data import Batches
from workload.model import Model
from workload.result import finish, report

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
batches = Batches(2 * plan.STEPS * accelerator.num_processes)
data = torch.utils.data.DataLoader(batches, collate_fn=lambda items: items[0])
model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
losses = []
for batch in data:
    with accelerator.accumulate(model):
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    losses.append(loss.detach())
    if accelerator.sync_gradients:
        after_step(accelerator.unwrap_model(model))
report(losses, model.parameters())
finish()
