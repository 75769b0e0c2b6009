"""Moments as people write them: `7d`, or a date."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from laggard.errors import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def moment_of(text: str, now: float) -> float:
    """The Unix time that --since names. Raises UsageError."""
    if (span := _span(text)) is not None:
        return now - span
    try:
        found = datetime.fromisoformat(text.removesuffix("Z"))
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"--since {text} is no time: write 90m, 12h, 7d, 2026-11-23 or 2026-11-23T04:00") from None


def coming_moment(text: str, now: float) -> float:
    """The Unix time that --until names, which is `now` at the earliest. Raises UsageError."""
    span = 0 if text == "now" else _span(text)
    if span is not None:
        return now + span
    try:
        found = datetime.fromisoformat(re.sub(r"( UTC|Z)$", "+00:00", text))
        at = found.timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"--until {text} is no time: write 8h, 7d, 2026-12-01T08:00+01:00, or now") from None
    if found.tzinfo is None:
        raise UsageError(f"--until {text} has no time zone: write 2026-12-01T08:00Z for UTC, or +01:00 in place of Z")
    if at < now:
        raise UsageError(f"--until {text} is over: write a time to come, or now")
    return at


def _span(text: str) -> int | None:
    """The seconds of `90m`; None: it is no span."""
    span = re.fullmatch(r"([0-9]{1,9})([smhdw])", text)
    return int(span[1]) * _UNITS[span[2]] if span else None
