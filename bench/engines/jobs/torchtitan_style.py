"""Tensor and data parallelism on a DeviceMesh, two ranks each way.

It stands in for torchtitan, whose own loop imports triton and needs GPUs: the mesh, the plan of layers, fully_shard,
and gradients that are clipped by a norm over both.
"""

import functools

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from workload import faults, plan
from workload.chores import after_step
from workload.lengths import times_as_long
from workload.model import ROWS, WIDTH, work
from workload.result import finish, report


class FeedForward(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, data):
        return self.down(work(torch.relu(self.up(data)), len(data)))


def read(step):
    """One batch for all ranks of a tensor-parallel group."""
    faults.before_input()
    seed = torch.Generator().manual_seed(1000 * mesh["dp"].get_local_rank() + step)
    return torch.randn(ROWS * times_as_long(step, of_all=True), WIDTH, generator=seed)


dist.init_process_group("gloo")
mesh = dist.init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)
model = torch.nn.Sequential(FeedForward(), FeedForward())
faults.befall(model[0])
for layer in model:
    parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(layer, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
whole = functools.partial(get_model_state_dict, model, options=StateDictOptions(full_state_dict=True))
losses = []
for step in range(plan.STEPS):
    loss = model(read(step)).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
    after_step(model, whole, lambda: model(torch.ones(ROWS, WIDTH)), spread=True)
report(losses, model.parameters())
finish()
