"""What is remembered of the kernel's log, so that a flood of lines washes nothing away that was seen. Pure.

The kernel's buffer is small, and any user can fill it. A process that looks at it again and again keeps the drivers'
records, and knows from which moment on it has missed none: records are numbered without a gap.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from laggard.probes.host.user_text import begins_with_users_text
from laggard.text.lazy_pattern import lazy_pattern

MAX_RECORDS: Final = 4096
"""The largest number of records that are kept. Where there are more, the oldest go, and the memory begins later."""

_MAX_CHARACTERS: Final = 1024
_RECORD: Final = lazy_pattern(r"\d+,(\d+),(\d+),[^;]*;(.*)")
_FIRST_LINE: Final = lazy_pattern(r"(?:<\d+>)?\[\s*(\d+\.\d+)\]")
_DRIVERS: Final = ("NVRM: ", "nvidia-nvswitch", "mlx5_core ", "amdgpu ", "[drm:amdgpu", "[drm] amdgpu ")
"""The beginnings of the records that the probes judge."""


class LogMemory(NamedTuple):
    """`since`: the seconds after boot from which on no record was missed; None: not known. `last`: the number of the
    newest record that was seen; -1: none was. `records`: those of the drivers, as (number, line of /dev/kmsg)."""

    since: float | None = None
    last: int = -1
    records: tuple[tuple[int, str], ...] = ()


def remember(memory: LogMemory, log: str) -> LogMemory:
    """Returns the memory after a look at the log, in any form; only that of /dev/kmsg is kept, which has numbers."""
    lines = [(found, line) for line in log.split("\n") if (found := _RECORD.match(line))]
    if not lines:
        return memory._replace(since=_first_time(log))
    first = int(lines[0][0][1])
    seamless = memory.last >= 0 and first <= memory.last + 1
    begins = memory.since if seamless else 0.0 if first == 0 else int(lines[0][0][2]) / 1e6
    new = [
        (int(found[1]), line[:_MAX_CHARACTERS])
        for found, line in lines
        if found[3].startswith(_DRIVERS) and int(found[1]) > memory.last and not begins_with_users_text(found[3])
    ]  # a process named `NVRM: x` that crashes again and again pushes nothing out
    records = (*memory.records, *new)
    if len(records) > MAX_RECORDS:
        records = records[-MAX_RECORDS:]
        begins = max(begins or 0.0, _seconds(records[0][1]))
    return LogMemory(begins, max(memory.last, int(lines[-1][0][1])), records)


def with_memory(memory: LogMemory, log: str) -> str:
    """Returns the log with the kept records before it that are no longer in it."""
    first = next((int(found[1]) for line in log.split("\n") if (found := _RECORD.match(line))), None)
    kept = [line for number, line in memory.records if first is not None and number < first]
    return "".join(f"{line}\n" for line in kept) + log


def _seconds(line: str) -> float:
    found = _RECORD.match(line)
    return int(found[2]) / 1e6 if found else 0.0


def _first_time(log: str) -> float | None:
    return next((float(found[1]) for line in log.split("\n") if (found := _FIRST_LINE.match(line))), None)
