"""The ranks of this node, from the files in its rank directory. Nothing in that directory is trusted."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Final

from laggard.agent.ranks.collectives import read_collectives
from laggard.agent.ranks.cpu_wait import CpuWaits
from laggard.agent.ranks.directory import FileEntry, Listing, list_files, round_robin
from laggard.agent.ranks.exit_watch import ExitWatch
from laggard.agent.ranks.packed_steps import pack
from laggard.agent.ranks.rejections import Rejections
from laggard.agent.ranks.row import Now, RankSnapshot, read_rank, read_steps
from laggard.agent.ranks.stacks import StackReader
from laggard.agent.ranks.unseen import read_unseen
from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.rankfile import RankFileError, Step
from laggard.sub_uids import ACCOUNTS
from laggard.wire.collectives import CollectivesDocument
from laggard.wire.ranks import RankRow, RanksDocument
from laggard.wire.stacks import MissingStacks, StacksDocument

MAX_RANKS: Final = 64
MAX_ASKED: Final = 16
"""The most ranks whose collectives are read at once: 4 MB of JSON."""

MAX_STEPS: Final = 65_536
"""The most steps of all ranks together, about 4 MB of JSON. Eight ranks with full rings have 10,920."""

EXPIRE_AFTER_NS: Final = 600 * 10**9
"""The time for which a rank that ended is still reported, after its last progress."""

DUPLICATE_JOB: Final = "another running job of this user has its name"
"""Two jobs run at once under one job_id: the later one is reported. Another LAGGARD_JOB_ID tells them apart."""

MOUNTED: Final = "a user's file system is mounted there"
HELD: Final = "another user has taken this user's place"
NOT_HERE: Final = "it does not run on this node, or has ended"
HANGS_SECONDS: Final = 20.0
"""The time after which a scan, which takes milliseconds, counts as one that hangs."""

_MARGIN_NS: Final = 10**9  # a step is in its ring at most this long after its end
_VANISHED: Final = os.strerror(errno.ENOENT)


class RankFiles:
    """Reads a rank directory. Safe to call from several threads: one reads, the others wait."""

    def __init__(
        self, directory: str, node: str, clock: Callable[[], Now] | None = None, exits: ExitWatch | None = None
    ) -> None:
        """`exits` watches the ranks' processes; without it a rank's end is known from its file alone."""
        self.directory = directory
        self._node = node
        self._clock = clock or _now
        self._boot_id = _boot_id()
        self._exits = exits
        self._cpu = CpuWaits()
        self._lock = threading.Lock()
        self._scan_began: float | None = None
        self._known: frozenset[str] = frozenset()
        self._selected: list[RankSnapshot] = []
        self._rejections = Rejections(directory)
        self._booted = _booted()

    def read(self, since: float | None = None) -> RanksDocument:
        """Scans the directory. With `since`, seconds on the node's CLOCK_MONOTONIC, `steps` has those that ended then
        or later; without it, no steps."""
        with self._lock, self._timed():
            now = self._clock()
            self._rejections.begin_scan()
            listing = self._files()
            self._selected = selected = sorted(self._select(self._snapshots(listing.files, now)), key=_place)
            unseen = tuple(read_unseen(listing.marks, self._rejections))
            self._known = frozenset(snapshot.path for snapshot in selected)
            if self._exits is not None:
                self._exits.keep(self._known)
            self._cpu.keep(self._known)
            return RanksDocument(
                node=self._node,
                boot_id=self._boot_id,
                next=max(0, now.monotonic_ns - _MARGIN_NS) / 1e9,
                ranks=tuple(snapshot.row for snapshot in selected),
                ignored=self._rejections.end_scan(),
                now=now.wall_ns / 1e9,
                unseen=unseen,
                steps=None if since is None else pack(_steps(selected, since, now)),
            )

    def hanging_seconds(self) -> float:
        """For how long the present scan has hung; 0: none does. It waits for no scan."""
        began = self._scan_began
        seconds = 0.0 if began is None else time.monotonic() - began
        return seconds if seconds > HANGS_SECONDS else 0.0

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        self._scan_began = time.monotonic()
        try:
            yield
        finally:
            self._scan_began = None

    def collectives(self, owner: int, job_id: str, ranks: Collection[int]) -> CollectivesDocument:
        """The last collectives of those of `ranks` that the last scan found running, at most MAX_ASKED of them."""
        with self._lock:
            wanted = [
                snapshot
                for snapshot in self._selected
                if (snapshot.row.owner, snapshot.row.job_id, snapshot.row.state) == (owner, job_id, "running")
                and snapshot.row.rank in ranks
            ]
            found = tuple(read for snapshot in wanted[:MAX_ASKED] if (read := read_collectives(snapshot)) is not None)
            return CollectivesDocument(self._node, owner, job_id, found)

    def stacks(self, owner: int, job_id: str, ranks: Collection[int] | None) -> StacksDocument:
        """The newest stacks of those of `ranks` that the last scan found; None: of all ranks of the job."""
        found, missing = StackReader(self.directory).documents(self.snapshots_of(owner, job_id, ranks))
        seen = {each.rank for each in found} | {each.rank for each in missing}
        gone = tuple(MissingStacks(rank, NOT_HERE) for rank in sorted(set(ranks or ()) - seen))
        return StacksDocument(owner, job_id, found, missing + gone, self._node)

    def ranks_of(self, owner: int, job_id: str, ranks: Collection[int] | None) -> tuple[int, ...]:
        """Those of `ranks`, or of all, that the last scan found running."""
        snapshots = self.snapshots_of(owner, job_id, ranks)
        return tuple(sorted(it.row.rank for it in snapshots if it.row.state == "running"))

    def snapshots_of(self, owner: int, job_id: str, ranks: Collection[int] | None) -> list[RankSnapshot]:
        """The last scan's: what is read of them then holds up no scan."""
        with self._lock:
            rows = [it for it in self._selected if (it.row.owner, it.row.job_id) == (owner, job_id)]
        return [it for it in rows if ranks is None or it.row.rank in ranks]

    def _snapshots(self, files: Iterable[FileEntry], now: Now) -> Iterator[RankSnapshot]:
        """Yields every file that is valid and has not expired."""
        # The files' times are on the clock that the kernel had when they were written: one that was set forward since
        # must not make them older than the boot.
        self._booted = min(self._booted, _booted())
        for file in files:
            try:
                snapshot = read_rank(file.path, self._node, now, self._exits, self._cpu)
            except RankFileError as error:
                if error.reason != _VANISHED:
                    self._rejections.add(file.path, error.reason)
                continue
            if snapshot.row.state == "running" or (file.changed >= self._booted and _is_recent(snapshot)):
                yield snapshot

    def _files(self) -> Listing:
        try:
            listing = list_files(self.directory, self._known)
        except FileNotFoundError:  # no rank has run here yet
            return Listing((), 0)
        except OSError as error:
            self._rejections.add(self.directory, f"the directory: {error.strerror}")
            return Listing((), 0)
        for path in listing.mounted:
            self._rejections.add(path, MOUNTED)
        for path in listing.held:
            self._rejections.add(path, HELD)
        self._rejections.count("too many files", listing.left_out)
        return listing

    def _select(self, found: Iterable[RankSnapshot]) -> list[RankSnapshot]:
        """Selects one snapshot for each rank, and at most MAX_RANKS, taken from their owners in turn."""
        snapshots = list(found)
        newest = {_key(snapshot.row): snapshot for snapshot in sorted(snapshots, key=_recency)}
        best_first = sorted(newest.values(), key=_recency, reverse=True)
        selected = list(
            islice(round_robin(best_first, lambda snapshot: ACCOUNTS.account_of(snapshot.row.owner)), MAX_RANKS)
        )
        for snapshot in snapshots:
            winner = newest[_key(snapshot.row)]
            if snapshot is not winner and _run_at_once(snapshot.row, winner.row):
                self._rejections.add(snapshot.path, DUPLICATE_JOB)
        self._rejections.count("too many ranks", len(newest) - len(selected))
        return selected


