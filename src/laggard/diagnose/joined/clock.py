"""The wall clock of a line of any log. Hosts' clocks may stand in other zones, or jump: what they say is compared with
care."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Final

MAX_APART_SECONDS: Final = 26 * 3600.0
"""The longest time between a cause and its consequence, with the largest difference of two time zones: what lies
farther apart has nothing to do with it."""
_EPOCH: Final = datetime(1970, 1, 1)
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_NUMBERED = re.compile(r"(20\d\d)[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)")
_NAMED = re.compile(r"\b([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.\d+)?(?: (20\d\d))?")
_GLOG = re.compile(r"\[?[EWIFC](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.\d")
_JOURNAL = re.compile(r'"__REALTIME_TIMESTAMP" ?: ?"(\d{10,16})\d{6}"')


def wall_time(line: str, year: int | None = None) -> float | None:
    """Returns the first time of a line as seconds since 1970, in whatever zone it is. `year`: where the line tells
    none. None: it has no time, or none of a wall clock."""
    head = line[:400]
    if found := _JOURNAL.search(line[:4000]):
        return float(found[1])
    if found := _NUMBERED.search(head):
        return _seconds(*map(int, found.groups()))
    if (found := _NAMED.search(head)) and found[1] in _MONTHS and (found[6] or year):
        day = _MONTHS.index(found[1]) + 1, int(found[2])
        return _seconds(int(found[6] or year or 0), *day, int(found[3]), int(found[4]), int(found[5]))
    if (found := _GLOG.search(head)) and year:
        return _seconds(year, *map(int, found.groups()))
    return None


def year_of(seconds: float) -> int:
    return datetime.fromtimestamp(seconds, timezone.utc).year


def is_near(one: float | None, other: float | None) -> bool:
    """Whether one can be the cause of the other; True where a time is not known."""
    return one is None or other is None or abs(one - other) <= MAX_APART_SECONDS


def time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _seconds(year: int, month: int, day: int, hour: int, minute: int, second: int) -> float | None:
    try:
        return (datetime(year, month, day, hour, minute, second) - _EPOCH).total_seconds()
    except ValueError:
        return None
