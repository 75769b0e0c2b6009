"""Texts to tensors."""

from __future__ import annotations

import re
from typing import Any

import torch

LENGTH = 32
_RULE = re.compile(r"^(\w+\s?)*\.$")


def collate(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch: letters' numbers, and whether the reviewer liked it."""
    rows = [encode(tidy(item["text"])) for item in items]
    labels = torch.tensor([item["label"] for item in items])
    return {"letters": torch.stack(rows), "labels": labels}


def tidy(text: str) -> str:
    if _RULE.match(text):  # fault: regex
        return text[:-1]
    return text


def encode(text: str) -> torch.Tensor:
    letters = [ord(letter) % 64 for letter in text[:LENGTH].ljust(LENGTH)]
    return torch.tensor(letters)
