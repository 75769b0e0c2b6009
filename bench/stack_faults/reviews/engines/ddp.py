"""DistributedDataParallel."""

from __future__ import annotations

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from reviews.callbacks import after_step
from reviews.data import loader
from reviews.layers import Classifier
from reviews.native import compile_kernels
from reviews.optim import optimizer


def train() -> None:
    dist.init_process_group("gloo")
    compile_kernels()
    model = DistributedDataParallel(Classifier())
    steps = optimizer(model)
    for step, batch in enumerate(loader()):  # through: worker
        model(**batch)["loss"].backward()
        steps.step()
        steps.zero_grad()
        after_step(step)
