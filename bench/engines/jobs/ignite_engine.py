"""PyTorch Ignite's Engine, with DDP."""

import ignite.distributed as idist
import torch
import torch.distributed as dist
from ignite.engine import Engine, Events
from torch.nn.parallel import DistributedDataParallel
from workload.chores import after_step
from workload.data import loader
from workload.model import Model
from workload.result import finish, report

dist.init_process_group("gloo")
assert idist.get_world_size() == dist.get_world_size()
model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []


def update(engine, batch):
    model.train()
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())


engine = Engine(update)
engine.add_event_handler(Events.ITERATION_COMPLETED, lambda: after_step(model.module))
engine.run(loader(), max_epochs=1)
report(losses, model.parameters())
finish()
