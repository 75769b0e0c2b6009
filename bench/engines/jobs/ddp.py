"""DistributedDataParallel with a DataLoader."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from workload.chores import after_step
from workload.data import loader
from workload.model import Model
from workload.result import finish, report

dist.init_process_group("gloo")
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
