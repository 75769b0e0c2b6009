"""A small training with DDP on gloo. ACT="NAME:RANK:STEP" makes one rank do what its name says at that step."""

import datetime
import logging
import os
import time

import torch
import torch.distributed as dist
from callbacks import on_step_begin
from heads import configure
from torch.nn.parallel import DistributedDataParallel

configure()
log = logging.getLogger("train")


def main() -> None:
    """Trains 400 steps, or fewer where the act ends the job."""
    rank = int(os.environ["RANK"])
    timeout = datetime.timedelta(seconds=float(os.environ.get("TIMEOUT_S", "30")))
    dist.init_process_group("gloo", timeout=timeout)
    log.info("rank %d of %d is process %d on %s", rank, dist.get_world_size(), os.getpid(), os.uname().nodename)
    torch.manual_seed(7)
    width = int(os.environ.get("WIDTH", "64"))
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(400):
        on_step_begin(rank, step)
        batch = torch.randn(16, width)
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            log.info("step %d loss %.4f lr 1.0e-03", step, loss.item())
        time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
