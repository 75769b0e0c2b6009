"""laggard's own recordings, Flight Recorder dumps and NCCL Inspector's logs among the files of a job: all of one kind
are judged together, as `laggard locate` judges them. No pickle is executed."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from laggard.diagnose.file_format import ACCUSED
from laggard.diagnose.folder import GivenFile
from laggard.diagnose.input_file import InputFile
from laggard.kit.errors import UsageError
from laggard.kit.words import ranks_text
from laggard.locate.describe import advice_lines, culprit_text, sentence
from laggard.model import Culprit, Finding, Location, Severity, Verdict
from laggard.probes.probe import finding

_KINDS: Final = ("laggard recording", "Flight Recorder dump", "NCCL Inspector log")
"""The kinds of recordings that are judged here."""
_CODES: Final = {"hung": "JOB_COLLECTIVE_TIMEOUT", "dead": "JOB_KILLED", "corrupt": "GPU_WRONG_RESULT"}
_FIRST: Final = (b"{", b"\x80", b"\x1f")
_HEAD: Final = b'{"laggard_recording"'
FIRST_BYTES: Final = 64 << 10
"""The bytes of a file that tell whether it is a recording."""
_WRONG: Final = ("deadlock", "mismatch")
_NEVER: Final = "never came"
"""The words with which `laggard locate` begins to say what a rank that hangs did not do."""
_PAGE_NAME = re.compile(r": rank_(\d{1,9})\.json$")
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
        if kind:
            by_kind.setdefault(kind, []).append(each)
        else:
            others.append(each)
    return others, by_kind


def judge_recordings(by_kind: dict[str, list[GivenFile]]) -> list[Recording]:
    return [_judge(kind, files) for kind, files in by_kind.items()]


def _kind(path: str) -> str:
    """The kind of recording; empty of most files, of which the first bytes alone are read."""
    first = b"" if path == "-" or not os.path.isfile(path) else _first_bytes(path, len(_HEAD))
    return recording_kind(_first_bytes(path, FIRST_BYTES)) if first[:1] in _FIRST and first else ""


def recording_kind(first: bytes) -> str:
    """The kind of recording that begins with these bytes, if it is one that is judged here; else empty."""
    if not first or first[:1] not in _FIRST:
        return ""
    from laggard.recording.kinds import kind_of_bytes  # needs arrays, which nothing else here does

    kind = kind_of_bytes(first)
    return kind.value if kind and kind.value in _KINDS else ""


def _first_bytes(path: str, count: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            return file.read(count)
    except OSError:
        return b""


def _judge(kind: str, files: Sequence[GivenFile]) -> Recording:
    """Parts of archives and pages are written to a folder of their own for as long as they are judged."""
    try:
        with tempfile.TemporaryDirectory(prefix="laggard-") as folder:
            names = {_on_disk(each.file, Path(folder) / str(place)): each.file.path for place, each in enumerate(files)}
            found = _judge_paths(kind, files, tuple(names))
    except OSError as error:
        return Recording(kind, tuple(files), (), f"it cannot be unpacked: {error.strerror or error}")
    unknown = found.unknown
    for path, name in names.items():
        unknown = unknown.replace(path, name)
    return found._replace(unknown=unknown)


def _on_disk(file: InputFile, folder: Path) -> str:
    """The path of the file; of a part, that of a copy with its last word as name: a dump's name tells its rank."""
    if os.path.isfile(file.path):
        return file.path
    folder.mkdir()
    copy = folder / (re.sub(r"[^\w.-]", "_", re.split(r"[/ ]", file.path)[-1])[-128:].lstrip(".") or "part")
    copy.write_bytes(file.read().raw)
    os.utime(copy, (0, 0))  # when it was written is not known
    return str(copy)


def _judge_paths(kind: str, files: Sequence[GivenFile], paths: Sequence[str]) -> Recording:
    if any(each.file.read().skipped_bytes for each in files if each.file.path not in paths):
        return Recording(kind, tuple(files), (), "it is too large to be judged within an archive: unpack it")
    from laggard.recording.judged import judge_recording

    try:
        location = judge_recording(paths).location
    except UsageError as error:
        return Recording(kind, tuple(files), (), str(error))
    hosts = {int(named[1]): host for file, host in _parts(files, paths) if (named := _PAGE_NAME.search(file)) and host}
    found = tuple(_finding(_on_host(culprit, hosts), location) for culprit in location.culprits)
    if not found and any(note.kind in _WRONG for note in location.notes):
        found = (_without_culprit(location),)
    unknown = sentence(location) if location.verdict is Verdict.UNKNOWN and not found else ""
    return Recording(kind, tuple(files), found, unknown)


def _parts(files: Sequence[GivenFile], paths: Sequence[str]) -> list[tuple[str, str]]:
    """The parts of archives and pages, each with the host that its page names."""
    return [(each.file.path, each.file.read().host) for each in files if each.file.path not in paths]


def _on_host(culprit: Culprit, hosts: dict[int, str]) -> Culprit:
    """The culprit with its host, which no dump tells, and the page of a debug server does."""
    host = hosts.get(culprit.ranks[0]) if len(culprit.ranks) == 1 and culprit.node is None else None
    return culprit if host is None else msgspec.structs.replace(culprit, node=host)


def _finding(culprit: Culprit, location: Location) -> Finding:
    name, _, condition = culprit_text(culprit).partition(" is ")
    ends = culprit.kind in _CODES
    subject = _subject(culprit) if ends else name
    told = culprit_text(culprit).removeprefix(subject).strip() or condition
    stood = next(iter(culprit.evidence), "") if culprit.kind == "hung" else ""
    return finding(
        _CODES.get(culprit.kind, "RANK_LATE"),
        subject,
        f"{told}: it {stood}" if stood.startswith(_NEVER) else told,
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
