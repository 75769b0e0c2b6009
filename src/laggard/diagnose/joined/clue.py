"""What the joiner takes and gives, as values."""

from __future__ import annotations

import enum
from typing import NamedTuple

from laggard.diagnose.job.events import Event
from laggard.diagnose.joined.exhibit import Origin


class JobFile(NamedTuple):
    """One file that a job wrote. `twins`: the origins of files with the same content."""

    path: str
    origin: Origin = Origin()
    twins: tuple[Origin, ...] = ()
    holds_stacks: bool = False
    """True: its last line is the outermost frame of a stack, and says nothing of where the process stood at its end."""


class Fault(NamedTuple):
    """A finding about a host, or about ranks, that may stand before a job's failure."""

    code: str
    device: str
    summary: str
    critical: bool
    path: str
    host: str | None = None
    quote: str = ""
    """The line of the file that says so, without its head; empty: it is not known."""
    seconds: float | None = None
    """The wall clock of that line; None: it has none."""
    fix: str = ""
    commands: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    """The ranks that it accuses: of a recording, of RAS' report."""
    direct: bool = False
    """True: somebody looked at the process itself while it hung."""
    offset: int = 0
    """The place in the file, in characters, from which on the line is looked for."""
    left: bool = False
    """True: the rank ended by itself, without an error, and before the others."""


class Role(enum.Enum):
    FIRST = "first"
    """It says what came first."""
    SHOWS = "shows"
    """It supports that."""
    THEN = "then"
    """It followed."""


class Clue(NamedTuple):
    """A line that is shown, to be looked up in its file: `quote` from `offset` on, in characters; or its last line."""

    role: Role
    path: str
    quote: str = ""
    offset: int = 0
    seconds: float | None = None
    host: str | None = None
    ranks: tuple[int, ...] = ()
    is_last_line: bool = False

    @classmethod
    def of_event(cls, role: Role, event: Event, path: str) -> Clue:
        place, writer = event.place, event.writer
        seconds = place.seconds if place.dated else None
        ranks = () if writer.rank is None else (writer.rank,)
        return cls(role, path, event.line, place.offset, seconds, writer.host, ranks)

    @classmethod
    def of_fault(cls, role: Role, fault: Fault) -> Clue:
        return cls(role, fault.path, fault.quote, fault.offset, fault.seconds, fault.host, fault.ranks)


class First(NamedTuple):
    """The answer. `subject` and `says` make a sentence: `rank 3 on n2`, `was killed by ...`."""

    code: str
    subject: str
    says: str
    fix: str
    commands: tuple[str, ...]
    clues: tuple[Clue, ...]
    host: str | None = None
    ranks: tuple[int, ...] = ()
    by_cause: bool = False
    """True where causes, and not clocks, put it before the others."""
