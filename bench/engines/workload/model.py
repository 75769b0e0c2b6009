"""A small model, whose work takes as long as on an accelerator: the CPU is free meanwhile."""

from __future__ import annotations

import time

import torch
from workload import faults, plan

WIDTH = 32
ROWS = 16
"""Of a batch as usual."""
FORWARD_SECONDS = 0.004
"""Of a block, for a batch as usual; backward takes half as long again."""


CPU_WIDTH = 256
CPU_PRODUCTS = 4
"""Products of matrices of this width that a block does for a batch as usual, where the CPU works: some milliseconds."""


@torch.compiler.disable
def work(data: torch.Tensor, rows: int, seconds: float = FORWARD_SECONDS) -> torch.Tensor:
    """Takes the time that an accelerator needs for so many rows, here and in the backward pass."""
    taken = seconds * rows / ROWS
    _take(taken)
    if data.requires_grad:
        data.register_hook(lambda _: _take(1.5 * taken))
    return data


def _take(seconds: float) -> None:
    """Takes so many seconds of an accelerator, or half of them, and of a CPU as much work as there is in the rest."""
    if not plan.CPU_WORK:
        time.sleep(seconds)
        return
    time.sleep(seconds / 2)
    matrix = torch.ones(CPU_WIDTH, CPU_WIDTH)
    for _ in range(max(1, round(CPU_PRODUCTS * seconds / FORWARD_SECONDS))):
        torch.mm(matrix, matrix)


class Block(torch.nn.Module):
    """A layer. `weight`: how many times as much work as usual it is."""

    def __init__(self, width: int = WIDTH, weight: float = 1.0) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(width, width)
        self.weight = weight

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return work(torch.relu(self.layer(data)), len(data), self.weight * FORWARD_SECONDS)


class Model(torch.nn.Sequential):
    """Two blocks and a head: a batch of rows to one number a row."""

    def __init__(self, width: int = WIDTH) -> None:
        torch.manual_seed(0)
        super().__init__(Block(width), Block(width), torch.nn.Linear(width, 1))
        faults.befall(self[0])


def paced(model: torch.nn.Module, layer: torch.nn.Module, tokens: int) -> torch.nn.Module:
    """Gives a model that is not of this file its time: `layer`'s output takes that of a step as usual for so many
    tokens (its first two dimensions)."""
    layer.register_forward_hook(lambda _, __, data: work(data, 2 * ROWS * data.shape[0] * data.shape[1] // tokens))
    faults.befall(layer)
    return model
