"""Lightning Fabric, with DDP."""

import os

import torch
from lightning.fabric import Fabric
from workload.chores import after_step
from workload.data import loader
from workload.model import Model
from workload.result import finish, report

fabric = Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp")
fabric.launch()
bare = Model()
model, optimizer = fabric.setup(bare, torch.optim.AdamW(bare.parameters(), lr=1e-3))
data = fabric.setup_dataloaders(loader(), use_distributed_sampler=False)
losses = []
for batch in data:
    loss = model(batch).square().mean()
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
    after_step(bare)
report(losses, model.parameters())
finish()
