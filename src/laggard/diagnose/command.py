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
from laggard.diagnose.recognition import FORMAT_NAMES, RecognisedFile, recognise
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
    hardware = _merge_hardware(file.hardware for file in recognised)
    _begin_judging([part.file for part in recognised], progress)
    results: list[FileResult] = []
    findings: list[Finding] = []
    facts: dict[str, Any] = {}
    for file, judgement in zip(recognised, _judgements(recognised, hardware), strict=True):
        unknown = "; ".join(filter(None, (judgement.unknown, file.problem)))
        results.append(FileResult(file.file.path, file.format.name if file.format else None, unknown))
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


def _merge_hardware(shown: Iterable[KnownHardware]) -> KnownHardware:
    """Merges what the files show of the machine; where several show the same thing, the first counts."""
    gpus, rdma = None, None
    for each in shown:
        gpus = each.gpus if gpus is None else gpus
        rdma = each.rdma if rdma is None else rdma
    return KnownHardware(gpus, rdma)


def _judgements(files: Sequence[RecognisedFile], hardware: KnownHardware) -> Iterator[FileJudgement]:
    """Yields one judgement for each file. Files that are parts of one whole are judged with the first of them."""
    judged: set[str] = set()
    for file, file_format, _, _ in files:
        if file_format is None:
            yield FileJudgement()
        elif file_format.judge_together is None:
            content = file.read()
            yield named(file_format.judge(content, hardware), content)
        elif file_format.name in judged:
            yield FileJudgement()
        else:
            judged.add(file_format.name)
            yield file_format.judge_together(_contents(files, file_format), hardware)


def _contents(files: Iterable[RecognisedFile], file_format: FileFormat) -> Iterator[FileContent]:
    return (other.file.read() for other in files if other.format is file_format)


def _verdict(files: Sequence[FileResult], findings: Sequence[Finding]) -> Verdict:
    if any(finding.severity is Severity.CRITICAL for finding in findings):
        return Verdict.FAIL
    return Verdict.UNKNOWN if any(file.unknown for file in files) else Verdict.OK
