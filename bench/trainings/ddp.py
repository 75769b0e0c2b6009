"""A rank of a real DDP job on gloo: python ddp.py SECONDS.

Each forward pass takes SECONDS besides, for which it sleeps: a GPU computes, and the CPU is free. It trains until it is
ended.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH = 256, 64


class Paced(torch.nn.Module):
    """Four layers, and the time that a larger model would take on a GPU."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        layers = [layer for _ in range(4) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
        self.layers = torch.nn.Sequential(*layers)
        self.seconds = seconds

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        result: torch.Tensor = self.layers(data)
        return result


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Paced(float(sys.argv[1])))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while True:
        model(torch.randn(BATCH, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
