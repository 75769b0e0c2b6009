"""The reviews, and how they are loaded."""

from __future__ import annotations

import time
from typing import Any

import torch

from reviews import plan, text
from reviews.transforms import transforms


class Reviews(torch.utils.data.Dataset[dict[str, Any]]):
    """Reviews in files, one each."""

    def __init__(self, count: int) -> None:
        self.count, self.served = count, 0
        self.transforms = transforms()
        self.words = "a very good book" if not plan.mine("regex") else "aaaaaaaaaaaaaaaaaa!"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, Any]:
        review = self.read(number)
        for transform in self.transforms:
            review = transform(review)
        return {"text": review, "label": float(number % 2)}

    def read(self, number: int) -> str:
        if plan.mine("getitem"):
            time.sleep(plan.SLOW_SECONDS * max(1, plan.WORKERS) / plan.BATCH)  # fault: getitem
        self.served += 1  # by this process
        if plan.mine("worker") and self.served > plan.HANG_STEP * plan.BATCH // 2 and plan.mark():
            time.sleep(10_000)  # fault: worker
        return self.words


def loader() -> torch.utils.data.DataLoader[dict[str, Any]]:
    """Each rank has reviews of its own."""
    return torch.utils.data.DataLoader(
        Reviews(plan.STEPS * plan.BATCH),
        batch_size=plan.BATCH,
        num_workers=plan.WORKERS,
        collate_fn=text.collate,
    )
