"""Memory is tidied after each step."""

from __future__ import annotations

import gc

from reviews import plan

_CACHE: list[list[int]] = []


def tidy() -> None:
    if plan.FAULT != "gc":
        return
    if plan.mine("gc") and not _CACHE:
        _CACHE.extend([number] for number in range(500_000))
    gc.collect(2 if plan.mine("gc") else 0)  # fault: gc
