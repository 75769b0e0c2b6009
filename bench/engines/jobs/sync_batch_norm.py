"""DistributedDataParallel with synchronized batch normalization.

The norm stands in for torch.nn.SyncBatchNorm, which refuses tensors of the CPU: as that one, it reduces the sums over
all ranks in its forward pass, and their gradients in its backward pass.
"""

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_reduce
from torch.nn.parallel import DistributedDataParallel
from workload.chores import after_step
from workload.data import loader
from workload.model import WIDTH, Model
from workload.result import finish, report


class SyncNorm(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, data):
        if not self.training:
            return data * self.weight
        sums = torch.cat([data.sum(0), data.square().sum(0), data.new_full((1,), len(data))])
        sums = all_reduce(sums)
        mean, square = (sums[:-1] / sums[-1]).chunk(2)
        return (data - mean) * torch.rsqrt(square - mean.square() + 1e-5) * self.weight


class Normed(Model):
    def __init__(self):
        super().__init__()
        self.insert(1, SyncNorm(WIDTH))


dist.init_process_group("gloo")
model = DistributedDataParallel(Normed())
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
