"""The document that `laggard diagnose` makes (`laggard.diagnosis/1`)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from laggard.model import Finding, Fix, Verdict

DIAGNOSIS_SCHEMA: Final = "laggard.diagnosis/1"


class LeftLine(msgspec.Struct, frozen=True):
    """A line that says of itself that something failed, and that no reader took."""

    line: int | None
    """Counts from 1: within the file, or within the part where that is not lines of the file in a row. None: a part of
    the file was not read."""
    text: str
    who: str = ""
    """The host, pod, rank or device that is named nearest, as the text spells it; empty: none is."""
    reason: str = ""
    """What the text itself gives as the reason or the solution, near the line."""
    fix: Fix | None = None
    """What mends failures of the kind that the line's words tell of; None: they tell of none."""


class FileResult(msgspec.Struct, frozen=True):
    """One file of a diagnosis, or one part of a file: what one prompt, member or machine gave."""

    path: str
    kind: str | None
    """The names of its readers; None where no reader took it."""
    unknown: str = ""
    """The parts that could not be judged, and why; empty: everything was judged."""
    first_line: int | None = None
    """The line of the file with which the part begins; None: it is a file, or not lines in a row."""
    left: tuple[LeftLine, ...] = ()
    """The lines that say that something failed and that no reader took, the gravest first; a few of `left_count`."""
    left_count: int = 0


class TimelineLine(msgspec.Struct, frozen=True):
    """A line of a file that tells how a job ended."""

    role: str
    """`first`: it tells the first cause; `shows`: it supports that; `then`: it followed."""
    path: str
    line: int | None
    """Counts from 1; None: it is not known, since what stands before it was not read."""
    text: str
    at: str | None = None
    """The time by the clock of its host, in whatever zone that is; None: the line has none."""
    host: str | None = None
    ranks: tuple[int, ...] = ()


class JoinedAnswer(msgspec.Struct, frozen=True):
    """What all files together say. The first of the diagnosis' findings has its code and what to do."""

    answer: str
    order: str
    """`time`: clocks say that it was first; `cause`: clocks do not, and what can be the cause of what does."""
    timeline: tuple[TimelineLine, ...]
    host: str | None = None
    ranks: tuple[int, ...] = ()
    """The ranks that were first; empty: it is no rank's, or not known whose."""
    silent_files: tuple[str, ...] = ()
    """Files that were read and in which nothing is wrong."""


class Diagnosis(msgspec.Struct, frozen=True):
    verdict: Verdict
    files: tuple[FileResult, ...]
    findings: tuple[Finding, ...]
    facts: dict[str, Any]
    schema: str = DIAGNOSIS_SCHEMA
    joined: JoinedAnswer | None = None
    """The one answer of several files; None: there is one file, or they say nothing of a job's end."""
    notes: tuple[str, ...] = ()
    """The files of folders that were not read, and why."""
