"""Writes a rank's records into its rank file, for the agent of this node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from laggard.rankfile import Lane, RankFileWriter
from laggard.rankfile.layout import LANE_COUNT
from laggard.trainer_hooks.record.records import StepRecord, Totals
from laggard.trainer_hooks.record.step_timer import INPUT


class RankFileSink:
    """A sink (record/records.py) that writes the rank file."""

    def __init__(self, writer: RankFileWriter) -> None:
        self._writer = writer
        self._lost_lanes = 0  # that did not fit into the file's table: it has no counters of them

    def add_lane(self, lane: Lane, members: Sequence[int]) -> None:
        if self._writer.add_lane(lane) is None:
            self._lost_lanes += 1

    def collectives(self, step: int, numbers: Sequence[int], launched: Mapping[int, int]) -> None:
        self._writer.write_collectives(step, numbers)

    def step(self, record: StepRecord, totals: Totals) -> None:
        self._writer.write_step(record.step, record.start, record.end, *record.phases, record.waited)

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
        )
        self._writer.write_counters(fixed, totals.lanes[: 3 * LANE_COUNT])

    def close(self) -> None:
        self._writer.close()