def _key(row: RankRow) -> tuple[int, str, int]:
    return row.owner, row.job_id, row.rank


def _run_at_once(one: RankRow, other: RankRow) -> bool:
    """Returns whether two jobs use one name. An attempt that ends while the next one starts is the same job."""
    return one.state == other.state == "running" and one.attempt == other.attempt


def _recency(snapshot: RankSnapshot) -> tuple[bool, int, int]:
    """Returns a sort key that is greater for a running rank than for one that ended, then for a newer attempt."""
    return snapshot.row.state == "running", snapshot.row.attempt, snapshot.started_ns


def _booted() -> float:
    """The Unix time at which this machine booted, by its clock as it is now."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _is_recent(snapshot: RankSnapshot) -> bool:
    return 0 <= snapshot.idle_ns < EXPIRE_AFTER_NS


def _place(snapshot: RankSnapshot) -> tuple[str, int, int]:
    """Returns the sort key of the document's ranks."""
    return snapshot.row.job_id, snapshot.row.rank, snapshot.row.owner


def _steps(snapshots: list[RankSnapshot], since: float, now: Now) -> list[list[Step]]:
    """Reads the steps of each rank. A `since` in the future is from before a reboot: whoever asks needs every step."""
    since_ns = int(since * 1e9)
    since_ns = 0 if since_ns > now.monotonic_ns else since_ns
    max_steps = MAX_STEPS // max(len(snapshots), 1)
    return [read_steps(snapshot, since_ns, max_steps) for snapshot in snapshots]


def _now() -> Now:
    return Now(time.monotonic_ns(), time.time_ns())


def _boot_id() -> str:
    try:
        return Host().boot_id()
    except Unknown:
        return ""
