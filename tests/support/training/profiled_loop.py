"""Ranks on gloo whose steps PyTorch's profiler records; one computes for longer. Arguments: the folder, its rank."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function, schedule

STEPS = 14
COMPUTING, SLOW = 0.02, 0.25


def main() -> None:
    folder, slow = sys.argv[1], int(sys.argv[2])
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    values = torch.ones(8, 64)
    ending = "json.gz" if rank % 2 else "json"

    def write(profiler: profile) -> None:
        profiler.export_chrome_trace(f"{folder}/rank-{rank}.{ending}")

    plan = schedule(wait=1, warmup=1, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=write) as profiler:
        for _ in range(STEPS + 2):
            with record_function("## forward ##"):
                time.sleep(SLOW if rank == slow else COMPUTING)
                loss = model(values).sum()
            with record_function("## backward ##"):
                loss.backward()
            model.zero_grad()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
