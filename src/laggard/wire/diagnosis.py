"""The document that `laggard diagnose` makes (`laggard.diagnosis/1`)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from laggard.model import Finding, Verdict

DIAGNOSIS_SCHEMA: Final = "laggard.diagnosis/1"


class FileResult(msgspec.Struct, frozen=True):
    """One file of a diagnosis."""

    path: str
    kind: str | None
    """The name of its format; None where no format recognised it."""
    unknown: str = ""
    """The parts that could not be judged, and why; empty: everything was judged."""


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
