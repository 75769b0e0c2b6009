"""The marks in the folder of a recording: of processes that trained and were not recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from laggard.locate.job_timings import live_timings
from laggard.locate.unseen_note import unseen_note
from laggard.model import Note
from laggard.rankfile import RankFileError
from laggard.rankfile.unseen import MAX_MARKS, UnseenMark, read_mark
from laggard.recording.recorded_timings import RecordedTimings


def read_marks(files: Iterable[Path], gaps: list[str]) -> list[UnseenMark]:
    """The marks in these files. One that cannot be read is told in `gaps`."""
    marks = []
    for file in islice(files, MAX_MARKS):
        try:
            marks.append(read_mark(str(file)))
        except RankFileError as error:
            gaps.append(f"{file} is left out: {error}")
    return marks


def unseen_of(marks: Sequence[UnseenMark], job_id: str | None) -> Note | None:
    """The note on the marks of that job: others may be of an earlier run."""
    own = [mark for mark in marks if job_id in (None, mark.job_id)]
    if not own:
        return None
    return unseen_note([it.rank for it in own], [it.why for it in own], max(it.world_size for it in own))


def unseen_alone(marks: Sequence[UnseenMark]) -> RecordedTimings:
    """The timings where no process was recorded at all: those of the job whose mark is the newest."""
    newest = max(marks, key=lambda mark: mark.at)
    timings = live_timings(newest.job_id, newest.world_size, {}, {}, {}, {})
    return RecordedTimings(timings, (), unseen=unseen_of(marks, newest.job_id))
