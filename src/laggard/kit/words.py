"""Numbers, ranks, moments and other machines' text, as people read them."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from laggard.kit.errors import UsageError

_MAX_RUNS = 4
_DIGITS = re.compile(r"\d+")


def ranks_text(ranks: Iterable[int]) -> str:
    """`rank 2`, `ranks 0-3 and 7`, `ranks 0, 2, 4, 6 and 27 more`; empty where there are none. The order and repeated
    ranks do not matter."""
    numbers = sorted(set(ranks))
    found = runs(numbers)
    words = [str(first) if first == last else f"{first}-{last}" for first, last in found[:_MAX_RUNS]]
    rest = sum(last - first + 1 for first, last in found[_MAX_RUNS:])
    if rest:
        words.append(f"{rest} more")
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {joined(words)}" if words else ""


def joined(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`; empty where there are none."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def listed(texts: Sequence[str], most: int) -> str:
    """`a, b` and what else there is as a number: `a, b, c and 4 more`."""
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """The first and last of each run of consecutive `numbers`, which ascend."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def seconds_text(value: float) -> str:
    """Two significant digits, in the unit that a reader would choose."""
    if value >= 0.0995:
        return f"{value:.2f} s" if value < 9.95 else f"{value:.0f} s"
    return f"{value * 1e3:.2g} ms" if value * 1e3 < 99.5 else f"{value * 1e3:.0f} ms"


def phase_text(name: str) -> str:
    """A phase for people: `between steps`."""
    return name.replace("_", " ")


def step_times_text(own: float, peers: float, where: str, whom: str = "its peers") -> str:
    """`101 ms a step in forward, its peers 0.26 ms`: both in the unit of the larger, so that they compare at sight."""
    larger = max(own, peers)
    scale, unit = (1.0, "s") if larger >= 1 else (1e3, "ms") if larger >= 1e-3 else (1e6, "us")
    place = where if where.startswith("between") else f"in {where}"
    return f"{_digits_text(own * scale)} {unit} a step {place}, {whom} {_digits_text(peers * scale)} {unit}"


def _digits_text(value: float) -> str:
    return f"{value:.{0 if value >= 99.95 or not value else 1 if value >= 9.995 else 2}f}"


def times_text(ratio: float) -> str:
    """`1.25 times`, `3.4 times`, `20 times`."""
    return f"{ratio:.{0 if ratio >= 9.95 else 1 if ratio >= 1.995 else 2}f} times"


def utc_text(seconds: float) -> str:
    """A moment in Unix seconds, as `2026-11-20 10:00:05 UTC`; one that no calendar here has, as the number."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f} s after 1970"


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def capital(text: str) -> str:
    """`text` as a sentence begins; a path or a name in front, as `n16` or `mpijob-worker-0`, stays as it is."""
    return text[:1].upper() + text[1:] if text.partition(" ")[0].strip(",:;.").replace("'", "").isalpha() else text


def natural(name: str) -> str:
    """Sorts names as people count: node-9 before node-10."""
    return _DIGITS.sub(lambda found: found.group()[:64].zfill(12), name)


def printable_line(text: str, limit: int | None = None) -> str:
    """`text` on one line of printable characters, at most `limit` of them. Names come from other machines: characters
    that would break the line or hide text become spaces, and several spaces one."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if limit is None else clipped(line, limit)


def clipped(text: str, limit: int) -> str:
    """`text`, or its beginning where it is longer than `limit` characters."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def visible(text: str) -> str:
    """`text` with each character that is not printable as its escape, as in `\\x1b`: different texts stay different and
    none reaches a terminal as a control code."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def ascii_line(text: str) -> str:
    """`text` as one line of printable ASCII, other characters as escapes: what a machine reports must not reach a
    terminal or a shell as control codes."""
    return "".join(character if " " <= character <= "~" else ascii(character)[1:-1] for character in text)


# Regular expressions that are compiled when they are first used. To compile those of all probes takes a tenth of a
# gate's time, and most gates use a few: there is no line in the log, or no such device.

_USED = ("match", "fullmatch", "search", "finditer", "findall", "sub", "split")


class _LazyPattern:
    """Has the methods of a pattern, once the first is asked for. A mistake in the text is told then, as re.error."""

    def __init__(self, text: str, flags: int = 0) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(self._text, self._flags)
        self.__dict__.update((each, getattr(compiled, each)) for each in _USED)
        return getattr(compiled, name)


if TYPE_CHECKING:

    def lazy_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
        """The regular expression `text`, to be used as re.compile() gives it."""
        ...

else:
    lazy_pattern = _LazyPattern


compiled: Final[Callable[[str], re.Pattern[str]]] = functools.cache(re.compile)
"""The same of a text that is known later: most logs hold the words of few rules."""

TIME_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def moment_of(text: str, now: float, flag: str = "--since") -> float:
    """The Unix time that `flag` names. Raises UsageError."""
    if (seconds := span(text)) is not None:
        return now - seconds
    try:
        found = datetime.fromisoformat(text.removesuffix("Z"))
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"{flag} {text} is no time: write 90m, 12h, 7d, 2026-11-23 or 2026-11-23T04:00") from None


def coming_moment(text: str, now: float) -> float:
    """The Unix time that --until names, which is `now` at the earliest. Raises UsageError."""
    seconds = 0.0 if text == "now" else span(text)
    if seconds is not None:
        return now + seconds
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


def span(text: str) -> float | None:
    """The seconds of `90s`, `1.5h` or `7d`; None: it is no time with a unit."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|[smhdw])", text)
    return float(found[1]) * TIME_UNITS[found[2]] if found else None
