"""The ranks of this job on this machine that cannot take their own stacks: stopped, in the kernel, or with Python's
lock held. A rank beside them sees in their rank files that nothing of them runs, and in /proc where they stand."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from laggard.rankfile import RankFileError, RankFileReader
from laggard.rankfile.layout import SUFFIX
from laggard.stacks.kernel_side import NotThere, read_kernel_side
from laggard.stacks.unanswered import Unanswered

MAX_FILES: Final = 256
"""The most rank files that are looked at: those of one user on one machine."""

SILENT_BEATS: Final = 3.0
"""The missed beats after which none of a process's threads runs, as locate has it; and a second more."""


class SilentPeer(NamedTuple):
    """What is seen of a rank that can say nothing itself. `rank_file`: its path."""

    seen: Unanswered
    rank_file: str


def silent_peers(own_file: str, job_id: str, rank: int, idle_seconds: float) -> Iterator[SilentPeer]:
    """Yields the other ranks of the user's job of which nothing runs, and that have made no progress for so long.
    `own_file`: this rank's file, beside which this user's other rank files are. It is never opened: a process that
    closes a file loses its locks on it, and by the lock the agent knows that the rank lives."""
    own = os.path.realpath(own_file)
    for path in islice(_rank_files(os.path.dirname(own)), MAX_FILES):
        if path == own:
            continue
        try:
            with RankFileReader(path) as file:
                seen = _seen(file, idle_seconds)
        except (RankFileError, NotThere, OSError, ValueError, KeyError):
            continue
        if seen is not None and seen.job_id == job_id and seen.rank != rank:
            yield SilentPeer(seen, path)


def _rank_files(directory: str) -> Iterator[str]:
    with os.scandir(directory) as entries:
        yield from (entry.path for entry in entries if entry.name.endswith(SUFFIX))


def _seen(file: RankFileReader, idle_seconds: float) -> Unanswered | None:
    """Raises RankFileError and NotThere."""
    pid, beat, now = file.lock_holder(), file.beat(), time.monotonic_ns()
    if file.owner != os.geteuid() or not pid or beat is None:
        return None
    identity = file.identity
    if (now - (file.live_state().progress_ns or identity["monotonic_ns"])) / 1e9 < idle_seconds:
        return None
    side = read_kernel_side(pid, pid, file.owner, whole=False)
    silent = (now - beat.at_ns) / 1e9
    if not side.stands and silent < SILENT_BEATS * beat.interval_ns / 1e9 + 1.0:
        return None
    return Unanswered(identity["job_id"], identity["rank"], identity["node"], pid, time.time(), silent, side)
