"""The ends of processes, as launchers report them: torchrun, srun, mpirun, DeepSpeed, accelerate, Kubernetes,
shells."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from laggard.diagnose.job import lines
from laggard.diagnose.job.events import Event, Group, Place, Weight, WorkStatus, Writer
from laggard.diagnose.job.lines import JobLine
from laggard.diagnose.job.of_lines import group_of
from laggard.diagnose.job.rules import EXIT_LINES
from laggard.diagnose.rules import table

_WORDS: Final = {row.pattern: signal.Signals[row.says] for row in table("job").of("signal")}
_STARVED: Final = "Out Of Memory"
_MARKS: Final = ("xit", "ignal", "srun: error", "return code", "with code ", "EXIT CODE", "SIGNAL: ")
"""The words of which each of the forms has one."""
_CRASHES: Final = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_BELOW_NAMES: Final = ("exit code:", "killed by signal:")
_MAX_LINES_ABOVE: Final = 3
_BOX_RANK = re.compile(r"\s*rank\s*: (\d+) \(local_rank: (\d+)\)")
_BOX_HOST = re.compile(r"\s*host\s*: (\S+)")
_BOX_ROW = re.compile(r"\s*\[\d+\]:\s*$")
_BOX_TIME = re.compile(r"\s*time\s*: (\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)")
_NAMED_ABOVE: Final = tuple(row.regex for row in table("job").of("named_above"))
"""Lines of mpirun that name the process whose exit code the next lines tell."""
_EXITED = re.compile(r"Exited with exit code (\d+)")


def read_exit(line: JobLine, place: Place, lines_before: Callable[[], Sequence[JobLine]]) -> Event | None:
    """Returns what the line reports of a process that ended; None for other lines, and for ends without fault."""
    if not any(mark in line.text for mark in _MARKS):
        return None
    text = line.text.strip()
    tried = (text, line.logged) if line.logged else (text,)
    match = next((found for each in tried for pattern in EXIT_LINES if (found := pattern.match(each))), None)
    if match is None:
        return None
    fields = {name: value for name, value in match.groupdict().items() if value}
    number, status = _signal_and_status(fields)
    starved = fields.get("words", "").startswith(_STARVED)
    if number is None and status in (None, 0) and not starved:
        return None
    if text.lstrip("= ").lower().startswith(_BELOW_NAMES):
        fields |= _named_above(lines_before())
    tasks = fields.get("tasks", "")
    writer = Writer(
        rank=int(fields["rank"]) if "rank" in fields else line.rank,
        task=int(tasks) if tasks.isdigit() else None,
        local_rank=int(fields["local_rank"]) if "local_rank" in fields else line.local_rank,
        host=fields.get("host", line.host),
    )
    first = not tasks or tasks.isdigit()  # one that died by itself; many at once were ended by their launcher
    if text.startswith("exitcode"):
        writer, place, first = _read_box(lines_before(), writer, place)
    if starved:
        summary = "the kernel killed the task for want of host memory"
        return Event("JOB_HOST_OUT_OF_MEMORY", "host_memory", Weight.FAILED, summary, text, place, writer)
    code, kind, weight, summary = _meaning(number, status)
    return Event(code, kind, weight if first else Weight.SUMMARY, summary, text, place, writer)


def _named_above(lines: Sequence[JobLine]) -> dict[str, str]:
    """The rank and the host that mpirun names above an exit code; empty: it names none."""
    found = (pattern.match(line.text) for line in lines[:_MAX_LINES_ABOVE] for pattern in _NAMED_ABOVE)
    return next((match.groupdict() for match in found if match), {})


def _signal_and_status(fields: dict[str, str]) -> tuple[int | None, int | None]:
    if "signal" in fields:
        return int(fields["signal"]), None
    if "name" in fields:
        return getattr(signal, fields["name"], None), None
    if "words" in fields:
        words = fields["words"]
        number = next((number for word, number in _WORDS.items() if words.startswith(word)), None)
        exited = _EXITED.match(words)
        return _from_status(int(exited[1])) if exited and number is None else (number, None)
    return _from_status(int(fields["status"])) if "status" in fields else (None, None)


def _from_status(status: int) -> tuple[int | None, int | None]:
    """Launchers write a signal as a negative status, shells as 128 more than its number."""
    if -65 < status < 0:
        return -status, None
    return (status - 128, None) if 128 < status < 128 + 65 else (None, status)


def _read_box(lines: Sequence[JobLine], writer: Writer, place: Place) -> tuple[Writer, Place, bool]:
    """Reads the lines above `exitcode` in torchrun's table of failures: the rank, and whether it is the first one."""
    begun = False
    for line in lines:
        if begun:
            return writer, place, line.text.startswith("Root Cause")
        if _BOX_ROW.match(line.text):
            begun = True
        elif match := _BOX_RANK.match(line.text):
            writer = writer._replace(rank=int(match[1]), local_rank=int(match[2]))
        elif match := _BOX_HOST.match(line.text):
            writer = writer._replace(host=match[1])
        elif match := _BOX_TIME.match(line.text):
            try:
                moment = datetime.strptime(match[1], "%Y-%m-%d_%H:%M:%S")
            except ValueError:
                continue
            place = place._replace(seconds=(moment - datetime(1970, 1, 1)).total_seconds(), dated=True)
    return writer, place, False


def _meaning(number: int | None, status: int | None) -> tuple[str, str, Weight, str]:
    """Code, kind, weight and words of an end."""
    if number == signal.SIGKILL:
        return "JOB_KILLED", "killed", Weight.DIED, "the process was killed by SIGKILL"
    if number in _CRASHES:
        kind = "bus_error" if number == signal.SIGBUS else "segfault"
        return "JOB_SEGFAULT", kind, Weight.DIED, f"the process crashed: {signal.Signals(number).name}"
    if number is not None:
        names = {each.value: each.name for each in signal.Signals}
        kind = "terminated" if number == signal.SIGTERM else "aborted"
        return "JOB_KILLED", kind, Weight.SUMMARY, f"the process was ended by {names.get(number, f'signal {number}')}"
    return "JOB_EXCEPTION", "status", Weight.SUMMARY, f"the process ended with exit status {status}"


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
