"""DistributedDataParallel whose ranks mpirun starts."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from workload.chores import after_step
from workload.data import loader
from workload.model import Model
from workload.result import finish, report

rank, world = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
dist.init_process_group("gloo", rank=rank, world_size=world)
model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for batch in loader():
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
    after_step(model.module)
report(losses, model.parameters())
finish()
