"""The heartbeat: about once a second it writes into the rank file how far each lane and each process group has come.

It runs on the writer thread, uses no process group and takes no lock that the training takes. Where every thread is
stopped (SIGSTOP), or kept from running by a call that holds the GIL, the last beat grows old, and the reader sees that.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from laggard.kit.constants import PHASES
from laggard.rankfile import BeatRecord, GroupState, RankFileError, RankFileReader
from laggard.rankfile.layout import (
    FLIGHT_RECORDER,
    LANE_SHIFT,
    SEQUENCE_MASK,
    SUFFIX,
    WORD_CURRENT,
    WORD_ISSUED,
    WORD_PHASE,
    WORD_PROGRESS,
)
from laggard.rankfile.layout import SUFFIX as RANK_SUFFIX
from laggard.stacks.fault_text import MAX_TEXT, faults_of
from laggard.stacks.fault_text import SUFFIX as FAULT_SUFFIX
from laggard.stacks.kernel_side import NotThere, Unanswered, read_kernel_side
from laggard.stacks.sampled import SampledError, read_small_file, write_private
from laggard.trainer_hooks.collectives.flight_recorder import ABSENT, FlightRecorderStatus, read_status
from laggard.trainer_hooks.output.local_ranks import LocalRanks
from laggard.trainer_hooks.output.recording import RecordingSink
from laggard.trainer_hooks.record.ending import Facts
from laggard.trainer_hooks.record.event_log import HotPathState

_SLOW_READ_NS: Final = 100_000  # reading the Flight Recorder holds the GIL: slower ones are rare while training moves
_SLOW_READS: Final = 3  # in a row, until they are: the first read of all is often slow, and one now and then
_SKIPPED_BEATS: Final = 10  # beats without a read, from then on, at most and as long as the training moves

Lanes = Callable[[], tuple[tuple[int, int], ...]]
"""Returns how many collectives of each lane were entered, and how many are done."""


class BeatWriter(Protocol):
    """The interface of where beats go: a RankFileWriter. `words`: the live words."""

    @property
    def words(self) -> memoryview: ...

    def write_beat(self, beat: BeatRecord) -> None: ...

    def write_facts(self, text: bytes) -> None: ...


class Heartbeat:
    """The heartbeat of one rank. Its owner calls beat() every `interval_seconds`, and beat() calls `on_beat`, which may
    set facts. `also`: what else takes each beat."""

    def __init__(
        self,
        writer: BeatWriter,
        lanes: Lanes,
        facts: Facts,
        interval_seconds: float,
        on_beat: Callable[[], None] = lambda: None,
        also: Callable[[BeatRecord], None] = lambda _: None,
    ) -> None:
        self._writer = writer
        self._lanes = lanes
        self._facts = facts
        self._on_beat = on_beat
        self._also = also
        self._interval_ns = int(interval_seconds * 1e9)
        self._status = FlightRecorderStatus(ABSENT, ())
        self._slow_reads = 0  # in a row
        self._skip = 0  # beats that still come without a read
        self._asked_ns = 0  # when the Flight Recorder was read last
        self._progress: object = None  # of the training, at the last beat
        self._moved: dict[str, GroupState] = {}  # by name: each group as it was when its numbers last changed

    def beat(self) -> None:
        """Writes one beat, and the facts where they have changed."""
        now = time.perf_counter_ns()
        lanes = self._lanes()
        self._read_flight_recorder(now, lanes)
        state, groups = self._status.state, tuple(self._moved.values())
        beat = BeatRecord(now, self._interval_ns, state, lanes, groups, self._asked_ns)
        self._writer.write_beat(beat)
        self._also(beat)
        self._on_beat()
        facts = self._facts.changed_json()
        if facts is not None:
            self._writer.write_facts(facts)

    def _read_flight_recorder(self, now: int, lanes: tuple[tuple[int, int], ...]) -> None:
        """Reads it; not where reads are slow and the training has moved since the last beat: then nobody waits for an
        answer. Where the training stands still every beat reads it."""
        before, self._progress = self._progress, (self._writer.words[WORD_PROGRESS], lanes)
        if self._skip and before != self._progress:
            self._skip -= 1
            return
        began = time.thread_time_ns()  # this thread's CPU time: a busy machine does not make a read slow
        self._status, self._asked_ns = read_status(), now
        self._slow_reads = self._slow_reads + 1 if time.thread_time_ns() - began > _SLOW_READ_NS else 0
        self._skip = _SKIPPED_BEATS if self._slow_reads >= _SLOW_READS else 0
        self._facts.set("flight_recorder", FLIGHT_RECORDER[self._status.state])
        self._moved = {group[0]: self._as_of_its_move(group, now) for group in self._status.groups}

    def _as_of_its_move(self, group: tuple[str, int, int, int], now: int) -> GroupState:
        before = self._moved.get(group[0])
        return before if before and before[:4] == group else GroupState(*group, now)


# Writes into a recording where a rank stands while it finishes no step. Of a process that is killed there, nothing else
# tells what it was in.
#
# The heartbeat's thread calls it about once a second; the training thread does nothing for it.

_MIN_SECONDS: Final = 1.0  # without a step: most jobs' steps are shorter, and their recordings have no such line
_MAX_SECONDS: Final = 5.0  # between two lines: a job whose steps take minutes gets 10 MB a day


class QuietBeats:
    """Takes the beats of one rank, and writes a line about one that comes _MIN_SECONDS after the last step or later.
    The next follows when half as much time again has passed, at least _MIN_SECONDS, at most _MAX_SECONDS."""

    def __init__(self, sink: RecordingSink, live: HotPathState, others: LocalRanks) -> None:
        self._sink = sink
        self._others = others
        self._live = live
        self._since = 0  # the end of the last step, or the start
        self._due = 0.0

    @property
    def words(self) -> memoryview:
        return self._live.words

    def write_facts(self, text: bytes) -> None:
        """Nothing: the rank's line holds the facts that a recording needs."""

    def write_beat(self, beat: BeatRecord) -> None:
        self._others.remember()
        since = self._sink.quiet_since_ns
        if since != self._since:
            self._since, self._due = since, _MIN_SECONDS
        quiet = (beat.at_ns - since) / 1e9
        if quiet < self._due:
            return
        interval = min(max(_MIN_SECONDS, quiet / 2), _MAX_SECONDS)
        self._due = quiet + interval
        phase = self._live.words[WORD_PHASE]
        self._sink.write_at_once(
            {
                "kind": "beat",
                "quiet_seconds": quiet,
                "phase": PHASES[phase] if 0 <= phase < len(PHASES) else None,
                "in_flight": self._in_flight(beat.at_ns),
                "beat": self._beat(beat, interval),
            }
        )
        self._others.look()

    def _in_flight(self, now: int) -> dict[str, Any] | None:
        """The collective that the training thread is in. It may leave it while this thread reads: then it is in none
        for long."""
        words = self._live.words
        issued, current = words[WORD_ISSUED], words[WORD_CURRENT]
        lanes = self._sink.lanes
        if not issued or issued != words[WORD_ISSUED] or current >> LANE_SHIFT >= len(lanes):
            return None
        lane = lanes[current >> LANE_SHIFT]
        seconds = max(0, now - issued) / 1e9
        place = {"op": lane.op, "group": lane.group, "seq": current & SEQUENCE_MASK, "seconds": seconds}
        return place if lane.peer < 0 else {**place, "peer": lane.peer}

    def _beat(self, beat: BeatRecord, interval: float) -> dict[str, Any]:
        """The beat, as of itself, in the form of an agent's rows."""
        return {
            "age_seconds": 0.0,
            "interval_seconds": interval,
            "flight_recorder": FLIGHT_RECORDER[beat.flight_recorder],
            "lanes": [
                {
                    "op": lane.op,
                    "group": lane.group,
                    "entered": entered,
                    "done": done,
                    **({} if lane.peer < 0 else {"peer": lane.peer}),
                }
                for lane, (entered, done) in zip(self._sink.lanes, beat.lanes, strict=False)
            ],
            "groups": [
                {
                    "name": group.name,
                    "enqueued": group.enqueued,
                    "started": group.started,
                    "completed": group.completed,
                    "seconds": max(0, beat.asked_ns - group.moved_ns) / 1e9,
                }
                for group in beat.groups
            ],
            "groups_age_seconds": max(0, beat.at_ns - beat.asked_ns) / 1e9 if beat.asked_ns else None,
        }


