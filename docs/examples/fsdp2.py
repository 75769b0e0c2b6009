"""FSDP2, in two ranks.

    torchrun --nproc-per-node 2 --no-python laggard run docs/examples/fsdp2.py

Without `laggard run` the one line in it attaches the hooks.
"""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import laggard.trainer_hooks

dist.init_process_group("gloo")  # "nccl" on GPUs
mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))  # names tell roles: dp, tp, pp
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
laggard.trainer_hooks.attach(model, optimizer)

data = torch.utils.data.DataLoader(torch.randn(80, 32), batch_size=8)
for batch in data:
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
