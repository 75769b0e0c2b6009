"""A rank of a real DeepSpeed job for bench/reduce_scatter.py, on gloo: python reduce_scatter_job.py STAGE STEPS.

Two engines train the same model, one as shipped, one with the true reduce-scatter, in turns. Prints one line of JSON:
`{"shipped": [[seconds, bytes], ...], "scattered": [...], "equal": true}`, what each step took and sent over eth0.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

import laggard.trainer_hooks

WIDTH, LAYERS, WARM_UP = 512, 4, 2
SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")


def engine(stage: int, scattered: bool) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "steps_per_print": 1_000_000,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    made, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    os.environ["LAGGARD_REDUCE_SCATTER"] = str(int(scattered))
    laggard.trainer_hooks.attach(made)
    return made


def step(trained: Any, rows: torch.Tensor) -> tuple[float, int]:
    """Seconds and bytes of this rank's step."""
    dist.barrier()
    started, sent = time.perf_counter(), int(SENT.read_text())
    trained.backward(trained(rows).square().mean())
    trained.step()
    return time.perf_counter() - started, int(SENT.read_text()) - sent


def main() -> None:
    stage, steps = int(sys.argv[1]), int(sys.argv[2])
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    engines = {"shipped": engine(stage, False), "scattered": engine(stage, True)}
    taken: dict[str, Any] = {name: [] for name in engines}
    torch.manual_seed(dist.get_rank())
    for _ in range(steps + WARM_UP):
        rows = torch.randn(4, WIDTH)
        for name, trained in engines.items():
            taken[name].append(step(trained, rows))
    taken = {name: steps[WARM_UP:] for name, steps in taken.items()}
    one, other = (each.module.parameters() for each in engines.values())
    taken["equal"] = all(map(torch.equal, one, other))
    print(json.dumps(taken), flush=True)
    dist.barrier()
    time.sleep(0.5)  # gloo's threads still hold tensors
    os._exit(0)


if __name__ == "__main__":
    main()
