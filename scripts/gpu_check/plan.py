"""The parts of gpu-check. Standard library only.

What proves the most for its time comes first. A machine that is lent may be taken back at any moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Part(NamedTuple):
    """`module`: in the folder parts. `seconds`: the time limit, several times what the part takes on one GPU. `words`:
    the part's arguments."""

    name: str
    module: str
    seconds: float
    environ: Mapping[str, str] = {}
    words: tuple[str, ...] = ()


PARTS = (
    Part("versions", "versions", 60),
    Part("events", "events", 180, {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}),
    Part("stuck-kernel", "stuck_kernel", 300),
    Part("overhead-pairs", "overhead_pairs", 300, words=("small", "large")),
    Part("calls", "calls", 180),
    Part("sticky-error", "one_process", 200, words=("sticky-error",)),
    Part("fork", "one_process", 200, words=("fork",)),
    Part("ddp", "trainings", 400, words=("ddp",)),
    Part("nvml", "readings", 120),
    Part("healthcheck", "gate", 240),
    Part("events-one-queue", "events", 180, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
    Part("graph", "trainings", 600, words=("graph", "graphed")),
    Part("active", "gate", 400, words=("active",)),
    Part("slow-rank", "slow_rank", 400),
    Part("fsdp2", "trainings", 400, words=("fsdp2",)),
    Part("compile", "trainings", 900, words=("compile",)),
    Part("no-set-device", "no_set_device", 300),
    Part("zero", "trainings", 900, words=("zero1", "zero2", "zero3")),
    Part("pipeline", "trainings", 400, words=("pipeline",)),
)
