"""The events that lines of a job's output can tell about the job's end, as values. A rule is the form of such a line,
with its code, weight and kind.

A pattern begins where the line does, after the heads of launchers and loggers.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from laggard.diagnose.entities import Entity
from laggard.diagnose.rules import table


class Weight(enum.IntEnum):
    """The weight of a line as evidence of the cause. A lighter event is a consequence of a heavier one."""

    WARNED = -1
    """A warning that alone is no failure: where one of its code comes after it, it is the reason."""
    SUMMARY = 0
    """A launcher's account, and what a process reports when its peers are gone."""
    STOPPED = 1
    """Somebody stopped the job."""
    WAITED = 2
    """A collective or a transfer did not end: whoever reports it is, most often, a victim."""
    DIED = 3
    """A signal ended the process. Launchers report it late, and the peers' complaints come before."""
    FAILED = 4
    """A process says why it failed."""


class Place(NamedTuple):
    """The position of an event in the input."""

    file: int
    offset: int
    seconds: float | None = None
    dated: bool = False
    progress: int = 0
    """The number of lines with a loss or a speed before it in its file."""


class Writer(NamedTuple):
    """The process that wrote a line, as far as the line says."""

    rank: int | None = None
    task: int | None = None
    local_rank: int | None = None
    host: str | None = None


class Event(NamedTuple):
    code: str
    kind: str
    """The exact kind of failure, which chooses the advice."""
    weight: Weight
    summary: str
    """Continues a sentence: `CUDA out of memory: ...`."""
    line: str
    place: Place
    writer: Writer = Writer()
    where: str = ""
    """The line of code that failed: `train.py line 88`."""
    accused: tuple[int, ...] = ()
    """The ranks that the line itself names as those at fault, whoever wrote it."""
    named: tuple[Entity, ...] = ()
    """Who and what the lines around it name."""
    next_rank: int | None = None
    """The rank that fails in the next lines: where nothing else names the writer, it is that one's."""
    more: str = ""
    """The lines with which its message goes on."""
    is_within: bool = False
    """True of an exception that a library raised, in a call of the program at `where`."""


class Group(NamedTuple):
    """A process group as torch's watchdog names it. Many groups share a name, as those of a job's pipelines do: `guid`
    tells them apart. Both are empty where a line names none."""

    name: str = ""
    guid: str = ""

    @property
    def is_default(self) -> bool:
        """True of the group of all ranks, in which a rank's number is that in the job."""
        return self.name == "default_pg" or (self.name == "PG 0" and self.guid in ("", "0"))


class WorkStatus(NamedTuple):
    """The statement of torch's watchdog about one rank's collectives in one process group. `rank`: in the job; None
    where the line has only `number`, the rank within the group."""

    group: Group
    rank: int | None
    number: int
    timed_out: int | None = None
    op: str = ""
    enqueued: int | None = None
    completed: int | None = None


class JobEvidence(NamedTuple):
    """The evidence that the files of one job hold; without arguments, that of files that no job wrote."""

    events: tuple[Event, ...] = ()
    statuses: tuple[WorkStatus, ...] = ()
    ranks_seen: frozenset[int] = frozenset()
    world_size: int | None = None
    progress: tuple[int, ...] = ()
    """The number of lines with a loss or a speed, for each file."""
    nan: Event | None = None
    """The first line whose loss is NaN."""
    dropped: int = 0
    """The number of events that were left out, because a process repeated itself or there were more than are kept."""
    warned: tuple[Event, ...] = ()
    """Warnings that may be the reason of a failure: they are none by themselves."""
    settings: Mapping[str, str] = MappingProxyType({})
    """The values of variables that the text tells, each as it was told first."""
    said: tuple[Event, ...] = ()
    """Lines that no rule takes and that say by themselves that something failed: of an end without a reason they are
    the reason."""


MAX_EVENTS: Final = 20_000
"""The largest number of events that are kept of one job. A process that repeats itself is counted, not kept."""


EXCEPTION_NAME: Final = table("job").macros["EXCEPTION"]


class Rule(NamedTuple):
    code: str
    kind: str
    weight: Weight
    pattern: re.Pattern[str]
    summary: str
    """A text with `{0}`, `{1}` for the pattern's groups."""
