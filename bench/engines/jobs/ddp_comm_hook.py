"""DistributedDataParallel whose gradients a communication hook reduces as float16."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from workload.chores import after_step
from workload.data import loader
from workload.model import Model
from workload.result import finish, report

dist.init_process_group("gloo")
model = DistributedDataParallel(Model())
model.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
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
