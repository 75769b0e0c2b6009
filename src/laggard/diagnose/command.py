"""`laggard diagnose FILE...`: finds faults of a machine or a job in files that were taken from it. It reads nothing
else."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from laggard import wire
from laggard.diagnose.account import results, whole_of
from laggard.diagnose.describe import diagnosis_lines, render_diagnosis, terminal_columns
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware, named, without_repeats
from laggard.diagnose.folder import Given, GivenFile, given_files
from laggard.diagnose.formats import FORMAT_NAMES, RecognisedFile, Siblings, merge_hardware
from laggard.diagnose.input_file import MAX_CALL_SECONDS, Deadline, InputFile
from laggard.diagnose.job.findings import of_rank
from laggard.diagnose.join import JobRead, JudgedFile, join, supersede
from laggard.diagnose.joined.exhibit import Origin, origins
from laggard.diagnose.nccl import compared
from laggard.diagnose.recordings import Recording, judge_recordings, split_recordings
from laggard.kit.progress import Progress, size_text
from laggard.kit.terminal import show_or_write
from laggard.kit.words import counted
from laggard.model import EXIT_CODES, Finding, Severity, Verdict
from laggard.wire.diagnosis import Diagnosis, FileResult


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Files are recognised by their content, plain, gzip or zstd, alone or in tar and zip archives: "
        f"{FORMAT_NAMES}. Give all files of one machine or one job in one call, or the folder that they are in: they "
        "explain each other, and where a job failed the answer is one, with the lines that say so in the order of what "
        "came first. Of a large log the beginning and the end are read; links are not followed. Exit status: 0 nothing "
        "wrong, 1 something wrong was found, 2 could not tell, 64 wrong usage."
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a file, or a folder; - is standard input")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one laggard.diagnosis/1")


def main(arguments: argparse.Namespace) -> int:
    with Progress() as progress:
        diagnosis = diagnose_together(given_files(arguments.files), progress)
    if arguments.format == "json":
        sys.stdout.write(wire.encode(diagnosis).decode() + "\n")
        sys.stdout.flush()
    else:
        show_or_write(lambda: diagnosis_lines(diagnosis), lambda: render_diagnosis(diagnosis, terminal_columns()))
    return EXIT_CODES[diagnosis.verdict]


def diagnose(files: Sequence[InputFile], progress: Progress | None = None) -> Diagnosis:
    """Recognises each file, collects what all of them show of the machine, then judges each. A file's content is read
    for each of these, and never held beside another's. Raises UsageError for what is no file."""
    given = [GivenFile(file, (file.path,)) for file in files]
    return _diagnosis(*_judge_all(given, progress or Progress(), {})[:2])


def diagnose_together(given: Given, progress: Progress | None = None) -> Diagnosis:
    """The same, and where there are several files and a job failed: what they say together."""
    files, by_kind = split_recordings(given.files)
    judgements, judged, job = _judge_all(files, progress or Progress(), by_kind)
    for each in judge_recordings(by_kind):
        judged += _as_judged(each)
        judgements += (FileJudgement() for _ in each.files)
    alone = _diagnosis(judgements, judged)
    if given.of_folder:
        alone = msgspec.structs.replace(alone, notes=given.notes, verdict=_verdict_of_folder(alone))
    read = [it for it in judged if it.result.kind or it.result.unknown]
    together = join(read, job) if given.of_folder or len(read) > 1 else None
    if together is None:
        return alone
    findings = tuple(supersede(alone.findings, job, together))
    notes = (*alone.notes, *together.notes)
    return msgspec.structs.replace(alone, verdict=Verdict.FAIL, findings=findings, joined=together.answer, notes=notes)


def _as_judged(recording: Recording) -> Iterator[JudgedFile]:
    """The files of a recording: what they say together stands with the first."""
    for place, each in enumerate(recording.files):
        first = place == 0
        result = FileResult(each.file.path, recording.kind, recording.unknown if first else "")
        yield JudgedFile(each.file, result, recording.findings if first else (), Origin())


def _judge_all(
    given: Sequence[GivenFile], progress: Progress, recordings: dict[str, list[GivenFile]]
) -> tuple[list[FileJudgement], list[JudgedFile], JobRead | None]:
    """Returns for each file, or part of one, its judgement; the same with its place, for the joiner; and what was read
    of the job. `recordings`: gets the parts of files that are recordings, by kind."""
    progress.begin(f"recognising {counted(len(given), 'file')}", len(given) if len(given) > 1 else None)
    deadline = Deadline(MAX_CALL_SECONDS)
    siblings = Siblings()
    recognised: list[RecognisedFile] = []
    words: list[tuple[str, ...]] = []
    for each in given:
        each.file.deadline = deadline
        parts = siblings.recognise(each.file)
        for part in parts:
            if part.recording:
                recordings.setdefault(part.recording, []).append(GivenFile(part.file, each.words))
        parts = tuple(part for part in parts if not part.recording)
        recognised += parts
        words += ((*each.words, *_words_below(each.file.path, part.file.path)) for part in parts)
        progress.add(1)
    twins = {each.file.path: each.same for each in given if each.same}
    places = iter(origins([*words, *(same for each in twins.values() for same in each)]))
    own = [next(places) for _ in recognised]
    others = {path: tuple(next(places) for _ in same) for path, same in twins.items()}
    _begin_judging([part.file for part in recognised], progress)
    judgements = list(_judgements(recognised, deadline))
    if len(judgements) == 1:
        rank = origins([(os.path.basename(recognised[0].file.path),)])[0].rank
        (only,) = judgements
        judgements = [only._replace(findings=tuple(of_rank(found, rank) for found in only.findings))]
    told = results(recognised, judgements, deadline)
    judged = [
        JudgedFile(file.file, result, judgement.findings, origin, others.get(file.file.path, ()))
        for file, judgement, result, origin in zip(recognised, judgements, told, own, strict=True)
    ]
    return judgements, judged, _job_read(recognised, judgements)