# The ranks of this job on this machine that cannot take their own stacks: stopped, in the kernel, or with Python's lock
# held. A rank beside them sees in their rank files that nothing of them runs, and in /proc where they stand.

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


# The lines at which a silent rank stands, which faulthandler has written for it: while C code holds Python's lock, the
# rank itself can bring them nowhere. The file lies in the rank's recording, where one is made, and else beside its rank
# file; the agent reads the second place alone, and who is handed a hang folder has neither.


def keep_faults(peer: SilentPeer, recorded: str | None, kept: str) -> None:
    """Copies the rank's dumps, where there are any, to `kept`, and beside its rank file. `recorded`: where its
    recording has its files; both are paths without their end. A copy that fails is left out: it must not cost what else
    is kept of the standstill."""
    beside = peer.rank_file.removesuffix(RANK_SUFFIX)
    for base in (recorded, beside):
        found = _dumps(base + FAULT_SUFFIX, peer) if base else None
        if found is None:
            continue
        text, changed = found
        for target in (kept, beside):
            if target != base:
                with contextlib.suppress(OSError):
                    write_private(target + FAULT_SUFFIX, text)
                    os.utime(target + FAULT_SUFFIX, (changed, changed))  # that of the dump
        return


def _dumps(path: str, peer: SilentPeer) -> tuple[bytes, float] | None:
    """The file's text and the Unix time of its last dump; None where it has none of this process."""
    with contextlib.suppress(OSError, SampledError):
        changed = os.stat(path, follow_symlinks=False).st_mtime
        text = read_small_file(path, MAX_TEXT, os.geteuid())
        dumped = faults_of(text, changed)
        if dumped is not None and (dumped.rank, dumped.pid) == (peer.seen.rank, peer.seen.pid):
            return text, changed
    return None
