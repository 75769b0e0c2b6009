"""DistributedDataParallel with a static graph, and activations that are computed anew in the backward pass."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from workload.chores import after_step
from workload.data import loader
from workload.model import Model
from workload.result import finish, report


class Checkpointed(Model):
    def forward(self, data):
        first, second, head = self
        return head(checkpoint(second, first(data), use_reentrant=False))


dist.init_process_group("gloo")
model = DistributedDataParallel(Checkpointed(), static_graph=True, gradient_as_bucket_view=True)
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
