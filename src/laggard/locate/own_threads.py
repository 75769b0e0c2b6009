"""The Python threads beside a rank's training, as its facts tell of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from laggard.rankfile.fact_names import OWN_THREADS
from laggard.text.words import printable_line

_MAX_NAME: Final = 48
_MAX_NAMES: Final = 4


class OwnThreads(NamedTuple):
    """The Python threads beside the training: the share of the time for which they ran, all together, how much too late
    a sleeping one woke, on average (seconds), and the names of the busiest."""

    busy: float
    late_seconds: float
    names: tuple[str, ...]


def own_threads(facts: Mapping[str, Any]) -> OwnThreads | None:
    """The threads that a rank's facts tell of; None where they tell nothing, or what cannot be."""
    told = facts.get(OWN_THREADS)
    if not isinstance(told, dict):
        return None
    numbers = [told.get(name) for name in ("seconds", "busy_seconds", "late_seconds")]
    if not all(isinstance(each, (int, float)) and math.isfinite(each) and 0 <= each < 1e9 for each in numbers):
        return None
    seconds, busy, late = (float(each) for each in numbers if each is not None)
    names = told.get("names")
    shown = names[:_MAX_NAMES] if isinstance(names, list) else []
    texts = tuple(printable_line(name, _MAX_NAME) for name in shown if isinstance(name, str))
    return OwnThreads(busy / seconds, late, tuple(filter(None, texts))) if seconds > 0 else None
