"""One process, without torch.distributed."""

import torch
from workload.chores import after_step
from workload.data import loader
from workload.model import Model
from workload.result import finish, report

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for batch in loader():
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
    after_step(model)
report(losses, model.parameters())
finish()
