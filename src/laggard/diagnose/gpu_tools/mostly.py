"""Tells a tool's own output from a text that holds it among other things, as a job's log does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_MIN_SHARE: Final = 0.6
_SAMPLE_CHARACTERS: Final = 1 << 18


def is_mostly(text: str, is_known: Callable[[str], object]) -> bool:
    """Returns whether most lines of the beginning are of the tool."""
    lines = [line for line in text[:_SAMPLE_CHARACTERS].splitlines() if line.strip()]
    known = sum(1 for line in lines if is_known(line[:400]))
    return bool(lines) and known >= _MIN_SHARE * len(lines)


def is_table(line: str) -> bool:
    """Returns whether the line is a row of a table drawn with bars."""
    return line.startswith(("|", "+"))
