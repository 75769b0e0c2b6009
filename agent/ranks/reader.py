"""The ranks of this node, from the files in its rank directory. Nothing in that directory is trusted."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from laggard.agent.ranks.cpu_wait import CpuWaits
from laggard.agent.ranks.directory import FileEntry, Listing, Rejections, list_files, round_robin
from laggard.agent.ranks.end import ExitWatch
from laggard.agent.ranks.row import MAX_STEP_NS, Now, RankSnapshot, read_rank, read_steps
from laggard.agent.ranks.stacks import StackReader
from laggard.kit.constants import PHASES
from laggard.kit.processes import GONE, boot_id, state_of
from laggard.kit.users import ACCOUNTS
from laggard.rankfile import Collective, RankFileError, RankFileReader, Step
from laggard.rankfile.layout import prune
from laggard.rankfile.unseen import STARTING, UnseenMark, read_mark
from laggard.wire.ranks import (
    CollectiveLane,
    CollectiveRow,
    CollectivesDocument,
    PackedSteps,
    RankCollectives,
    RankRow,
    RanksDocument,
    UnseenProcess,
)
from laggard.wire.stacks import MissingStacks, StacksDocument

MAX_ROWS: Final = 4096
"""The most rows of one rank, the newest: about 250 KB of JSON."""

_MAX_NUMBER: Final = 1 << 53


def read_collectives(snapshot: RankSnapshot) -> RankCollectives | None:
    """The newest MAX_ROWS collectives that a rank has finished in steps. None where the path is another rank's file by
    now, or no longer one."""
    row, ahead = snapshot.row, snapshot.ahead_ns
    expected = (row.owner, snapshot.started_ns, row.job_id, row.rank)
    try:
        with RankFileReader(snapshot.path) as file:
            identity = file.identity
            if (file.owner, identity["wall_ns"], identity["job_id"], identity["rank"]) != expected:
                return None
            lanes, records = file.lanes(), file.collectives()
    except RankFileError:
        return None
    here = (it._replace(arrival=it.arrival - ahead, end=it.end and it.end - ahead) for it in records)
    rows = tuple(_row(each) for each in here if _is_valid(each, len(lanes)))[-MAX_ROWS:]
    return RankCollectives(row.rank, tuple(CollectiveLane(it.op, it.role, it.group, it.peer) for it in lanes), rows)


def _is_valid(it: Collective, lanes: int) -> bool:
    """Whether it is over, and no number of it is absurd: any user may have written the file."""
    return (
        0 <= it.step <= _MAX_NUMBER
        and 0 <= it.lane < lanes
        and it.sequence > 0
        and 0 < it.arrival <= it.end <= it.arrival + MAX_STEP_NS
        and 0 <= it.waited <= MAX_STEP_NS
        and 0 <= it.bytes <= _MAX_NUMBER
    )


def _row(it: Collective) -> CollectiveRow:
    return CollectiveRow(it.step, it.lane, it.sequence - 1, it.arrival / 1e9, it.end / 1e9, it.waited / 1e9, it.bytes)


# The steps of all ranks of an answer as columns: who reads them needs no time a step. Standard library only: an agent
# holds no numpy.

_COLUMNS = 5 + len(PHASES)
_FORMATS = {0: "", 4: "I", 8: "Q"}
"""The format of a number in struct, by its width in bytes."""


def pack(steps: Sequence[Sequence[Step]]) -> PackedSteps:
    """The steps of each rank, which is_valid_step() lets pass."""
    columns = list(zip(*_numbers(steps), strict=True)) or [()] * _COLUMNS
    widths = tuple(_width(max(column, default=0)) for column in columns)
    packed = [
        struct.pack(f"<{len(column)}{_FORMATS[width]}", *column)
        for column, width in zip(columns, widths, strict=True)
        if width
    ]
    return PackedSteps(tuple(map(len, steps)), widths, b"".join(packed))


def _numbers(steps: Sequence[Sequence[Step]]) -> Iterator[tuple[int, ...]]:
    for of_rank in steps:
        for step, start, end, phases, waited, work in of_rank:
            yield step, start, end - start, waited, work, *phases


def _width(largest: int) -> int:
    """The bytes that a number of a column takes: 4 hold 4.29 s."""
    return 0 if not largest else 4 if largest < 1 << 32 else 8


# The processes of this node that run under laggard and are not seen as ranks, by the marks in the rank directory. Any
# user may have written a mark.

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
            prune(os.path.join(self.directory, str(os.geteuid())))
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
        """The seconds for which the present scan has hung; 0: none does. It waits for no scan."""
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
        ahead = {it.path: it.ahead_ns for it in self._selected}
        for file in files:
            try:
                snapshot = read_rank(file.path, self._node, now, self._exits, self._cpu, ahead.get(file.path, 0))
            except RankFileError as error:
                if error.reason != _VANISHED:
                    self._rejections.add(file.path, error.reason)
                continue
            is_recent = 0 <= snapshot.idle_ns < EXPIRE_AFTER_NS and file.changed >= self._booted
            if snapshot.row.state == "running" or is_recent:
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
        return boot_id()
    except OSError:
        return ""


class RankCache:
    """The ranks as last read. They are read again when somebody asks and they are older than `max_age_seconds`; while
    nobody asks there is no work."""

    def __init__(self, read: Callable[[], RanksDocument], max_age_seconds: float) -> None:
        self._read = read
        self._max_age_seconds = max_age_seconds
        self._lock = threading.Lock()
        self._cached: tuple[float, RanksDocument] | None = None

    def get(self) -> RanksDocument:
        with self._lock:  # a thread that comes while another reads waits, and gets what that one read
            now = time.monotonic()
            if self._cached is None or now - self._cached[0] >= self._max_age_seconds:
                self._cached = (now, self._read())
            return self._cached[1]
