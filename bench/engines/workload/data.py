"""Batches: the same in every run, and different on every rank."""

from __future__ import annotations

from typing import Any

import torch
from workload import faults, plan
from workload.lengths import times_as_long
from workload.model import ROWS, WIDTH


class Batches(torch.utils.data.Dataset[torch.Tensor]):
    """A batch an item. `shared`: all ranks have the same."""

    def __init__(self, count: int = plan.STEPS, width: int = WIDTH, shared: bool = False) -> None:
        self.count, self.width, self.shared = count, width, shared

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> torch.Tensor:
        faults.before_input()
        return batch(number, self.width, self.shared)


def batch(number: int, width: int = WIDTH, shared: bool = False) -> torch.Tensor:
    seed = torch.Generator().manual_seed(number if shared else 1000 * plan.rank() + number)
    return torch.randn(ROWS * times_as_long(number, shared), width, generator=seed)


def loader(count: int = plan.STEPS, shared: bool = False) -> Any:
    return torch.utils.data.DataLoader(Batches(count, shared=shared), batch_size=None)


class Texts(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Rows of tokens for a language model; `rows` of them are a rank's batch."""

    VOCABULARY = 64
    LENGTH = 16

    def __init__(self, rows: int, count: int) -> None:
        self.rows, self.count, self._served = rows, count, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        if self._served % self.rows == 0:
            faults.before_input()
        length = self.LENGTH * times_as_long(self._served // self.rows)
        self._served += 1
        seed = torch.Generator().manual_seed(number)
        tokens = torch.randint(4, self.VOCABULARY, (length,), generator=seed)
        return {"input_ids": tokens, "labels": tokens.clone(), "attention_mask": torch.ones_like(tokens)}