def _words_below(path: str, part: str) -> list[str]:
    """The words of a part's own name, as of a member of an archive."""
    return [word for word in part[len(path) :].strip(": ").split("/") if word]


def _job_read(files: Sequence[RecognisedFile], judgements: Sequence[FileJudgement]) -> JobRead | None:
    read = next((it for it in judgements if it.job is not None), None)
    if read is None or read.job is None:
        return None
    paths = tuple(file.file.path for file in files if any(each.whole == "job" for each in file.formats))
    return JobRead(read.job, paths, read.of_job)


def _diagnosis(judgements: Sequence[FileJudgement], judged: Sequence[JudgedFile]) -> Diagnosis:
    facts = {it.file.path: each.facts for it, each in zip(judged, judgements, strict=True) if each.facts}
    findings = without_repeats((*(found for it in judged for found in it.findings), *compared(facts)))
    findings.sort(key=lambda found: found.code.startswith(_OF_A_POD))
    results = tuple(it.result for it in judged)
    return Diagnosis(_verdict(results, findings), results, tuple(findings), facts)


def _verdict_of_folder(diagnosis: Diagnosis) -> Verdict:
    """Of a folder's files some are of no known format: those alone make nothing unknown, unless half of all are, or one
    has a line that says that something failed."""
    known = [file for file in diagnosis.files if file.kind or file.left]
    mostly = 2 * len(known) > len(diagnosis.files)
    return _verdict(known if mostly else diagnosis.files, diagnosis.findings) if known else Verdict.UNKNOWN


def _begin_judging(files: Sequence[InputFile], progress: Progress) -> None:
    size_bytes = sum(file.held_bytes for file in files)
    progress.begin(f"judging {size_text(size_bytes)}", size_bytes)
    for file in files:
        file.count = progress.add


def _judgements(files: Sequence[RecognisedFile], deadline: Deadline) -> Iterator[FileJudgement]:
    """Yields one judgement for each file. Files that are parts of one whole are judged with the first of them."""
    hardware = merge_hardware(file.hardware for file in files)
    judged: set[str] = set()
    for file in files:
        late = deadline.is_over()
        each = (
            FileJudgement() if late else _merged(_judgement(file, it, files, hardware, judged) for it in file.formats)
        )
        if late and file.formats:
            each = each._replace(unknown=f"it was not judged: the call took longer than {deadline.seconds:.0f} s")
        yield each


def _judgement(
    file: RecognisedFile,
    file_format: FileFormat,
    files: Sequence[RecognisedFile],
    hardware: KnownHardware,
    judged: set[str],
) -> FileJudgement:
    """Judges a file as one of its formats. `judged`: the formats whose files were all judged; one is added to it."""
    if file_format.judge is not None:
        content = file.file.read()
        return named(file_format.judge(content, hardware), content)
    assert file_format.judge_together is not None
    whole = whole_of(file_format)
    if whole in judged:
        return FileJudgement()
    judged.add(whole)
    contents = (it.file.read() for it in files if any(whole_of(each) == whole for each in it.formats))
    return file_format.judge_together(contents, hardware)


def _merged(judgements: Iterable[FileJudgement]) -> FileJudgement:
    findings: list[Finding] = []
    facts: dict[str, Any] = {}
    unknown: list[str] = []
    job = None
    of_job: tuple[Finding, ...] = ()
    for judgement in judgements:
        known = {found.code for found in findings}  # another reader's warning of the same says it once more
        new = (found for found in judgement.findings if found not in findings)
        findings += [found for found in new if found.severity is Severity.CRITICAL or found.code not in known]
        facts |= judgement.facts
        unknown.append(judgement.unknown)
        job, of_job = judgement.job or job, judgement.of_job or of_job
    return FileJudgement(tuple(findings), facts, "; ".join(filter(None, unknown)), job, of_job)


_OF_A_POD: Final = "POD_"
"""The beginning of the codes that tell of a pod: whatever is found beside them is no consequence of theirs."""
_OF_A_RUN: Final = ("JOB_", "RANK_LATE", "STEP_TIME_LOST")
"""The beginnings of the codes that tell that a job does not run as it should: this is what was asked, and so is their
warning an answer."""


def _verdict(files: Sequence[FileResult], findings: Sequence[Finding]) -> Verdict:
    warned = (found for found in findings if found.severity is Severity.WARNING)
    critical = any(found.severity is Severity.CRITICAL for found in findings)
    if critical or any(found.code.startswith(_OF_A_RUN) for found in warned):
        return Verdict.FAIL
    return Verdict.UNKNOWN if any(file.unknown for file in files) else Verdict.OK
