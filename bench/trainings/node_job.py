"""A rank of a real DeepSpeed job for bench/node_verdicts.py, on gloo: python node_job.py LAYOUT FOLDER PACE.

LAYOUT `data`: four replicas under ZeRO 2, the demo's transformer. `pairs`: tensor parallelism in pairs, and data
parallelism across them, so that there are groups to compare. Each forward pass sleeps for PACE seconds besides: a GPU
computes, and the CPU is free.

It trains until it is ended. While there is a file FOLDER/rank-N with `PHASE SECONDS SHARE`, rank N is late in that
phase (input, forward, backward, optimizer) by so many seconds in that share of its steps, at random.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from laggard.demo.train import SlowAdamW, Tokens, Transformer

MICRO_BATCH, WIDTH, ROWS, LAYERS = 4, 256, 128, 4


class Delay:
    """What makes a phase longer: the pace, and the fault that was asked for. Input comes first in a step: there the
    fault is looked at."""

    def __init__(self, fault: Path, pace: float) -> None:
        self._fault, self._pace = fault, pace
        self._late = ("", 0.0)

    def __call__(self, phase: str) -> None:
        if phase == "input":
            self._late = self._asked()
        late, seconds = self._late
        time.sleep((seconds if phase == late else 0.0) + (self._pace if phase == "forward" else 0.0))

    def _asked(self) -> tuple[str, float]:
        try:
            phase, seconds, share = self._fault.read_text().split()
        except (OSError, ValueError):  # there is none, or it is being written
            return "", 0.0
        return (phase, float(seconds)) if random.random() < float(share) else ("", 0.0)


class Reduced(torch.autograd.Function):
    """The sum over a tensor-parallel pair, and of its gradients."""

    @staticmethod
    def forward(context: Any, hidden: torch.Tensor, group: Any) -> torch.Tensor:
        context.group = group
        dist.all_reduce(hidden, group=group)
        return hidden

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        dist.all_reduce(gradient := gradient.contiguous(), group=context.group)
        return gradient, None


class TensorParallel(torch.nn.Module):
    """Layers whose results are summed over a pair."""

    def __init__(self, group: Any, delay: Delay) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self._group, self._delay = group, delay

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self._delay("forward")
        hidden = tokens.flatten()[:1].float().expand(ROWS, WIDTH)
        for layer in self.layers:
            hidden = Reduced.apply(torch.tanh(layer(hidden)), self._group)  # type: ignore[no-untyped-call]
        return hidden.square().mean()


class Pairs:
    """Ranks 0-1 and 2-3 share a model, 0 and 2, 1 and 3 its data: what DeepSpeed asks a model-parallel library for."""

    def __init__(self) -> None:
        rank = dist.get_rank()
        models, data = (
            [dist.new_group(list(pair)) for pair in pairs] for pairs in (((0, 1), (2, 3)), ((0, 2), (1, 3)))
        )
        self._model, self._data = models[rank // 2], data[rank % 2]

    def get_model_parallel_group(self) -> Any:
        return self._model

    def get_model_parallel_rank(self) -> int:
        return dist.get_rank(self._model)

    def get_model_parallel_world_size(self) -> int:
        return 2

    def get_data_parallel_group(self) -> Any:
        return self._data

    def get_data_parallel_rank(self) -> int:
        return dist.get_rank(self._data)

    def get_data_parallel_world_size(self) -> int:
        return 2


def configuration() -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 100_000},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000,
    }


def main() -> None:
    layout, folder, pace = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    delay = Delay(folder / f"rank-{dist.get_rank()}", pace)
    pairs = Pairs() if layout == "pairs" else None
    model: Any = TensorParallel(pairs.get_model_parallel_group(), delay) if pairs else Transformer(delay)
    optimizer = SlowAdamW(model.parameters(), lr=1e-3)
    optimizer.delay = delay
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=configuration(), mpu=pairs)
    rows = Tokens(SimpleNamespace(steps=1 << 30, micro_batch=MICRO_BATCH), delay)
    for tokens in DataLoader(rows, batch_size=MICRO_BATCH):
        engine.backward(engine(tokens))
        engine.step()


main()
