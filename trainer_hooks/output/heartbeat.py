"""The heartbeat: about once a second it writes into the rank file how far each lane and each process group has come.

It runs on the writer thread, uses no process group and takes no lock that the training takes. Where every thread is
stopped (SIGSTOP), or kept from running by a call that holds the GIL, the last beat grows old, and the reader sees that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from laggard.rankfile import BeatRecord, GroupState
from laggard.rankfile.layout import FLIGHT_RECORDER, WORD_PROGRESS
from laggard.trainer_hooks.collectives.flight_recorder import ABSENT, FlightRecorderStatus, read_status
from laggard.trainer_hooks.record.facts import Facts

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
