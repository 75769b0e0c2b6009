"""The outcome of one trial, as values. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple


class Status(enum.Enum):
    OK = "ok"
    WRONG = "wrong"
    """It ran, and its results are not right."""
    OUT_OF_MEMORY = "out of memory"
    HUNG = "hung"
    """It was killed at its deadline."""
    CRASHED = "crashed"
    GARBAGE = "garbage"
    """It ended well, and what it printed is not what was asked for: nothing is known of it."""
    LOST = "lost"
    """The tuner died while it ran: it is tried again."""


class Outcome(NamedTuple):
    status: Status
    seconds: float | None = None
    """The objective: less is better. None unless the status is OK."""
    detail: str = ""
    """One line: why it is not OK, or what else is to be known."""
    wall_seconds: float = 0.0
    """The time that the trial took, all in all."""
    parts: Mapping[str, float] = {}
    """Seconds by what was measured: `allreduce 1048576`."""
