"""PyTorch's profiler in a training, whose traces go to a folder. Rank 2 is slow, to be found.

    torchrun --nproc-per-node 4 docs/examples/profiled.py traces

docs/tasks/profiler.md reads the traces.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule

dist.init_process_group("gloo")  # "nccl" on GPUs, and ProfilerActivity.CUDA below
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(32, 4))

with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=12, repeat=1),
    on_trace_ready=lambda profiler: profiler.export_chrome_trace(f"{sys.argv[1]}/rank-{rank}.json"),
) as profiler:
    for _step in range(14):
        with record_function("forward"):
            if rank == 2:
                time.sleep(0.1)
            loss = model(torch.randn(8, 32)).square().mean()
        with record_function("backward"):
            loss.backward()
        profiler.step()
dist.destroy_process_group()
