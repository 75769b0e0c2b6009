"""Moments as people write them: `7d`, or a date."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from laggard.errors import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def moment_of(text: str, now: float) -> float:
    """The Unix time that --since names. Raises UsageError."""
    span = re.fullmatch(r"(\d{1,9})([smhdw])", text)
    if span:
        return now - int(span[1]) * _UNITS[span[2]]
    try:
        found = datetime.fromisoformat(text.removesuffix("Z"))
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"--since {text} is no time: write 90m, 12h, 7d, 2026-11-23 or 2026-11-23T04:00") from None
