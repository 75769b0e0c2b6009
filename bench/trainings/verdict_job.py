"""A rank of a real job for bench/verdicts.py: DDP, also with accumulated gradients, DeepSpeed, Hugging Face; on gloo.

Each forward pass takes PACE seconds besides, for which it sleeps: a GPU computes, and the CPU is free.

It trains until it is ended. A file FOLDER/rank-N has rank N fail at its next step, as the file's content says:
`exception`, `exit`, or `memory` (takes memory until the kernel ends it).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
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


class ForTrainer(torch.nn.Module):
    """The same, as Hugging Face's Trainer calls it."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, data: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.model(data).square().mean()}


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Input; the file FOLDER/rank-N is looked at for each row."""

    def __init__(self, fault: Path) -> None:
        self.fault = fault

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, _: int) -> dict[str, torch.Tensor]:
        fail_if_asked(self.fault)
        return {"data": torch.randn(WIDTH)}


def fail_if_asked(fault: Path) -> None:
    if fault.exists():
        fail(fault.read_text())


def train_with_hugging_face(model: torch.nn.Module, folder: Path) -> None:
    import transformers

    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "trainer"), max_steps=1 << 30, per_device_train_batch_size=BATCH, report_to=[],
        logging_steps=100, save_strategy="no", use_cpu=True, disable_tqdm=True, ddp_backend="gloo",
    )  # fmt: skip
    rank = int(os.environ["RANK"])
    transformers.Trainer(ForTrainer(model), arguments, train_dataset=Rows(folder / f"rank-{rank}")).train()


def main() -> None:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    model: Any = Paced(float(sys.argv[3]))
    if kind == "huggingface":
        return train_with_hugging_face(model, folder)
    if kind == "deepspeed":
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else each rank waits for a compiler
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
        fail_if_asked(fault)
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
