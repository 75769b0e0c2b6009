"""Tensor parallelism of DTensor: each layer is split over the ranks, which have one batch together."""

import functools

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from workload import faults
from workload.chores import after_step
from workload.data import batch as one_batch
from workload.data import loader
from workload.model import WIDTH, work
from workload.result import finish, report


class FeedForward(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, data):
        return self.down(work(torch.relu(self.up(data)), len(data)))


dist.init_process_group("gloo")
mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
torch.manual_seed(0)
model = torch.nn.Sequential(FeedForward(), FeedForward())
faults.befall(model[0])
for layer in model:
    parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
whole = functools.partial(get_model_state_dict, model, options=StateDictOptions(full_state_dict=True))
losses = []
for batch in loader(shared=True):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
    after_step(model, whole, lambda: model(one_batch(0, shared=True)), spread=True)
report(losses, model.parameters())
finish()
