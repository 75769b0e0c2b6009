"""Context parallelism: each rank has a part of each sequence, and gathers the keys and values of all.

It stands in for torch's context_parallel(), which knows no attention of the CPU: the gathering is that of its
all-gather method, by functional collectives.
"""

import functools

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor_autograd
from torch.nn.parallel import DistributedDataParallel
from workload import faults, plan
from workload.chores import after_step
from workload.lengths import times_as_long
from workload.model import ROWS, WIDTH, work
from workload.result import finish, report

HEADS, LENGTH = 2, 32


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.into = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, data):
        batch, length, _ = data.shape
        query, key, value = self.into(data).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        key, value = (all_gather_tensor_autograd(part.contiguous(), 2, mesh) for part in (key, value))
        mine = torch.arange(length) + mesh.get_local_rank() * length
        causal = mine[:, None] >= torch.arange(key.shape[2])
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=causal)
        rows = 2 * ROWS * length * mesh.size() // LENGTH
        return work(self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH)), rows)


def sequences(step):
    seed = torch.Generator().manual_seed(step)
    faults.before_input()
    return torch.randn(2, LENGTH * times_as_long(step, of_all=True), WIDTH, generator=seed)


dist.init_process_group("gloo")
mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("cp",))
torch.manual_seed(0)
attention = Attention()
faults.befall(attention)
model = DistributedDataParallel(attention)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for step in range(plan.STEPS):
    data = sequences(step).chunk(mesh.size(), dim=1)[mesh.get_local_rank()]
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
    after_step(attention, evaluate=functools.partial(attention, data), spread=True)
report(losses, model.parameters())
finish()
