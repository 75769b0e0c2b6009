"""fully_shard."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from reviews.callbacks import after_step
from reviews.data import loader
from reviews.layers import Classifier
from reviews.native import compile_kernels
from reviews.optim import optimizer


def train() -> None:
    dist.init_process_group("gloo")
    compile_kernels()
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    model = Classifier()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    steps = optimizer(model)
    for step, batch in enumerate(loader()):  # through: worker
        model(**batch)["loss"].backward()
        steps.step()
        steps.zero_grad()
        after_step(step)
