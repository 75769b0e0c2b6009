"""The lines of kernel logs as records: the heads that stand before a message, the times in them, and which lines
belong together.

Heads are those of dmesg (plain, -T, -H, -d, -x, -r, iso), journalctl (short, short-iso, short-precise, short-monotonic,
short-full, json), syslog, /dev/kmsg, pstore, netconsole and consoles. Times are compared with those of the same log
only: by their differences.

Sources: dmesg(1) of util-linux, sys-utils/dmesg.c; journalctl(1) of systemd, logs-show.c; Documentation/ABI/testing/
dev-kmsg and Documentation/networking/netconsole of Linux.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from laggard.diagnose.rules import patterns

_P: Final = patterns("kernel_forms")

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAYS_BEFORE: Final = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_YEAR_DAYS: Final = 366
_DAY_SECONDS: Final = 86400.0


def wall_seconds(text: str) -> float | None:
    """Returns a date's time in seconds: `Jun 11 13:14:15`, `Wed Jun 11 13:14:15 2025`, `Apr18 20:20`,
    `2025-06-11T13:14:15,123456+00:00`. Zones are left out, a year that is not told is zero; None: it is no date."""
    if found := _P["numbered"].search(text):
        year, month, day, hour, minute, second = found.groups()
        return _seconds(int(year), int(month), int(day), int(hour), int(minute), float(second.replace(",", ".")))
    if (found := _P["named"].search(text)) and found[1] in _MONTHS:
        _, day, hour, minute, second, year = found.groups()
        month = _MONTHS.index(found[1]) + 1
        return _seconds(int(year or 0), month, int(day), int(hour), int(minute), float(second or 0))
    return None


def _seconds(year: int, month: int, day: int, hour: int, minute: int, second: float) -> float:
    days = year * _YEAR_DAYS + _DAYS_BEFORE[(month - 1) % len(_MONTHS)] + day
    return days * _DAY_SECONDS + hour * 3600 + minute * 60 + second


KERNEL: Final = "kernel"
_LEVELS: Final = {
    **{"emerg": 0, "alert": 1, "crit": 2, "err": 3, "warn": 4, "notice": 5, "info": 6, "debug": 7},
    **{"critical": 2, "error": 3, "warning": 4},
}
_MAX_LINE_CHARACTERS: Final = 2048

_DECODED = re.compile(r"(?:[a-z]+ *:|kern: )([a-z]+) *: ")  # dmesg -x; Talos, with a blank
_FOUND_IN = re.compile(r"(?:/[^\s:]{1,200}|[\w.-]{1,80}\.log[\w.-]{0,20}):(?:\d{1,9}:)?(?=[A-Z\[\d<])")  # grep
_FROM_HOST = re.compile(r"([\w.-]{1,64}): (?=kern *:|\[ *[\d+A-Z]|[A-Z][a-z]{2} [ \d]\d \d\d:|\d{4}-\d\d-\d\d)")  # pdsh
_GPFS_LEVELS: Final = {"X": 2, "E": 3, "W": 4, "N": 5, "I": 6}
_BEEGFS_LEVELS: Final = {"0": 2, "1": 3, "2": 4, "3": 5}


class LogLine(NamedTuple):
    """One line without its head. `seconds` counts from any moment; None: it has no time. `since_last`: the seconds
    count from the line before (dmesg -H). `level`: 0 to 7 as in syslog(3); None: not told."""

    text: str
    seconds: float | None = None
    host: str = ""
    level: int | None = None
    program: str = KERNEL
    since_last: bool = False
    is_kmsg: bool = False


def read_line(line: str) -> LogLine | None:
    """Reads a line of a log; None where it has no head: it goes on with the record before."""
    line = line[:_MAX_LINE_CHARACTERS]
    if "\x1b" in line:
        line = _P["colour"].sub("", line)
    if line.startswith("{"):
        return _of_journal(line)
    if found := _P["kmsg"].match(line):
        text = _P["escaped"].sub(lambda each: chr(int(each[1], 16)).replace("\n", " "), found[3])
        return LogLine(text, int(found[2]) / 1e6, "", int(found[1]) & 7, is_kmsg=True)
    if found := _P["gpfs"].match(line):
        return LogLine(line[found.end() :], wall_seconds(found[1]), "", _GPFS_LEVELS.get(found[2]), "mmfs")
    if found := _P["beegfs"].match(line):
        return LogLine(line[found.end() :], wall_seconds(found[2]), "", _BEEGFS_LEVELS.get(found[1]), "beegfs")
    return _of_text(line)


def is_bare(line: str) -> bool:
    """Whether a line without a head begins as messages of the kernel do (`journalctl -o cat`, a few copied lines)."""
    return bool(_P["bare"].match(line))


def _of_text(line: str) -> LogLine | None:
    line = line[found.end() :] if (found := _FOUND_IN.match(line)) else line
    host, level, rest = "", None, line
    if found := _FROM_HOST.match(rest):
        host, rest = found[1], rest[found.end() :]
    if (found := _DECODED.match(rest)) and found[1] in _LEVELS:
        level, rest = _LEVELS[found[1]], rest[found.end() :]
    elif found := _P["raw"].match(rest):
        level, rest = int(found[1]) & 7, rest[found.end() :]
    if found := _P["bracket"].match(rest):
        return _of_bracket(found[1].strip(), rest[found.end() :], host, level)
    if found := _P["iso_of_dmesg"].match(rest):
        return LogLine(rest[found.end() :], wall_seconds(found[1]), host, level)
    if found := _P["date"].match(rest):
        return _of_date(found[1], rest[found.end() :], host, level)
    return LogLine(rest, None, host, level) if level is not None else None


def _of_bracket(time: str, rest: str, host: str, level: int | None) -> LogLine:
    since_last = time.startswith("+")
    seconds = wall_seconds(time) if time[:1].isalpha() or "T" in time else float(time)
    if found := _P["kernel_sender"].match(rest):  # journalctl -o short-monotonic
        host, rest = found[1], rest[found.end() :]
    return LogLine(_without_caller(rest), seconds, host, level, since_last=since_last)


def _of_date(date: str, rest: str, host: str, level: int | None) -> LogLine | None:
    seconds = wall_seconds(date) if not date[:9].isdigit() else float(date)
    if rest.startswith(f"{KERNEL}: "):  # journalctl --no-hostname
        program, text = KERNEL, rest[len(KERNEL) + 2 :]
    elif found := _P["sent_by"].match(rest):  # netconsole
        host, program, text = found[1], KERNEL, rest[found.end() :]
    elif found := _P["sender"].match(rest):
        host, program, text = found[1], found[2], rest[found.end() :]
    elif _P["raw"].match(rest) or _P["bracket"].match(rest):
        program, text = KERNEL, rest
    else:
        return None
    if program != KERNEL:
        return LogLine(text, seconds, host, level, program)
    if found := _P["raw"].match(text):
        level, text = int(found[1]) & 7, text[found.end() :]
    if found := _P["repeated"].match(text):
        text = found[1]
    if found := _P["bracket"].match(text):
        text = text[found.end() :]
    return LogLine(_without_caller(text), seconds, host, level)


def _without_caller(text: str) -> str:
    return text[found.end() :] if (found := _P["caller"].match(text)) else text


def _of_journal(line: str) -> LogLine | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or "MESSAGE" not in entry:
        return None
    message: Any = entry["MESSAGE"]
    if isinstance(message, list):  # bytes that are no UTF-8
        message = bytes(each for each in message if isinstance(each, int) and 0 <= each < 256).decode(errors="replace")
    realtime, priority = str(entry.get("__REALTIME_TIMESTAMP", "")), str(entry.get("PRIORITY", ""))
    program = KERNEL if entry.get("_TRANSPORT") == KERNEL else str(entry.get("SYSLOG_IDENTIFIER", ""))
    return LogLine(
        " ".join(str(message).split("\n"))[:_MAX_LINE_CHARACTERS],
        int(realtime) / 1e6 if realtime.isdecimal() and len(realtime) < 20 else None,
        str(entry.get("_HOSTNAME", ""))[:80],
        int(priority) if priority in tuple("01234567") else None,
        program,
    )


OTHER_PROGRAMS: Final = ("mmfs", "beegfs", "systemd-networkd")
PROGRAMS: Final = frozenset((KERNEL, *OTHER_PROGRAMS))
"""The programs whose messages are judged; others may quote the kernel."""
_MAX_JOINED_LINES: Final = 16
_MAX_RECORD_CHARACTERS: Final = 2048
_DRIVER: Final = "NVRM: "
_OPENERS: Final = ("NVRM: API mismatch", "NVRM: The NVIDIA GPU ", "NVRM: This PCI I/O region")
"""The beginnings of the driver's messages of several lines. Syslog writes each line with a head of its own."""


