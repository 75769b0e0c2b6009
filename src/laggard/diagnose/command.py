"""`laggard diagnose FILE...`: finds faults of a machine in files that were taken from it. It reads nothing else."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from laggard import wire
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.formats import FORMATS
from laggard.diagnose.input_file import InputFile, read_input_file
from laggard.model import EXIT_CODES, Finding, Severity, Verdict
from laggard.text.report import by_severity, finding_line, fit_headline, more_suffix
from laggard.text.words import ascii_line

DIAGNOSIS_SCHEMA = "laggard.diagnosis/1"


class FileResult(msgspec.Struct, frozen=True):
    """One file of a diagnosis."""

    path: str
    kind: str | None
    """The name of its format; None where no format recognised it."""
    unknown: str = ""
    """What could not be judged, and why; empty: everything was."""


class Diagnosis(msgspec.Struct, frozen=True):
    verdict: Verdict
    files: tuple[FileResult, ...]
    findings: tuple[Finding, ...]
    facts: dict[str, Any]
    schema: str = DIAGNOSIS_SCHEMA


def configure(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(file_format.name for file_format in FORMATS)
    parser.epilog = (
        f"Files are recognised by their content, plain or gzip: {names}. Give all files of one machine in one call: "
        "they explain each other. Exit status: 0 nothing wrong, 1 something wrong was found, 2 could not tell, 64 "
        "wrong usage."
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a file; - is standard input")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one laggard.diagnosis/1")


def main(arguments: argparse.Namespace) -> int:
    diagnosis = diagnose([read_input_file(path) for path in arguments.files])
    sys.stdout.write(
        wire.encode(diagnosis).decode() + "\n" if arguments.format == "json" else render_diagnosis(diagnosis)
    )
    sys.stdout.flush()
    return EXIT_CODES[diagnosis.verdict]


def diagnose(files: Sequence[InputFile]) -> Diagnosis:
    """Recognises each file, collects what all of them show of the machine, then judges each."""
    recognised = [_RecognisedFile(file, _recognise(file.text)) for file in files]
    hardware = _known_hardware(recognised)
    results: list[FileResult] = []
    findings: list[Finding] = []
    facts: dict[str, Any] = {}
    for (file, file_format), judgement in zip(recognised, _judgements(recognised, hardware), strict=True):
        unknown = file.problem or judgement.unknown
        results.append(FileResult(file.path, file_format.name if file_format else None, unknown))
        findings += judgement.findings
        if judgement.facts:
            facts[file.path] = judgement.facts
    return Diagnosis(_verdict(results, findings), tuple(results), tuple(findings), facts)


class _RecognisedFile(NamedTuple):
    file: InputFile
    format: FileFormat | None


def _recognise(text: str) -> FileFormat | None:
    return next((file_format for file_format in FORMATS if text and file_format.recognise(text)), None)


def _known_hardware(files: Iterable[_RecognisedFile]) -> KnownHardware:
    """Merges what the files show of the machine; where several show the same thing, the first counts."""
    gpus, rdma = None, None
    for file, file_format in files:
        if file_format is not None:
            shown = file_format.read_hardware(file.text)
            gpus = shown.gpus if gpus is None else gpus
            rdma = shown.rdma if rdma is None else rdma
    return KnownHardware(gpus, rdma)


def _judgements(files: Sequence[_RecognisedFile], hardware: KnownHardware) -> Iterator[FileJudgement]:
    """Yields one judgement for each file. Files that are parts of one whole are judged with the first of them."""
    judged: set[str] = set()
    for file, file_format in files:
        if file_format is None:
            yield FileJudgement(unknown="is of no known format")
        elif file_format.judge_together is None:
            yield file_format.judge(file.text, hardware)
        elif file_format.name in judged:
            yield FileJudgement()
        else:
            judged.add(file_format.name)
            texts = [other.file.text for other in files if other.format is file_format]
            yield file_format.judge_together(texts, hardware)


def _verdict(files: Sequence[FileResult], findings: Sequence[Finding]) -> Verdict:
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
    unjudged = [file for file in diagnosis.files if file.unknown]
    if diagnosis.verdict is Verdict.FAIL:
        first = serious[0]
        return fit_headline(f"{first.code} {first.device} {first.summary}", more_suffix(len(serious) - 1))
    if unjudged:
        named = len(diagnosis.files) > 1 or unjudged[0].kind is None
        name_prefix = f"{os.path.basename(unjudged[0].path)} " if named else ""
        return fit_headline(f"unknown, {name_prefix}{unjudged[0].unknown}", more_suffix(len(unjudged) - 1))
    warned = f", {len(serious)} warning{'s' * (len(serious) > 1)}" if serious else ""
    count = len(diagnosis.files)
    return fit_headline(f"ok, nothing critical in {count} file{'s' * (count > 1)}", warned)
