"""`laggard diagnose FILE...`: finds faults of a machine or a job in files that were taken from it. It reads nothing
else."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from laggard import wire
from laggard.diagnose.describe import diagnosis_lines, render_diagnosis, terminal_columns
from laggard.diagnose.document import Diagnosis, FileResult
from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.input_file import InputFile
from laggard.diagnose.origin import named, without_repeats
from laggard.diagnose.recognition import FORMAT_NAMES, RecognisedFile, merge_hardware, recognise
from laggard.model import EXIT_CODES, Finding, Severity, Verdict
from laggard.terminal.output import show_or_write
from laggard.terminal.progress import Progress, size_text
from laggard.text.words import counted


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        f"Files are recognised by their content, plain, gzip or zstd: {FORMAT_NAMES}. Give all files of one machine "
        "or one job in one call: they explain each other. Of a large log the beginning and the end are read. Exit "
        "status: 0 nothing wrong, 1 something wrong was found, 2 could not tell, 64 wrong usage."
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a file; - is standard input")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one laggard.diagnosis/1")


def main(arguments: argparse.Namespace) -> int:
    with Progress() as progress:
        diagnosis = diagnose([InputFile(path) for path in arguments.files], progress)
    if arguments.format == "json":
        sys.stdout.write(wire.encode(diagnosis).decode() + "\n")
        sys.stdout.flush()
    else:
        show_or_write(lambda: diagnosis_lines(diagnosis), lambda: render_diagnosis(diagnosis, terminal_columns()))
    return EXIT_CODES[diagnosis.verdict]


def diagnose(files: Sequence[InputFile], progress: Progress | None = None) -> Diagnosis:
    """Recognises each file, collects what all of them show of the machine, then judges each. A file's content is read
    for each of these, and never held beside another's. Raises UsageError for what is no file."""
    progress = progress or Progress()
    progress.begin(f"recognising {counted(len(files), 'file')}")
    recognised = [part for file in files for part in recognise(file)]
    hardware = merge_hardware(file.hardware for file in recognised)
    _begin_judging([part.file for part in recognised], progress)
    results: list[FileResult] = []
    findings: list[Finding] = []
    facts: dict[str, Any] = {}
    for file, judgement in zip(recognised, _judgements(recognised, hardware), strict=True):
        unknown = "; ".join(filter(None, (judgement.unknown, file.problem)))
        kind = ", ".join(file_format.name for file_format in file.formats) or None
        results.append(FileResult(file.file.path, kind, unknown))
        findings += judgement.findings
        if judgement.facts:
            facts[file.file.path] = judgement.facts
    findings = without_repeats(findings)
    return Diagnosis(_verdict(results, findings), tuple(results), tuple(findings), facts)


def _begin_judging(files: Sequence[InputFile], progress: Progress) -> None:
    size_bytes = sum(file.held_bytes for file in files)
    progress.begin(f"judging {size_text(size_bytes)}", size_bytes)
    for file in files:
        file.count = progress.add


def _judgements(files: Sequence[RecognisedFile], hardware: KnownHardware) -> Iterator[FileJudgement]:
    """Yields one judgement for each file. Files that are parts of one whole are judged with the first of them."""
    judged: set[str] = set()
    for file in files:
        yield _merged(_judgement(file, each, files, hardware, judged) for each in file.formats)


def _judgement(
    file: RecognisedFile,
    file_format: FileFormat,
    files: Sequence[RecognisedFile],
    hardware: KnownHardware,
    judged: set[str],
) -> FileJudgement:
    """Judges a file as one of its formats. `judged`: the formats whose files were all judged; one is added to it."""
    if file_format.judge_together is None:
        content = file.file.read()
        return named(file_format.judge(content, hardware), content)
    if file_format.name in judged:
        return FileJudgement()
    judged.add(file_format.name)
    return file_format.judge_together(_contents(files, file_format), hardware)


def _merged(judgements: Iterable[FileJudgement]) -> FileJudgement:
    findings: list[Finding] = []
    facts: dict[str, Any] = {}
    unknown: list[str] = []
    for judgement in judgements:
        findings += (found for found in judgement.findings if found not in findings)
        facts |= judgement.facts
        unknown.append(judgement.unknown)
    return FileJudgement(tuple(findings), facts, "; ".join(filter(None, unknown)))


def _contents(files: Iterable[RecognisedFile], file_format: FileFormat) -> Iterator[FileContent]:
    return (other.file.read() for other in files if file_format in other.formats)


def _verdict(files: Sequence[FileResult], findings: Sequence[Finding]) -> Verdict:
    if any(finding.severity is Severity.CRITICAL for finding in findings):
        return Verdict.FAIL
    return Verdict.UNKNOWN if any(file.unknown for file in files) else Verdict.OK
