"""The one answer of several files as text: who was first, the lines that say so, what to do, what else was found, and
the files without a word."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

from laggard.model import Severity
from laggard.terminal.parts import Line
from laggard.text.report import by_severity
from laggard.text.words import counted, ranks_text
from laggard.wire.diagnosis import Diagnosis, JoinedAnswer, TimelineLine

_ORDERS: Final = {
    "time": "In the order of time:",
    "cause": "In the order of causes, since the clocks of these lines do not tell it:",
}
_MAX_ELSE: Final = 8
_MAX_NAMED: Final = 4


def joined_lines(diagnosis: Diagnosis) -> Iterator[Line]:
    joined = diagnosis.joined
    assert joined is not None
    first, *others = diagnosis.findings
    common = _common_folder([file.path for file in diagnosis.files])
    yield Line(joined.answer, diagnosis.verdict.value, indent=0)
    yield Line("")
    yield Line(_ORDERS[joined.order])
    yield from (
        Line(_timeline_text(line, common), "critical" if line.role == "first" else "") for line in joined.timeline
    )
    yield Line("")
    yield Line(f"What to do: {first.fix.text}")
    yield from (Line(f"    {command}", whole=True) for command in first.fix.commands)
    serious = [found for found in by_severity(others) if found.severity is not Severity.INFO]
    if serious:
        yield Line("")
        yield Line("Found beside it:")
    for found in serious[:_MAX_ELSE]:
        on = f" on {host}" if (host := found.evidence.get("host")) and str(host) not in found.device else ""
        yield Line(f"  {found.severity.value} {found.code}: {found.device}{on} {found.summary}", found.severity.value)
    if len(serious) > _MAX_ELSE:
        yield Line(f"  and {len(serious) - _MAX_ELSE} more: --format json has them", "aside")
    yield Line("")
    yield from _file_lines(joined, diagnosis, common)


def _timeline_text(line: TimelineLine, common: str) -> str:
    where = f"{line.path.removeprefix(common)}:{line.line}" if line.line else line.path.removeprefix(common)
    who = ", ".join(filter(None, (ranks_text(line.ranks), line.host or "", line.at or "")))
    return f"  {line.role:5}  {where}{f' ({who})' if who else ''}: {line.text}"


def _file_lines(joined: JoinedAnswer, diagnosis: Diagnosis, common: str) -> Iterator[Line]:
    if joined.silent_files:
        yield Line(f"Without a word of it: {_named(joined.silent_files, common)}", "aside")
    empty = [file.path for file in diagnosis.files if file.unknown == "is empty"]
    strange = [file.path for file in diagnosis.files if file.kind is None and file.unknown != "is empty"]
    if empty:
        yield Line(f"Empty: {_named(empty, common)}", "aside")
    if strange:
        yield Line(f"Of no known format: {_named(strange, common)}", "aside")


def _named(paths: Sequence[str], common: str) -> str:
    names = ", ".join(path.removeprefix(common) for path in paths[:_MAX_NAMED])
    more = f" and {len(paths) - _MAX_NAMED} more" if len(paths) > _MAX_NAMED else ""
    return f"{counted(len(paths), 'file')} ({names}{more})"


def _common_folder(paths: Sequence[str]) -> str:
    """The folder that all paths begin with, with its separator; empty where there is none, or one file alone."""
    if len(paths) < 2:
        return ""
    folder = os.path.dirname(os.path.commonprefix([os.path.dirname(path) + os.sep for path in paths]))
    return folder + os.sep if folder and folder != os.sep else ""
