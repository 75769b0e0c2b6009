"""The timings that reading a recording yields, whatever its kind, and the reading of its files one by one. Marks tell
of processes that trained and were not recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from laggard.kit.errors import UsageError
from laggard.kit.words import counted
from laggard.locate.describe import unseen_note
from laggard.locate.job_timings import JobTimings, live_timings
from laggard.model import Note
from laggard.rankfile import RankFileError
from laggard.rankfile.unseen import MAX_MARKS, UnseenMark, read_mark
from laggard.stacks.sampled import Sampled

if TYPE_CHECKING:
    from laggard.nccl.inspector import Arrivals


File = TypeVar("File")


@dataclasses.dataclass(frozen=True)
class RecordedTimings:
    """The timings in a recording, and lines that say what of it was lost or could not be used. `owner`: the uid of the
    job's user, which only a collector's recording has."""

    timings: JobTimings
    gaps: tuple[str, ...]
    owner: int | None = None
    arrivals: Arrivals | None = None
    """The last ranks to come to collectives, where that is all there is (NCCL Inspector's files); there are no timings
    then."""
    unseen: Note | None = None
    """The note on processes that trained and were not recorded, where there are any."""
    stacks: tuple[Sampled, ...] = ()
    """The stacks that the ranks' processes left."""
    moved_at: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """When ranks finished their last step, Unix seconds by rank, where that is known."""


def read_each(
    paths: Iterable[Path], read: Callable[[Path], File], refused: type[Exception], gaps: list[str]
) -> list[File]:
    """The values that `read` makes of the files. A file that it refuses is left out, and the reason is added to `gaps`.
    Raises UsageError where none can be read."""
    files, reasons = [], []
    for path in paths:
        try:
            files.append(read(path))
        except refused as error:
            reasons.append(f"{path} is left out: {error}")
    gaps += reasons
    if not files and reasons:
        count = len(reasons)
        raise UsageError(reasons[0] if count == 1 else f"none of {counted(count, 'file')} can be read: {reasons[0]}")
    return files


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
