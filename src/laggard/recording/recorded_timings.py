"""The timings that reading a recording yields, whatever its kind, and the reading of its files one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from laggard.errors import UsageError
from laggard.locate.job_timings import JobTimings
from laggard.model import Note
from laggard.stacks.sampled import Sampled
from laggard.text.words import counted

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
