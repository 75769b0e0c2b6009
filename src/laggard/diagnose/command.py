"""`laggard diagnose FILE...`: what files from some machine say is wrong with it. Reads the files and nothing else."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from laggard import wire
from laggard.diagnose.file_format import Kind, Reading, Told
from laggard.diagnose.formats import FORMATS
from laggard.diagnose.input_file import Dump, read_dump
from laggard.model import EXIT_CODES, Finding, Severity, Verdict
from laggard.text.report import by_severity, finding_line, fit_headline, more_suffix
from laggard.text.words import ascii_line

DIAGNOSIS_SCHEMA = "laggard.diagnosis/1"


class FileRead(msgspec.Struct, frozen=True):
    """`kind`: None where nothing recognised it. `unknown`: what of it could not be judged, and why."""

    path: str
    kind: str | None
    unknown: str = ""


class Diagnosis(msgspec.Struct, frozen=True):
    verdict: Verdict
    files: tuple[FileRead, ...]
    findings: tuple[Finding, ...]
    facts: dict[str, Any]
    schema: str = DIAGNOSIS_SCHEMA


def configure(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(kind.name for kind in FORMATS)
    parser.epilog = (
        f"Recognised by their content, plain or gzip: {names}. Files of one machine belong in one call: they explain "
        "each other. Exit status: 0 nothing wrong, 1 something wrong was found, 2 could not tell, 64 wrong usage."
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a file; - is standard input")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one laggard.diagnosis/1")


def main(arguments: argparse.Namespace) -> int:
    diagnosis = diagnose([(path, read_dump(path)) for path in arguments.files])
    sys.stdout.write(
        wire.encode(diagnosis).decode() + "\n" if arguments.format == "json" else render_diagnosis(diagnosis)
    )
    sys.stdout.flush()
    return EXIT_CODES[diagnosis.verdict]


def diagnose(dumps: Sequence[tuple[str, Dump]]) -> Diagnosis:
    """All files first tell of the machine, then each is judged."""
    known = [(path, dump, _recognise(dump.text)) for path, dump in dumps]
    told = _together(kind.tell(dump.text) for _, dump, kind in known if kind)
    files: list[FileRead] = []
    findings: list[Finding] = []
    facts: dict[str, Any] = {}
    for (path, dump, kind), reading in zip(known, _readings(known, told), strict=True):
        unknown = dump.trouble or reading.unknown
        files.append(FileRead(path, kind.name if kind else None, unknown))
        findings += reading.findings
        if reading.facts:
            facts[path] = reading.facts
    return Diagnosis(_verdict(files, findings), tuple(files), tuple(findings), facts)


def _readings(known: Sequence[tuple[str, Dump, Kind | None]], told: Told) -> Iterator[Reading]:
    """One for each file. Files that are parts of one thing are read with the first of them."""
    met: set[str] = set()
    for _, dump, kind in known:
        if kind is None:
            yield Reading(unknown="is of no kind that is known")
        elif kind.read_together is None:
            yield kind.read(dump.text, told)
        elif kind.name in met:
            yield Reading()
        else:
            met.add(kind.name)
            yield kind.read_together([part.text for _, part, other in known if other is kind], told)


def _recognise(text: str) -> Kind | None:
    return next((kind for kind in FORMATS if text and kind.recognise(text)), None)


def _together(parts: Iterable[Told]) -> Told:
    """What any file tells of the machine; the first that does is believed."""
    gpus, rdma = None, None
    for part in parts:
        gpus = part.gpus if gpus is None else gpus
        rdma = part.rdma if rdma is None else rdma
    return Told(gpus, rdma)


def _verdict(files: Sequence[FileRead], findings: Sequence[Finding]) -> Verdict:
    if any(finding.severity is Severity.CRITICAL for finding in findings):
        return Verdict.FAIL
    return Verdict.UNKNOWN if any(file.unknown for file in files) else Verdict.OK


def render_diagnosis(diagnosis: Diagnosis) -> str:
    findings = by_severity(diagnosis.findings)
    lines = [_headline(diagnosis, findings), *map(finding_line, findings)]
    lines += [f"file {file.path}  {file.kind or 'unknown'}  {file.unknown}".rstrip() for file in diagnosis.files]
    return "".join(f"{ascii_line(line)}\n" for line in lines)


def _headline(diagnosis: Diagnosis, findings: Sequence[Finding]) -> str:
    serious = [finding for finding in findings if finding.severity is not Severity.INFO]
    unclear = [file for file in diagnosis.files if file.unknown]
    if diagnosis.verdict is Verdict.FAIL:
        first = serious[0]
        return fit_headline(f"{first.code} {first.device} {first.summary}", more_suffix(len(serious) - 1))
    if unclear:
        named = len(diagnosis.files) > 1 or unclear[0].kind is None
        which = f"{os.path.basename(unclear[0].path)} " if named else ""
        return fit_headline(f"unknown, {which}{unclear[0].unknown}", more_suffix(len(unclear) - 1))
    warned = f", {len(serious)} warning{'s' * (len(serious) > 1)}" if serious else ""
    count = len(diagnosis.files)
    return fit_headline(f"ok, nothing critical in {count} file{'s' * (count > 1)}", warned)
