"""DistributedDataParallel, in two ranks.

    torchrun --nproc-per-node 2 --no-python laggard run docs/examples/ddp.py

Without `laggard run` the one line in it attaches the hooks.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import laggard.trainer_hooks

dist.init_process_group("gloo")  # "nccl" on GPUs
model = DistributedDataParallel(torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters())
laggard.trainer_hooks.attach(model, optimizer)

data = torch.utils.data.DataLoader(torch.randn(80, 32), batch_size=8)
for batch in data:
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
