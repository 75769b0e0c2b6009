"""Times of log lines as seconds, which are compared with those of the same log only: by their differences."""

from __future__ import annotations

import re
from typing import Final

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAYS_BEFORE: Final = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_YEAR_DAYS: Final = 366
_DAY_SECONDS: Final = 86400.0
_NAMED = re.compile(r"([A-Z][a-z]{2}) ?([ \d]?\d) (\d\d):(\d\d)(?::(\d\d(?:\.\d+)?))?(?: (\d{4}))?")
_NUMBERED = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d(?:[.,]\d+)?)")


def wall_seconds(text: str) -> float | None:
    """Returns a date's time in seconds: `Jun 11 13:14:15`, `Wed Jun 11 13:14:15 2025`, `Apr18 20:20`,
    `2025-06-11T13:14:15,123456+00:00`. Zones are left out, a year that is not told is zero; None: it is no date."""
    if found := _NUMBERED.search(text):
        year, month, day, hour, minute, second = found.groups()
        return _seconds(int(year), int(month), int(day), int(hour), int(minute), float(second.replace(",", ".")))
    if (found := _NAMED.search(text)) and found[1] in _MONTHS:
        _, day, hour, minute, second, year = found.groups()
        month = _MONTHS.index(found[1]) + 1
        return _seconds(int(year or 0), month, int(day), int(hour), int(minute), float(second or 0))
    return None


def _seconds(year: int, month: int, day: int, hour: int, minute: int, second: float) -> float:
    days = year * _YEAR_DAYS + _DAYS_BEFORE[(month - 1) % len(_MONTHS)] + day
    return days * _DAY_SECONDS + hour * 3600 + minute * 60 + second
