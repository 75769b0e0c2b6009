"""The records of a rank, and where they go. Times in nanoseconds of CLOCK_MONOTONIC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from laggard.constants import PHASES
from laggard.rankfile import Lane

RECORD_NUMBERS: Final = 5
"""The number of numbers that a collective is: its word, its arrival, its end (0: never seen to end), how long the rank
waited in it, and its bytes. The word is the lane's index << LANE_SHIFT | the collective's sequence number in the lane.
The arrival is when the rank was ready: on a device when its stream came there, else the call. Records travel as flat
lists of numbers, five after five."""


class Span(NamedTuple):
    """A phase as it ran, by its index in constants.PHASES; `micro` counts the forward passes of the step, from 0."""

    phase: int
    start: int
    end: int
    micro: int


class StepRecord(NamedTuple):
    """One optimizer step: end - start = sum(phases) + waited."""

    step: int
    start: int
    end: int
    phases: tuple[int, ...]  # own time, in the order of constants.PHASES
    waited: int
    spans: tuple[Span, ...]
    work: int = 0  # elements of the model's inputs; 0: not seen


class Totals:
    """Cumulative counters of the rank, updated in place; the same as rankfile.Counters."""

    def __init__(self) -> None:
        self.steps = 0
        self.last_step = -1
        self.step_ns = 0
        self.phases_ns = [0] * len(PHASES)
        self.waited_ns = 0
        self.work = 0
        self.lost = 0
        self.errors = 0
        self.lanes: list[int] = []  # count, time blocked, bytes of each lane, one after the other

    def add(self, record: StepRecord) -> None:
        self.steps += 1
        self.last_step = record.step
        self.step_ns += record.end - record.start
        self.phases_ns = [total + own for total, own in zip(self.phases_ns, record.phases, strict=True)]
        self.waited_ns += record.waited
        self.work += record.work


class Sink(Protocol):
    """The interface of where records go."""

    def add_lane(self, lane: Lane, members: Sequence[int]) -> None:
        """Called once a lane, in the order of their indices, before the first collective of the lane."""

    def collectives(self, step: int, numbers: Sequence[int], launched: Mapping[int, int]) -> None:
        """`launched`: when the host launched the collectives that were timed on a device, by their words."""

    def step(self, record: StepRecord, totals: Totals) -> None: ...

    def flush(self, totals: Totals) -> None:
        """Called when there is nothing more for the moment."""

    def close(self) -> None: ...
