"""Writes a rank's records into its rank file, for the agent of this node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from laggard.rankfile import Lane
from laggard.rankfile.fact_names import GROUPS, MAX_NUMBERS, member_runs
from laggard.rankfile.layout import GROUP_BYTES, LANE_COUNT
from laggard.rankfile.writer import RankFileWriter
from laggard.trainer_hooks.record.ending import FACTS, Facts
from laggard.trainer_hooks.record.events import StepRecord, Totals
from laggard.trainer_hooks.record.step_timer import INPUT

_OTHER_WAY: Final = {"send": "recv", "recv": "send"}


class RankFileSink:
    """A sink (record/events.py) that writes the rank file, and the members of the process groups into `facts`."""

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
