"""`laggard diagnose FILE...`: finds faults of a machine or a job in files that were taken from it. It reads nothing
else."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from laggard import wire
from laggard.diagnose.describe import diagnosis_lines, render_diagnosis, terminal_columns
from laggard.diagnose.document import Diagnosis, FileResult
from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.formats import FORMATS
from laggard.diagnose.input_file import InputFile
from laggard.diagnose.unknown_format import what_is_known
from laggard.model import EXIT_CODES, Finding, Severity, Verdict
from laggard.terminal.output import show_or_write
from laggard.terminal.progress import Progress, size_text
from laggard.text.words import counted

_FORMAT_NAMES = ", ".join(file_format.name for file_format in FORMATS)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        f"Files are recognised by their content, plain, gzip or zstd: {_FORMAT_NAMES}. Give all files of one machine "
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
    recognised = [_recognise(file) for file in files]
    hardware = _merge_hardware(file.hardware for file in recognised)
    _begin_judging(files, progress)
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
    return Diagnosis(_verdict(results, findings), tuple(results), tuple(findings), facts)


def _begin_judging(files: Sequence[InputFile], progress: Progress) -> None:
    size_bytes = sum(file.held_bytes for file in files)
    progress.begin(f"judging {size_text(size_bytes)}", size_bytes)
    for file in files:
        file.count = progress.add


class _RecognisedFile(NamedTuple):
    file: InputFile
    formats: tuple[FileFormat, ...]
    """The formats that the file is judged as: several where it is a paste of several tools' output."""
    hardware: KnownHardware
    problem: str
    """The reason why the format judges only a part of the file; or, without a format, everything that is known of the
    file."""


def _recognise(file: InputFile) -> _RecognisedFile:
    content = file.read()
    formats = _formats_of(content) if content.text else ()
    if not formats:
        known = "; ".join(filter(None, (what_is_known(content, _FORMAT_NAMES), content.problem)))
        return _RecognisedFile(file, (), KnownHardware(), known)
    end_matters = any(file_format.end_matters for file_format in formats)
    problem = content.problem if end_matters else content.problem_of_the_beginning
    hardware = _merge_hardware(file_format.read_hardware(content) for file_format in formats)
    return _RecognisedFile(file, formats, hardware, problem)


def _formats_of(content: FileContent) -> tuple[FileFormat, ...]:
    """Returns each format that shares its texts and recognises the file, and the first of the others that does."""
    formats: list[FileFormat] = []
    alone = False
    for each in FORMATS:
        if alone and not each.shares:
            continue
        if not (each.fallback and formats) and each.recognise(content):
            formats.append(each)
            alone |= not each.shares
    return tuple(formats)


def _merge_hardware(shown: Iterable[KnownHardware]) -> KnownHardware:
    """Merges what the files show of the machine; where several show the same thing, the first counts."""
    gpus, rdma = None, None
    for each in shown:
        gpus = each.gpus if gpus is None else gpus
        rdma = each.rdma if rdma is None else rdma
    return KnownHardware(gpus, rdma)


def _judgements(files: Sequence[_RecognisedFile], hardware: KnownHardware) -> Iterator[FileJudgement]:
    """Yields one judgement for each file. Files that are parts of one whole are judged with the first of them."""
    judged: set[str] = set()
    for file in files:
        yield _merged(_judgement(file, each, files, hardware, judged) for each in file.formats)


def _judgement(
    file: _RecognisedFile,
    file_format: FileFormat,
    files: Sequence[_RecognisedFile],
    hardware: KnownHardware,
    judged: set[str],
) -> FileJudgement:
    """Judges a file as one of its formats. `judged`: the formats whose files were all judged; one is added to it."""
    if file_format.judge_together is None:
        return file_format.judge(file.file.read(), hardware)
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


def _contents(files: Iterable[_RecognisedFile], file_format: FileFormat) -> Iterator[FileContent]:
    return (other.file.read() for other in files if file_format in other.formats)


def _verdict(files: Sequence[FileResult], findings: Sequence[Finding]) -> Verdict:
    if any(finding.severity is Severity.CRITICAL for finding in findings):
        return Verdict.FAIL
    return Verdict.UNKNOWN if any(file.unknown for file in files) else Verdict.OK
