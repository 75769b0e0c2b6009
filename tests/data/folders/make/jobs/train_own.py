"""A training without DDP: each step sums the gradients by all_reduce. A rank that fails keeps its flight recorder."""

import datetime
import logging
import os
import pathlib
import time

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist
from callbacks import on_step_begin
from data import next_batch
from heads import configure
from torch.distributed.elastic.multiprocessing.errors import record

log = logging.getLogger("train")


def train(rank: int) -> None:
    """Trains 400 steps with gradients that are summed one after another."""
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(400):
        batch = next_batch(step, 64)
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        loss.backward()
        on_step_begin(rank, step)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            log.info("step %d loss %.4f", step, loss.item())
        time.sleep(0.2)


@record
def main() -> None:
    """Trains; keeps the flight recorder where FR_DIR says so, when something is raised."""
    configure()
    rank = int(os.environ["RANK"])
    timeout = datetime.timedelta(seconds=float(os.environ.get("TIMEOUT_S", "30")))
    dist.init_process_group("gloo", timeout=timeout)
    log.info("rank %d of %d is process %d on %s", rank, dist.get_world_size(), os.getpid(), os.uname().nodename)
    try:
        train(rank)
    except Exception:
        if folder := os.environ.get("FR_DIR"):
            pathlib.Path(folder, f"fr_trace_{rank}.json").write_bytes(c10d._dump_fr_trace_json())
        raise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
