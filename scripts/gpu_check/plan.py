"""The parts of gpu-check, and which of them end within some minutes. Standard library only.

What proves the most for its time comes first. A machine that is lent may be taken back at any moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """`module`: in the folder parts. `seconds`: the time limit; `usual`: what the part takes on one GPU, in seconds.
    `words`: the part's arguments."""

    name: str
    module: str
    seconds: float
    usual: float
    environ: Mapping[str, str] = {}
    words: tuple[str, ...] = ()


PARTS = (
    Part("versions", "versions", 60, 10),
    Part("events", "events", 180, 45, {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}),
    Part("two-sm", "two_ranks", 300, 25, words=("sm",)),
    Part("two-calm", "two_ranks", 300, 25, words=("calm",)),
    Part("stuck-kernel", "stuck_kernel", 300, 45),
    Part("overhead-pairs", "overhead_pairs", 300, 60, words=("small", "large")),
    Part("calls", "calls", 180, 45),
    Part("sticky-error", "one_process", 200, 25, words=("sticky-error",)),
    Part("fork", "one_process", 200, 25, words=("fork",)),
    Part("ddp", "trainings", 400, 60, words=("ddp",)),
    Part("two-together", "two_ranks", 300, 30, words=("together",)),
    Part("two-own", "two_ranks", 300, 25, words=("own",)),
    Part("faults", "faults", 120, 15),
    Part("nvml", "readings", 120, 30),
    Part("healthcheck", "gate", 240, 30),
    Part("two-cpu", "two_ranks", 300, 25, words=("cpu",)),
    Part("two-memory", "two_ranks", 300, 25, words=("memory",)),
    Part("two-pcie", "two_ranks", 300, 25, words=("pcie",)),
    Part("events-one-queue", "events", 180, 45, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
    Part("graph", "trainings", 600, 90, words=("graph", "graphed")),
    Part("active", "gate", 400, 120, words=("active",)),
    Part("slow-rank", "slow_rank", 400, 90),
    Part("fsdp2", "trainings", 400, 90, words=("fsdp2",)),
    Part("compile", "trainings", 900, 170, words=("compile",)),
    Part("overhead", "overhead", 600, 170),
    Part("no-set-device", "no_set_device", 300, 90),
    Part("zero", "trainings", 900, 300, words=("zero1", "zero2", "zero3")),
    Part("pipeline", "trainings", 400, 120, words=("pipeline",)),
    Part("tune-nccl", "tune_nccl", 900, 600),
)


def planned(parts: Sequence[Part], seconds: float) -> tuple[list[Part], list[Part]]:
    """The parts that usually end within so many seconds together, in their order, and those that are left out."""
    chosen: list[Part] = []
    for part in parts:
        if sum(each.usual for each in (*chosen, part)) <= seconds:
            chosen.append(part)
    return chosen, [part for part in parts if part not in chosen]


def plan_sentence(chosen: Sequence[Part], left_out: Sequence[Part], minutes: float) -> str:
    runs = ", ".join(f"{part.name} ({part.usual:g} s)" for part in chosen) or "nothing"
    others = f"; left out: {', '.join(part.name for part in left_out)}" if left_out else ""
    return f"in {minutes:g} minutes: {runs}, {sum(part.usual for part in chosen):g} s in all{others}"
