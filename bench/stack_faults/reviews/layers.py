"""The model; its work takes as long as on an accelerator, and the CPU is free meanwhile."""

from __future__ import annotations

import time
from typing import Any

import torch

from reviews import plan

WIDTH = 32
FORWARD_SECONDS = 0.015


class Scale(torch.autograd.Function):
    """Gradients are scaled, in a backward pass written by hand."""

    @staticmethod
    def forward(ctx: Any, data: torch.Tensor) -> torch.Tensor:
        return data.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        if plan.mine("backward"):
            until = time.monotonic() + plan.SLOW_SECONDS
            while time.monotonic() < until:
                gradient = gradient.mul(1.0)  # fault: backward
        return gradient


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        data = torch.relu(self.linear(data))
        time.sleep(FORWARD_SECONDS)
        if data.requires_grad:
            data.register_hook(lambda _: time.sleep(1.5 * FORWARD_SECONDS))
        return data


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.letters = torch.nn.Embedding(64, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.head = torch.nn.Linear(WIDTH, 1)

    def forward(self, letters: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        data = self.letters(letters).mean(dim=1)
        for block in self.blocks:
            data = Scale.apply(block(data))
        logits = self.head(data).squeeze(-1)
        return {"loss": torch.nn.functional.binary_cross_entropy_with_logits(logits, labels), "logits": logits}
