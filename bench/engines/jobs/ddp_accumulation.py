"""DistributedDataParallel that accumulates the gradients of three batches, by no_sync()."""

import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from workload import plan
from workload.chores import after_step
from workload.data import loader
from workload.model import Model
from workload.result import finish, report

ACCUMULATED = 3

dist.init_process_group("gloo")
model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for number, batch in enumerate(loader(ACCUMULATED * plan.STEPS), start=1):
    updates = number % ACCUMULATED == 0
    with contextlib.nullcontext() if updates else model.no_sync():
        loss = model(batch).square().mean()
        loss.backward()
    losses.append(loss.detach())
    if updates:
        optimizer.step()
        optimizer.zero_grad()
        after_step(model.module)
report(losses, model.parameters())
finish()
