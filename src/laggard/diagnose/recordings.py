"""laggard's own recordings and PyTorch's Flight Recorder dumps among the files of a job, judged as `laggard locate`
judges them: all of one kind together. No pickle is executed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from laggard.diagnose.file_format import ACCUSED
from laggard.diagnose.folder import GivenFile
from laggard.errors import UsageError
from laggard.locate.describe import advice_lines, culprit_text, sentence
from laggard.model import Culprit, Finding, Location, Severity, Verdict
from laggard.probes.probe import finding
from laggard.text.words import ranks_text

_KINDS: Final = ("laggard recording", "Flight Recorder dump")
"""The kinds of recordings that are judged here."""
_CODES: Final = {"hung": "JOB_COLLECTIVE_TIMEOUT", "dead": "JOB_KILLED"}
_FIRST: Final = (b"{", b"\x80", b"\x1f")
_HEAD: Final = b'{"laggard_recording"'
_WRONG: Final = ("deadlock", "mismatch")
_ADVICE: Final = "`laggard locate --trace FOLDER` tells more, and --html keeps it as a page."


class Recording(NamedTuple):
    """The files of one kind, with what they say. `unknown`: why they say nothing."""

    kind: str
    files: tuple[GivenFile, ...]
    findings: tuple[Finding, ...]
    unknown: str = ""


def split_recordings(given: Iterable[GivenFile]) -> tuple[list[GivenFile], dict[str, list[GivenFile]]]:
    """Returns the files that are no recordings, and those that are, by kind."""
    others: list[GivenFile] = []
    by_kind: dict[str, list[GivenFile]] = {}
    for each in given:
        kind = _kind(each.file.path)
        if kind in _KINDS:
            by_kind.setdefault(kind, []).append(each)
        else:
            others.append(each)
    return others, by_kind


def judge_recordings(by_kind: dict[str, list[GivenFile]]) -> list[Recording]:
    return [_judge(kind, files) for kind, files in by_kind.items()]


def _kind(path: str) -> str:
    """The kind of recording; empty of most files, of which the first bytes alone are read."""
    first = b"" if path == "-" or not os.path.isfile(path) else _first_bytes(path)
    if not first or first[:1] not in _FIRST:
        return ""
    try:
        from laggard.recording.kinds import kind_of
    except ImportError:  # numpy, which comes with laggard[locate]
        return _KINDS[0] if first.startswith(_HEAD) else ""
    try:
        kind = kind_of(Path(path))
    except OSError:
        return ""
    return kind.value if kind else ""


def _first_bytes(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            return file.read(len(_HEAD))
    except OSError:
        return b""


def _judge(kind: str, files: Sequence[GivenFile]) -> Recording:
    try:
        from laggard.recording.judged import judge_recording  # needs arrays, which nothing else here does

        location = judge_recording([each.file.path for each in files]).location
    except ImportError:
        return Recording(kind, tuple(files), (), "it is judged where numpy is: `pip install 'laggard[locate]'`")
    except UsageError as error:
        return Recording(kind, tuple(files), (), str(error))
    found = tuple(_finding(culprit, location) for culprit in location.culprits)
    if not found and any(note.kind in _WRONG for note in location.notes):
        found = (_without_culprit(location),)
    unknown = sentence(location) if location.verdict is Verdict.UNKNOWN and not found else ""
    return Recording(kind, tuple(files), found, unknown)


def _finding(culprit: Culprit, location: Location) -> Finding:
    name, _, condition = culprit_text(culprit).partition(" is ")
    ends = culprit.kind in _CODES
    subject = _subject(culprit) if ends else name
    told = culprit_text(culprit)
    return finding(
        _CODES.get(culprit.kind, "RANK_LATE"),
        subject,
        told.removeprefix(subject).strip() or condition,
        evidence={
            "line": sentence(location),
            "host": culprit.node,
            ACCUSED: list(culprit.ranks),
            "waiting": list(culprit.victims[:64]),
            "confidence": culprit.confidence,
        },
        fix=culprit.advice or next(iter(advice_lines(location)), _ADVICE),
        commands=("laggard locate --trace FOLDER",),
        severity=Severity.CRITICAL if ends else Severity.WARNING,
    )


def _subject(culprit: Culprit) -> str:
    place = f" on {culprit.node}" if culprit.node else ""
    return (ranks_text(culprit.ranks) or "a rank") + place


def _without_culprit(location: Location) -> Finding:
    note = next(note for note in location.notes if note.kind in _WRONG)
    says, _, fix = note.text.partition("; what to do: ")
    subject = ranks_text(note.ranks) or "the job"
    return finding(
        "JOB_COLLECTIVE_TIMEOUT",
        subject,
        says.removeprefix(subject).strip(),
        evidence={"line": sentence(location), ACCUSED: list(note.ranks)},
        fix=f"{fix[:1].upper()}{fix[1:].rstrip('.')}. {_ADVICE}" if fix else _ADVICE,
        commands=("laggard locate --trace FOLDER",),
        severity=Severity.CRITICAL,
    )
