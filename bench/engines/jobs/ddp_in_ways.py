"""DistributedDataParallel in a way of its own, by the argument.

`join`: the last rank has ten batches more than the others. `static_graph`: with activations that are computed anew in
the backward pass. `comm_hook`: gradients are reduced as float16. `compiled`: by the backend aot_eager, without a
compiler for this machine's code. `mpi`: mpirun starts the ranks.
"""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from workload import plan
from workload.chores import after_step
from workload.data import loader
from workload.model import Model
from workload.result import finish, report

WAY = sys.argv[1]


class Checkpointed(Model):
    def forward(self, data):
        first, second, head = self
        return head(checkpoint(second, first(data), use_reentrant=False))


if WAY == "mpi":
    dist.init_process_group("gloo", rank=int(os.environ["PMI_RANK"]), world_size=int(os.environ["PMI_SIZE"]))
else:
    dist.init_process_group("gloo")
if WAY == "static_graph":
    model = DistributedDataParallel(Checkpointed(), static_graph=True, gradient_as_bucket_view=True)
else:
    model = DistributedDataParallel(Model())
if WAY == "comm_hook":
    model.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
called = torch.compile(model, backend="aot_eager") if WAY == "compiled" else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
more = 10 if WAY == "join" and dist.get_rank() == dist.get_world_size() - 1 else 0
with model.join() if WAY == "join" else contextlib.nullcontext():
    for batch in loader(plan.STEPS + more):
        loss = called(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        after_step(model.module)
report(losses, model.parameters())
finish()
