"""A loop that has no DataLoader and reduces its gradients by itself."""

import torch
import torch.distributed as dist
from workload import faults, plan
from workload.chores import after_step
from workload.data import batch
from workload.model import Model
from workload.result import finish, report


def read(step):
    faults.before_input()
    return batch(step)


dist.init_process_group("gloo")
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for step in range(plan.STEPS):
    loss = model(read(step)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
    after_step(model)
report(losses, model.parameters())
finish()
