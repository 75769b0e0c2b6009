"""A layer that is split over two ranks by hand, and gradients that are summed over two more.

It stands in for Megatron-LM, whose schedules need GPUs: the groups have its descriptions, and the layers its
all-reduces in the forward and in the backward pass.
"""

import torch
import torch.distributed as dist
from workload import faults, plan
from workload.chores import after_step
from workload.lengths import times_as_long
from workload.model import ROWS, WIDTH, work
from workload.result import finish, report

TENSOR = 2


class Copy(torch.autograd.Function):
    """The input of a split layer: each rank's gradient is summed."""

    @staticmethod
    def forward(context, data):
        return data.view_as(data)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=tensor_group)
        return gradient


class Reduce(torch.autograd.Function):
    """The output of a split layer: the ranks' parts are summed."""

    @staticmethod
    def forward(context, data):
        total = data.clone()
        dist.all_reduce(total, group=tensor_group)
        return total

    @staticmethod
    def backward(context, gradient):
        return gradient


class ParallelFeedForward(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH // TENSOR)
        self.down = torch.nn.Linear(2 * WIDTH // TENSOR, WIDTH, bias=False)

    def forward(self, data):
        return Reduce.apply(self.down(work(torch.relu(self.up(Copy.apply(data))), len(data))))


def read(step):
    """One batch for all ranks of a tensor-parallel group."""
    faults.before_input()
    seed = torch.Generator().manual_seed(1000 * (rank // TENSOR) + step)
    return torch.randn(ROWS * times_as_long(step, of_all=True), WIDTH, generator=seed)


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
data_groups = [list(range(part, world, TENSOR)) for part in range(TENSOR)]
tensor_groups = [list(range(first, first + TENSOR)) for first in range(0, world, TENSOR)]
data_group, _ = dist.new_subgroups_by_enumeration(data_groups, group_desc="DATA_PARALLEL_GROUP")
tensor_group, _ = dist.new_subgroups_by_enumeration(tensor_groups, group_desc="TENSOR_MODEL_PARALLEL_GROUP")
torch.manual_seed(rank % TENSOR)
model = torch.nn.Sequential(ParallelFeedForward(), ParallelFeedForward())
faults.befall(model[0])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for step in range(plan.STEPS):
    loss = model(read(step)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=data_group)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
    after_step(model, model.state_dict, lambda: model(torch.ones(ROWS, WIDTH)), spread=True)
report(losses, model.parameters())
finish()
