"""What torch's watchdogs say of collectives, of each rank in each process group."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from laggard.diagnose.job import lines
from laggard.diagnose.job.events import Group, WorkStatus
from laggard.diagnose.job.of_lines import group_of
from laggard.diagnose.rules import table

_STATUS = table("job").of("work_status")[0].regex
_TIMED_OUT = re.compile(r"\[Rank (\d{1,7})\] Watchdog caught .*?WorkNCCL\((?:SeqNum=(\d+), )?OpType=(\w+)")
_NO_GROUP: Final = Group()
_MAX_STATUSES: Final = 1 << 15


class _Process(NamedTuple):
    """A process, by the heads of its lines and its number within a group."""

    stream: tuple[object, ...]
    number: int


class Statuses:
    def __init__(self) -> None:
        self._kept: dict[tuple[Group, _Process], WorkStatus] = {}

    def all(self) -> tuple[WorkStatus, ...]:
        return tuple(self._kept.values())

    def latest(self) -> object:
        """Changes with each line that says anything."""
        return tuple(self._kept.items())[-1:]

    def note(self, line: lines.JobLine) -> None:
        """Of the two numbers in `[rank218]: [PG ID 6 PG GUID 623(PIPELINE) Rank 13]` the one in front is the rank in
        the job, the other that within the group."""
        text = line.text
        if len(self._kept) >= _MAX_STATUSES:
            return
        if "last enqueued" in text and (match := _STATUS.search(text)):
            group, number = group_of(match[1]), int(match[2])
            process = _Process(line.stream, number)
            before = self._kept.pop((_NO_GROUP, process), None) or self._kept.get((group, process))
            timed_out = int(match[3]) if match[3] else before.timed_out if before else None
            op = before.op if before and before.timed_out in (None, timed_out) else ""
            rank = number if line.rank is None and group.is_default else line.rank
            status = WorkStatus(group, rank, number, timed_out, op, int(match[4]), int(match[5]))
            self._kept[group, process] = status
        elif "Watchdog caught" in text and (match := _TIMED_OUT.search(text)):
            process, work = _Process(line.stream, int(match[1])), int(match[2]) if match[2] else None
            if not any(status.timed_out == work for status in self._of_process(process)):
                status = WorkStatus(_NO_GROUP, line.rank, process.number, work, match[3])
                self._kept[_NO_GROUP, process] = status

    def _of_process(self, process: _Process) -> Iterator[WorkStatus]:
        return (status for (_, other), status in list(self._kept.items())[-64:] if other == process)
