"""Limits on what agents send, and how they are checked."""

from __future__ import annotations

from collections.abc import Iterable

from laggard.wire import WireError

MAX_WORLD = 1 << 20
MAX_TEXT = 256
MAX_COUNT = 1 << 53  # beyond, a number is no longer exact in JSON
MAX_SECONDS = 1e7  # of one step: 115 days
MAX_CLOCK = 1e12


def all_within(values: Iterable[float], limit: float) -> bool:
    return all([0 <= value <= limit for value in values])  # within(), without a call for each of a round's millions


def within(value: float, limit: float) -> bool:
    return 0 <= value <= limit  # false for nan and inf too


def check_length(name: str, text: str, limit: int = MAX_TEXT) -> None:
    require(len(text) <= limit, f"{name} is longer than {limit} characters")


def require(condition: bool, problem: str) -> None:
    """Raises WireError with `problem` where the condition does not hold."""
    if not condition:
        raise WireError(problem)
