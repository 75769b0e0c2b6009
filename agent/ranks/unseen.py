"""The processes of this node that run under laggard and are not seen as ranks, by the marks in the rank directory.
Any user may have written a mark."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import Final

from laggard.agent.ranks.directory import FileEntry
from laggard.agent.ranks.rejections import Rejections
from laggard.processes.identity import GONE, state_of
from laggard.rankfile import RankFileError
from laggard.rankfile.unseen import STARTING, UnseenMark, read_mark
from laggard.wire.ranks import UnseenProcess

EXPIRE_SECONDS: Final = 600.0
"""The time for which a process that ended is told of, after its mark was written."""


def read_unseen(marks: Iterable[FileEntry], rejections: Rejections) -> Iterator[UnseenProcess]:
    """Yields what the marks say, without those whose process is gone and was starting, or ended long ago."""
    for file in marks:
        try:
            mark = read_mark(file.path)
        except RankFileError as error:
            if os.path.lexists(file.path):  # else it was taken away meanwhile
                rejections.add(file.path, error.reason)
            continue
        running = _runs(mark, file.owner)
        old = not 0 <= time.time() - file.changed < EXPIRE_SECONDS
        if running or (mark.kind != STARTING and not old):
            pid = mark.process.get("pid") if running else 0
            yield UnseenProcess(
                mark.kind,
                mark.job_id,
                mark.rank,
                mark.world_size,
                file.owner,
                pid if isinstance(pid, int) else 0,
                running,
                mark.script,
                mark.why,
                mark.at,
            )


def _runs(mark: UnseenMark, owner: int) -> bool:
    """Whether the process runs and is of the user who owns the mark. One in another PID namespace, of which nothing can
    be said, counts as one that ended."""
    if state_of(mark.process) in (GONE, None):
        return False
    try:
        return os.stat(f"/proc/{mark.process['pid']}").st_uid == owner
    except OSError:
        return False
