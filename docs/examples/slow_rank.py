"""DistributedDataParallel with one slow rank, to see what laggard says.

    torchrun --nproc-per-node 4 --no-python laggard run --record recording docs/examples/slow_rank.py
    laggard locate --trace recording

Rank 2 takes 0.1 s more in each forward.
"""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Model(torch.nn.Linear):
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if dist.get_rank() == 2:
            time.sleep(0.1)
        return super().forward(batch)


dist.init_process_group("gloo")  # "nccl" on GPUs
model = DistributedDataParallel(Model(32, 4))
optimizer = torch.optim.AdamW(model.parameters())
for _step in range(100):
    model(torch.randn(8, 32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
