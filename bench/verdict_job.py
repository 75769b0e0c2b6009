"""A real job of one rank for bench/verdicts.py: DDP, DDP with accumulated gradients, or DeepSpeed, on gloo.

It trains until it is ended. A file FOLDER/rank-N has rank N fail at its next step, as the file's content says:
`exception`, `exit`, or `memory` (takes memory until the kernel ends it).
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH, ACCUMULATED = 256, 64, 4


def fail(how: str) -> None:
    if how == "exception":
        raise FloatingPointError("as asked")
    if how == "exit":
        sys.exit(1)
    kept = []
    while how == "memory":
        kept.append(bytearray(os.urandom(1 << 20)) * 16)


def main() -> None:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model: Any = torch.nn.Sequential(*layers)
    if kind == "deepspeed":
        import deepspeed

        deepspeed.init_distributed("gloo")
        settings = {
            "train_micro_batch_size_per_gpu": BATCH,
            "zero_optimization": {"stage": 2, "reduce_bucket_size": 100_000},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        }
        model, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    else:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fault = folder / f"rank-{dist.get_rank()}"
    micro = 0
    while True:
        if fault.exists():
            fail(fault.read_text())
        data = torch.randn(BATCH, WIDTH)
        if kind == "deepspeed":
            model.backward(model(data).square().mean())
            model.step()
            continue
        for _ in range(ACCUMULATED if kind == "accumulated" else 1):
            micro += 1
            last = kind != "accumulated" or micro % ACCUMULATED == 0
            with contextlib.nullcontext() if last else model.no_sync():
                model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