def read_records(pieces: Iterable[str]) -> Iterator[LogLine]:
    """Yields the records of PROGRAMS in order. A line without a head that is indented goes on with the record before;
    one that is not stands for itself, with the time of that record."""
    record: LogLine | None = None
    joined = 0
    clock: float | None = None
    indent: int | None = None
    for line in (line for piece in pieces for line in piece.split("\n")):
        if not line.strip():
            continue
        if indent is None:
            indent = indent_of(line)
        line = line[indent:] if line[:indent].isspace() else line
        found = read_line(line.rstrip("\r"))
        if found is not None and found.since_last:
            found = found._replace(seconds=(clock or 0.0) + (found.seconds or 0.0))
        more = _continuation(line, found, record) if record is not None and joined < _MAX_JOINED_LINES else None
        if record is not None and more is not None:
            record, joined = _longer(record, more), joined + 1
            continue
        if record is not None and record.program in PROGRAMS:
            yield record
        joined = 0
        record = found if found is not None else _without_head(line, record)
        clock = record.seconds if record.seconds is not None else clock
    if record is not None and record.program in PROGRAMS:
        yield record


def indent_of(line: str) -> int:
    """The blanks before a whole paste, as they stand before its first line, where that has a head behind them."""
    return len(line) - len(line.lstrip(" ")) if read_line(line.lstrip(" ")) is not None else 0


def _continuation(line: str, found: LogLine | None, record: LogLine) -> str | None:
    """Returns what the line adds to the record; None where it begins another."""
    if found is None:
        if not line[:1].isspace():
            return None
        return "" if record.is_kmsg else line.strip()  # below a record of /dev/kmsg stand its properties
    begun = record.text.startswith(_OPENERS) and not record.text.endswith(".")
    if begun and found.text.startswith(_DRIVER) and not found.text.startswith(_OPENERS) and found.host == record.host:
        return found.text
    return None


def _longer(record: LogLine, more: str) -> LogLine:
    return record._replace(text=f"{record.text.rstrip()} {more}"[:_MAX_RECORD_CHARACTERS]) if more else record


def _without_head(line: str, before: LogLine | None) -> LogLine:
    if before is None or is_bare(line):
        return LogLine(line.strip(), before.seconds if before else None, before.host if before else "")
    return before._replace(text=line.strip(), level=None)
