"""The optimizer."""

from __future__ import annotations

import time
from typing import Any

import torch

from reviews import plan


def optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    made = torch.optim.AdamW(model.parameters(), lr=1e-3)
    made.register_step_pre_hook(watch_norms)
    return made


def watch_norms(made: torch.optim.Optimizer, *_: Any) -> None:
    """Sums squares by hand; on one rank of far too much."""
    until = time.monotonic() + (plan.SLOW_SECONDS if plan.mine("optimizer") else 0.0)
    while time.monotonic() < until:  # fault: optimizer
        squares([float(number) for number in range(500)])  # fault: optimizer


def squares(values: list[float]) -> float:
    total = 0.0
    for value in values:  # fault: optimizer
        total += value * value  # fault: optimizer
    return total
