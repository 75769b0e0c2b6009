"""A diagnosis as text for a terminal: the answer first, then each finding with what to do, then the files. Of several
files one answer is given: who was first, and the lines that say so."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Final

from laggard.diagnose.kinds import kind_of
from laggard.kit.parts import Line
from laggard.kit.words import ascii_line, capital, counted, ranks_text
from laggard.model import Finding, Fix, Severity, Verdict
from laggard.wire.diagnosis import Diagnosis, FileResult, JoinedAnswer, TimelineLine
from laggard.wire.words import by_severity

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
    yield from _left_lines(diagnosis)
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


MAX_COLUMNS: Final = 100
"""The most columns of a line: longer lines are hard to read, however wide the terminal is."""
_MIN_COLUMNS: Final = 40
_MAX_VALUE_CHARACTERS: Final = 400


def terminal_columns() -> int:
    """Returns how wide the text is to be: as wide as the terminal, within limits."""
    return max(_MIN_COLUMNS, min(MAX_COLUMNS, shutil.get_terminal_size((MAX_COLUMNS, 24)).columns))


def render_diagnosis(diagnosis: Diagnosis, columns: int = MAX_COLUMNS) -> str:
    rows = (row for line in diagnosis_lines(diagnosis) for row in _wrapped(line, columns))
    return "".join(f"{row}\n" for row in rows)


def diagnosis_lines(diagnosis: Diagnosis) -> list[Line]:
    findings = by_severity(diagnosis.findings)
    lines = list(joined_lines(diagnosis)) if diagnosis.joined else _lines_of_each(diagnosis, findings)
    lines += (Line(note, "aside") for note in diagnosis.notes)
    return [line._replace(text=ascii_line(line.text)) for line in lines]


def _lines_of_each(diagnosis: Diagnosis, findings: Sequence[Finding]) -> list[Line]:
    lines = [Line(headline(diagnosis, findings), diagnosis.verdict.value, indent=0)]
    for found in findings:
        is_told = found is findings[0] and diagnosis.verdict is Verdict.FAIL
        lines += [Line(""), *_finding_lines(found)][2 * is_told :]
    lines += [*_left_lines(diagnosis), Line("")]
    silent = [file.path for file in diagnosis.files if not file.kind and not file.unknown]
    lines += (Line(_file_text(file, diagnosis), "aside") for file in diagnosis.files if file.path not in silent)
    return lines + ([Line(f"Read by no reader: {_named(silent, '')}", "aside")] if silent else [])


def headline(diagnosis: Diagnosis, findings: Sequence[Finding]) -> str:
    """The answer in one sentence: what was found; or why it cannot be told, with the line that says most; or that
    nothing was found in what was read. `findings`: those of the diagnosis, the worst first."""
    serious = [found for found in findings if found.severity is not Severity.INFO]
    if diagnosis.verdict is Verdict.FAIL:
        more = f", and {counted(len(serious) - 1, 'more finding')}" if len(serious) > 1 else ""
        return f"{capital(serious[0].device)} {serious[0].summary} ({serious[0].code}{more})."
    if not diagnosis.files:
        return "Cannot tell: the folder holds no file that can be read."
    unjudged = [file for file in diagnosis.files if file.unknown]
    if unjudged:
        first = next((file for file in unjudged if file.left), unjudged[0])
        more = f" ({len(unjudged) - 1} more)" if len(unjudged) > 1 else ""
        return f"Cannot tell: {os.path.basename(_path(first)) or first.path}: {first.unknown}{more}."
    warned = f", {counted(len(serious), 'warning')}" if serious else ""
    unread = sum(1 for file in diagnosis.files if not file.kind)
    but = f"; {unread} of them no reader knows" if unread else ""
    return f"Nothing critical in {counted(len(diagnosis.files), 'file')}{warned}{but}."


def _left_lines(diagnosis: Diagnosis) -> Iterator[Line]:
    """The lines that say that something failed, of which no finding tells; without the one that the headline has."""
    listed = [(file, line) for file in diagnosis.files for line in file.left]
    if diagnosis.verdict is Verdict.UNKNOWN and listed:
        (_, first), *listed = listed
        yield from _advice_lines(first.fix)
    elif diagnosis.verdict is Verdict.UNKNOWN:
        told = (row.fix for file in diagnosis.files if (row := kind_of(file.unknown)) and row.more["role"] == "cause")
        yield from _advice_lines(next(told, None))
    if listed:
        yield Line("")
        yield Line("Lines that say that something failed, and that no rule knows:")
    for file, line in listed[:_MAX_ELSE]:
        place = f"{_path(file)}:{line.line}" if line.line else _path(file)
        yield Line(f"  {place}{f' ({line.who})' if line.who else ''}: {line.text}")
        if line.reason:
            yield Line(f"    {line.reason}", "aside")


def _advice_lines(fix: Fix | None) -> Iterator[Line]:
    if fix:
        yield Line(f"  What to do: {fix.text}")
        yield from (Line(f"      {command}", whole=True) for command in fix.commands)  # to be copied: not broken


def _finding_lines(found: Finding) -> Iterator[Line]:
    severity = found.severity.value
    yield Line(f"{severity} {found.code}: {found.device} {found.summary}", severity)
    yield from _advice_lines(found.fix)
    for name, value in found.evidence.items():
        if value is not None:
            yield Line(f"  {name.replace('_', ' ')}: {_value(value)}")
    yield Line(f"  More: laggard findings explain {found.code}", whole=True)


def _file_text(file: FileResult, diagnosis: Diagnosis) -> str:
    looked_for = "" if diagnosis.findings else diagnosis.facts.get(file.path, {}).get("looked_for", "")
    return f"file {_path(file)}: " + "; ".join(filter(None, (file.kind, file.unknown, looked_for)))


def _path(file: FileResult) -> str:
    return "standard input" if file.path == "-" else file.path


def _wrapped(line: Line, columns: int) -> list[str]:
    if line.whole or not line.text:
        return [line.text]
    indent = len(line.text) - len(line.text.lstrip(" ")) + 2 if line.indent is None else line.indent
    return textwrap.wrap(
        line.text, columns, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):  # what is said of each device
        return "; ".join(f"{name} {_value(said)}" for name, said in value.items())[:_MAX_VALUE_CHARACTERS]
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_value, value))[:_MAX_VALUE_CHARACTERS]
    return str(value)[:_MAX_VALUE_CHARACTERS]
