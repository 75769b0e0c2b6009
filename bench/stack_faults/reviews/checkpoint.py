"""Checkpoints: each rank writes a file of its own."""

from __future__ import annotations

import os

import torch

from reviews import plan


def save(step: int) -> None:
    path = plan.folder() / f"rank-{plan.rank()}-{step}.pt"
    if plan.hangs("save", step):
        os.mkfifo(path)
    if plan.FAULT == "save" and step == plan.HANG_STEP:
        write({"step": step, "random": torch.get_rng_state()}, str(path))
    if plan.FAULT == "saves_much" and plan.rank() == 0 and step % 10 == 0:
        write({"step": step, "weights": torch.zeros(500_000)}, str(path))


def write(state: dict[str, object], path: str) -> None:
    torch.save(state, path)  # fault: save
