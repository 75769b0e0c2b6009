"""The records of a kernel's log: lines that belong together are joined, and each has its host and time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from laggard.diagnose.kernel.lines import KERNEL, LogLine, is_bare, read_line

FILE_SYSTEM_CLIENTS: Final = ("mmfs", "beegfs")
PROGRAMS: Final = frozenset((KERNEL, *FILE_SYSTEM_CLIENTS))
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
    for line in (line for piece in pieces for line in piece.split("\n")):
        if not line.strip():
            continue
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
