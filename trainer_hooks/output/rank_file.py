"""A rank's file, for the agent of this node: its records, and the heartbeat, which writes about once a second how far
each lane and each process group has come.

The heartbeat runs on the writer thread, uses no process group and takes no lock that the training takes. Where every
thread is stopped (SIGSTOP), or kept from running by a call that holds the GIL, the last beat grows old, and the reader
sees that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from laggard.rankfile import BeatRecord, GroupState, Lane
from laggard.rankfile.fact_names import GROUPS, MAX_NUMBERS, member_runs
from laggard.rankfile.layout import FLIGHT_RECORDER, GROUP_BYTES, LANE_COUNT, WORD_PROGRESS
from laggard.rankfile.writer import RankFileWriter
from laggard.trainer_hooks.collectives.flight_recorder import ABSENT, FlightRecorderStatus, read_status
from laggard.trainer_hooks.record.ending import FACTS, Facts
from laggard.trainer_hooks.record.event_log import HotPathState
from laggard.trainer_hooks.record.events import INPUT, Sink, StepRecord, Totals

_OTHER_WAY: Final = {"send": "recv", "recv": "send"}


class RankFileSink(Sink):
    """Writes the rank file, and the members of the process groups into `facts`."""

    def __init__(self, writer: RankFileWriter, facts: Facts = FACTS) -> None:
        self._writer = writer
        self._facts = facts
        self._groups: dict[str, list[int]] = {}
        self._ways: set[tuple[str, int]] = set()  # operation and peer, of the lanes of sends and receives
        self._lost_lanes = 0  # that did not fit into the file's table: it has no counters of them

    def add_lane(self, lane: Lane, members: Sequence[int]) -> None:
        if self._writer.add_lane(lane) is None:
            self._lost_lanes += 1
        if self._is_mutual(lane):
            self._add_members(lane.group, members)

    def _is_mutual(self, lane: Lane) -> bool:
        """False of ranks that only one sends to the other, as in a ring of context parallelism: their work is equal,
        that of a pipeline's stages is not."""
        if lane.op not in _OTHER_WAY:
            return True
        self._ways.add((lane.op, lane.peer))
        return (_OTHER_WAY[lane.op], lane.peer) in self._ways

    def _add_members(self, group: str, members: Sequence[int]) -> None:
        """Adds the members that a lane's name may not tell: it names the first, the last and how many."""
        name = group.encode()[:GROUP_BYTES].decode(errors="ignore")
        if name in self._groups:
            return
        runs = member_runs(members)
        if runs and sum(map(len, self._groups.values())) + len(runs) <= MAX_NUMBERS:
            self._groups[name] = runs
            self._facts.set(GROUPS, dict(self._groups))

    def collectives(self, step: int, numbers: Sequence[int], launched: Mapping[int, int]) -> None:
        self._writer.write_collectives(step, numbers)

    def step(self, record: StepRecord, totals: Totals) -> None:
        self._writer.write_step(record.step, record.start, record.end, *record.phases, record.waited, record.work)

    def flush(self, totals: Totals) -> None:
        phases = totals.phases_ns
        fixed = (
            totals.steps,
            totals.last_step,
            totals.step_ns,
            sum(phases) - phases[INPUT],
            *phases,
            totals.waited_ns,
            totals.lost + self._lost_lanes,
            totals.errors,
            totals.work,
        )
        self._writer.write_counters(fixed, totals.lanes[: 3 * LANE_COUNT])

    def close(self) -> None:
        self._writer.close()


_SLOW_READ_NS: Final = 100_000  # reading the Flight Recorder holds the GIL: slower ones are rare while training moves
_SLOW_READS: Final = 3  # in a row, until they are: the first read of all is often slow, and one now and then
_SKIPPED_BEATS: Final = 10  # beats without a read, from then on, at most and as long as the training moves

Lanes = Callable[[], tuple[tuple[int, int], ...]]
"""Returns how many collectives of each lane were entered, and how many are done."""


class Heartbeat:
    """The heartbeat of one rank. Its owner calls beat() every `interval_seconds`. Each beat goes to `takers`, and
    the facts, where they have changed, to `write_facts`. `on_beat` may set facts."""

    def __init__(
        self,
        live: HotPathState,
        lanes: Lanes,
        facts: Facts,
        interval_seconds: float,
        takers: Sequence[Callable[[BeatRecord], None]],
        write_facts: Callable[[bytes], None] | None = None,
        on_beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._live = live
        self._takers = takers
        self._write_facts = write_facts
        self._lanes = lanes
        self._facts = facts
        self._on_beat = on_beat
        self._interval_ns = int(interval_seconds * 1e9)
        self._status = FlightRecorderStatus(ABSENT, ())
        self._slow_reads = 0  # in a row
        self._skip = 0  # beats that still come without a read
        self._asked_ns = 0  # when the Flight Recorder was read last
        self._progress: object = None  # of the training, at the last beat
        self._moved: dict[str, GroupState] = {}  # by name: each group as it was when its numbers last changed

    def beat(self) -> None:
        """Hands on one beat, and the facts where they have changed."""
        now = time.perf_counter_ns()
        lanes = self._lanes()
        self._read_flight_recorder(now, lanes)
        state, groups = self._status.state, tuple(self._moved.values())
        beat = BeatRecord(now, self._interval_ns, state, lanes, groups, self._asked_ns)
        for take in self._takers:
            take(beat)
        self._on_beat()
        facts = self._facts.changed_json()
        if facts is not None and self._write_facts is not None:
            self._write_facts(facts)

    def _read_flight_recorder(self, now: int, lanes: tuple[tuple[int, int], ...]) -> None:
        """Reads it; not where reads are slow and the training has moved since the last beat: then nobody waits for an
        answer. Where the training stands still every beat reads it."""
        before, self._progress = self._progress, (self._live.words[WORD_PROGRESS], lanes)
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
