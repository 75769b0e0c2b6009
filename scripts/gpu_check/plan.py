"""The parts of gpu-check: what a CPU cannot tell and no GPU has answered yet (tests/upstream.md). Standard library
only.

What proves the most for its time comes first. A machine that is lent may be taken back at any moment.
"""

from __future__ import annotations

from typing import NamedTuple

LEASE_SECONDS = 900
"""The longest that a machine is lent, from the call that starts it."""

SET_UP = (("the start of the machine", 90), ("carrying and unpacking, call 1", 45), ("the same, call 2", 35))
"""What a lease takes beside its parts, in seconds: as it was with an H100, and for a packed NCCL of 44 MB."""


class Part(NamedTuple):
    """`module`: in the folder parts. `seconds`: the time limit. `words`: the part's arguments. `call`: the call of a
    lease in which it runs; 0: in none, for it needs more than one GPU, or DeepSpeed."""

    name: str
    module: str
    seconds: float
    words: tuple[str, ...] = ()
    call: int = 0


PARTS = (
    Part("nccl-reduce", "nccl_ranks", 60, ("reduce",), 1),
    Part("nccl-behind", "nccl_ranks", 90, ("behind",), 1),
    Part("nccl-slow", "nccl_ranks", 60, ("slow",), 1),
    Part("nccl-stopped", "nccl_ranks", 60, ("stopped",), 1),
    Part("nccl-ring", "nccl_ranks", 90, ("ring",), 1),
    Part("overhead-pairs", "overhead_pairs", 100, ("small", "large"), 2),
    Part("facts", "facts", 60, (), 2),
    Part("nvml", "readings", 40, (), 2),
    Part("healthcheck", "gate", 50, (), 2),
    Part("active", "gate", 100, ("active",), 2),
    Part("no-set-device", "no_set_device", 300),
    Part("zero", "trainings", 900, ("zero1", "zero2", "zero3")),
)


def lease_plan() -> str:
    """The limits of all that a lease does, and their sum, line by line."""
    parts = [(f"call {part.call}: {part.name}", part.seconds) for part in PARTS if part.call]
    rows = [*SET_UP, *parts]
    total = sum(seconds for _, seconds in rows)
    lines = [f"{seconds:5.0f} s  {what}" for what, seconds in rows]
    return "\n".join((*lines, f"{total:5.0f} s  of {LEASE_SECONDS} s at the most"))
