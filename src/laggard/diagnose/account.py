"""What `laggard diagnose` knows of each file and part: who read it, what could not be judged, and which lines say that
something failed though no reader took them. Where a reader found what is critical in a part, its lines are explained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from laggard.diagnose.failing_lines import Left, read_left
from laggard.diagnose.file_format import FileFormat, FileJudgement
from laggard.diagnose.formats import RecognisedFile, is_text
from laggard.diagnose.input_file import Deadline
from laggard.model import Severity
from laggard.wire.diagnosis import FileResult

_MIN_QUOTE: Final = 16
"""The characters of a finding's words from which on a line that has them is the one that it quotes."""


def whole_of(each: FileFormat) -> str:
    """The name of the whole that files of this format are parts of."""
    return each.whole or each.name


def results(
    files: Sequence[RecognisedFile], judgements: Sequence[FileJudgement], deadline: Deadline
) -> Iterator[FileResult]:
    """Yields what is known of each file."""
    explained = {
        whole_of(each) for file, it in zip(files, judgements, strict=True) if _is_grave(it) for each in file.formats
    }
    for file, judgement in zip(files, judgements, strict=True):
        with_others = any(whole_of(each) in explained for each in file.formats if each.judge is None)
        is_asked = not (file.is_cut or with_others or _is_grave(judgement) or deadline.is_over())
        yield _result(file, judgement, _not_quoted(_left(file), judgement) if is_asked else Left())


def _is_grave(judgement: FileJudgement) -> bool:
    return any(found.severity is Severity.CRITICAL for found in judgement.findings)


def _left(file: RecognisedFile) -> Left:
    """The lines that no reader took; none of what is no text."""
    content = file.file.read()
    if not is_text(content):
        return Left()
    left = read_left(content.pieces(), lambda line: any(each.takes(line) for each in file.formats))
    if content.skipped_bytes:
        return left.without_numbers()
    return left.moved(file.first_line - 1) if file.first_line else left


def _not_quoted(left: Left, judgement: FileJudgement) -> Left:
    """The lines without those that a finding quotes: these have an owner."""
    values = [value for found in judgement.findings for value in (found.summary, *found.evidence.values())]
    quotes = [text for text in map(str, values) if len(text) >= _MIN_QUOTE]
    lines = tuple(it for it in left.lines if not any(text in it.text or it.text in text for text in quotes))
    return left._replace(lines=lines, total=left.total - len(left.lines) + len(lines))


def _result(file: RecognisedFile, judgement: FileJudgement, left: Left) -> FileResult:
    says = str(left)
    if not says and left.read and not judgement.findings and _tells_an_end(file, left):
        says = left.nothing()
    problem = file.problem
    if not file.readers and (left.lines or left.last):  # its own words say more than that no reader knows it
        problem = file.file.read().problem
    told = "; ".join(filter(None, (says, judgement.unknown, problem)))
    return FileResult(file.file.path, file.readers or None, told, file.first_line, left.lines, left.total)


def _tells_an_end(file: RecognisedFile, left: Left) -> bool:
    """Whether the end of a job would stand in the file: that of a job, of a training, or one that no reader knows."""
    is_job = any(each.whole == "job" for each in file.formats)
    return is_job or (not file.readers and bool(left.last or file.problem))
