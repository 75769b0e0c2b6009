"""The ranks of this node, as their files tell. Nothing in the rank directory is trusted."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from msgspec import structs

from laggard.agent.ranks.directory import File, in_turn, list_files
from laggard.agent.ranks.ignored import IgnoredFiles
from laggard.agent.ranks.row import Clocks, Sighting, sight, steps_of
from laggard.rankfile import RankFileError
from laggard.wire import RankRow, RanksDocument

MOST_RANKS: Final = 64
MOST_ROWS: Final = 65_536
"""Of all ranks together, about 8 MB of JSON. Eight ranks with full rings have 10,920."""

FORGET_AFTER_NS: Final = 600 * 10**9
"""How long a rank that ended is still told of."""

TWO_JOBS: Final = "another running job of this user has its name"
"""Two that run at once under one job_id: the later one is told of. Another LAGGARD_JOB_ID tells them apart."""

_MARGIN_NS: Final = 10**9  # a step is in its ring at most this long after it ended
_VANISHED: Final = os.strerror(errno.ENOENT)


class RankFiles:
    """Reads a rank directory. Safe to call from several threads: one reads, the others wait."""

    def __init__(self, directory: str, node: str, clocks: Callable[[], Clocks] | None = None) -> None:
        self.directory = directory
        self._node = node
        self._clocks = clocks or _now
        self._boot_id = _boot_id()
        self._lock = threading.Lock()
        self._known: frozenset[str] = frozenset()
        self._ignored = IgnoredFiles(directory)

    def read(self, since: float | None = None) -> RanksDocument:
        """A fresh look. With `since`, seconds on the node's CLOCK_MONOTONIC: with the steps that ended then or later;
        without it: no steps."""
        with self._lock:
            now = self._clocks()
            self._ignored.begin()
            chosen = self._choose(self._sightings(now))
            self._known = frozenset(sighting.path for sighting in chosen)
            rows = [sighting.row for sighting in chosen] if since is None else _with_steps(chosen, since, now)
            return RanksDocument(
                node=self._node,
                boot_id=self._boot_id,
                next=max(0, now.monotonic_ns - _MARGIN_NS) / 1e9,
                ranks=tuple(sorted(rows, key=lambda row: (row.job_id, row.rank, row.owner))),
                ignored=self._ignored.end(),
            )

    def _sightings(self, now: Clocks) -> Iterator[Sighting]:
        """Every file that is believed and not yet to be forgotten."""
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        for file in self._files():
            try:
                sighting = sight(file.path, self._node, now)
            except RankFileError as error:
                if error.reason != _VANISHED:
                    self._ignored.add(file.path, error.reason)
                continue
            if sighting.row.state == "running" or (file.changed >= booted and _is_recent(sighting)):
                yield sighting

    def _files(self) -> tuple[File, ...]:
        try:
            listing = list_files(self.directory, self._known)
        except FileNotFoundError:  # nobody has trained here yet
            return ()
        except OSError as error:
            self._ignored.add(self.directory, f"the directory: {error.strerror}")
            return ()
        self._ignored.count("too many files", listing.left_out)
        return listing.files

    def _choose(self, found: Iterable[Sighting]) -> list[Sighting]:
        """One sighting for each rank, and at most MOST_RANKS, dealt out to their owners in turn."""
        sightings = list(found)
        newest = {_key(sighting.row): sighting for sighting in sorted(sightings, key=_recency)}
        best_first = sorted(newest.values(), key=_recency, reverse=True)
        chosen = list(islice(in_turn(best_first, lambda sighting: sighting.row.owner), MOST_RANKS))
        for sighting in sightings:
            chosen_one = newest[_key(sighting.row)]
            if sighting is not chosen_one and _run_at_once(sighting.row, chosen_one.row):
                self._ignored.add(sighting.path, TWO_JOBS)
        self._ignored.count("too many ranks", len(newest) - len(chosen))
        return chosen


def _key(row: RankRow) -> tuple[int, str, int]:
    return row.owner, row.job_id, row.rank


def _run_at_once(one: RankRow, other: RankRow) -> bool:
    """An attempt that is being torn down while the next one starts is the same job."""
    return one.state == other.state == "running" and one.attempt == other.attempt


def _recency(sighting: Sighting) -> tuple[bool, int, int]:
    """Greater: a newer attempt, and a living one before any that ended."""
    return sighting.row.state == "running", sighting.row.attempt, sighting.started_ns


def _is_recent(sighting: Sighting) -> bool:
    return 0 <= sighting.quiet_ns < FORGET_AFTER_NS


def _with_steps(chosen: list[Sighting], since: float, now: Clocks) -> list[RankRow]:
    """A `since` that is still to come is from before a reboot: to who asks, everything is new."""
    start_ns = int(since * 1e9)
    start_ns = 0 if start_ns > now.monotonic_ns else start_ns
    most = MOST_ROWS // max(len(chosen), 1)
    return [structs.replace(sighting.row, rows=steps_of(sighting, start_ns, most)) for sighting in chosen]


def _now() -> Clocks:
    return Clocks(time.monotonic_ns(), time.time_ns())


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip()
    except OSError:
        return ""
