"""Tensor and data parallelism on a DeviceMesh, as in torchtitan; four ranks in two tensor-parallel groups.

    torchrun --nproc-per-node 4 --no-python laggard run docs/examples/torchtitan_style.py

Without `laggard run` the one line in it attaches the hooks.
"""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import laggard.trainer_hooks

dist.init_process_group("gloo")  # "nccl" on GPUs
tp = 2
mesh = dist.init_device_mesh("cpu", (dist.get_world_size() // tp, tp), mesh_dim_names=("dp", "tp"))  # roles by name
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4), torch.nn.ReLU())
parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters())
laggard.trainer_hooks.attach(model, optimizer)

torch.manual_seed(mesh["dp"].get_local_rank())  # one batch for all ranks of a tensor-parallel group
data = torch.utils.data.DataLoader(torch.randn(80, 32), batch_size=8)
for batch in data:
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
