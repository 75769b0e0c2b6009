"""One rank's steps in a recording: turns step, span and collective records into rows of own time by phase."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from laggard.collector.recording.fields import as_mapping, as_seconds
from laggard.constants import PHASES
from laggard.wire.ranks import StepRow

OTHER = PHASES.index("other")


@dataclasses.dataclass
class RecordedStep:
    """The records of one rank's step. Times in seconds on that rank's clock."""

    start: float | None = None
    end: float | None = None
    spans: list[tuple[int, float, float]] = dataclasses.field(default_factory=list)  # phase, start, end
    waits: list[tuple[float, float]] = dataclasses.field(default_factory=list)  # when a wait ended, how long it took
    own: tuple[float, ...] | None = None  # by phase, where the recording has that in place of spans and collectives
    waited: float = 0.0

    def add(self, kind: str, record: Mapping[str, Any]) -> None:
        """Adds a step, span or collective record. Raises KeyError and ValueError for a field that is missing or
        wrong."""
        end = record.get("end")
        if end is None:
            return  # it never finished
        if kind == "collective":
            self._add_collective(record, end)
        elif kind == "span":
            self._add_span(record, end)
        else:
            self._add_step(record, end)

    def _add_collective(self, record: Mapping[str, Any], end: Any) -> None:
        start = record.get("start", record.get("issued"))
        if start is not None:
            waited = record.get("waited")
            ended = as_seconds(end)
            self.waits.append((ended, ended - as_seconds(start) if waited is None else as_seconds(waited)))

    def _add_span(self, record: Mapping[str, Any], end: Any) -> None:
        name = record["name"]
        phase = PHASES.index(name) if name in PHASES else OTHER
        self.spans.append((phase, as_seconds(record["start"]), as_seconds(end)))

    def _add_step(self, record: Mapping[str, Any], end: Any) -> None:
        self.start, self.end = as_seconds(record["start"]), as_seconds(end)
        if record.get("own") is not None:
            own = as_mapping(record["own"])
            self.own = tuple(as_seconds(own.get(name, 0.0)) for name in PHASES)
            self.waited = as_seconds(record["waited"])


def step_rows(steps: Mapping[int, RecordedStep]) -> list[StepRow]:
    """The rows of the steps, ascending. Where the recording has step records, a step without one is left out: it holds
    the collectives of a step that was broken off."""
    has_step_records = any(step.end is not None for step in steps.values())
    usable = {number: step for number, step in steps.items() if step.end is not None or not has_step_records}
    return [row for number in sorted(usable) if (row := _row(number, usable[number])) is not None]


def _row(number: int, step: RecordedStep) -> StepRow | None:
    """A step's own time by phase. A step without a step record lasts from its first moment to its last. None where it
    has no length."""
    ends = [end for _, _, end in step.spans] + [end for end, _ in step.waits]
    starts = [start for _, start, _ in step.spans] + [end - waited for end, waited in step.waits]
    start = min(starts, default=0.0) if step.start is None else step.start
    end = max(ends, default=0.0) if step.end is None else step.end
    if end <= start:
        return None
    if step.own is not None:
        return StepRow(number, start, end, step.own, step.waited)
    phases = [0.0] * len(PHASES)
    for phase, began, ended in step.spans:
        phases[phase] += ended - began - _waited_within(step.waits, began, ended)
    waited = sum(duration for _, duration in step.waits)
    phases[OTHER] += end - start - waited - sum(phases)
    return StepRow(number, start, end, tuple(phases), waited)


def _waited_within(waits: Iterable[tuple[float, float]], start: float, end: float) -> float:
    """The seconds of the waits that ended within a span: a wait belongs to the phase in which it blocked."""
    return sum(duration for ended, duration in waits if start <= ended <= end)
