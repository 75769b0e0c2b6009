"""Steps by the period of the collectives, for scripts whose optimizer has no hook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from laggard.constants import PHASES
from laggard.rankfile import Lane
from laggard.rankfile.layout import LANE_SHIFT
from laggard.trainer_hooks.record.records import RECORD_NUMBERS, StepRecord, Totals
from laggard.trainer_hooks.steps.period import smallest_period

_ENOUGH: Final = 192  # collectives without a step, before a period is looked for; half of them must follow it, for
# three alike in a row are found within many a step
_MOST: Final = 4096  # that are kept; a step of more than a third of them is not found


class PeriodicSteps:
    """A sink that makes steps of the collectives it gets, from the third repetition on, and none once somebody else
    makes them. Which part of a step a period begins with is anybody's guess: its length and waits are right, and what
    is no wait is in no phase."""

    def __init__(self, add_step: Callable[[StepRecord], None]) -> None:
        self._add_step = add_step
        self._kept: list[tuple[int, int, int, int]] = []  # issued, waited, and what makes the token: lane, bytes
        self._steps = 0
        self._needless = False

    def add_lane(self, lane: Lane, members: Sequence[int]) -> None: ...

    def flush(self, totals: Totals) -> None: ...

    def close(self) -> None: ...

    def step(self, record: StepRecord, totals: Totals) -> None:
        if totals.steps > self._steps:
            self._needless = True
            self._kept.clear()

    def collectives(self, step: int, numbers: Sequence[int], launched: Mapping[int, int]) -> None:
        if self._needless:
            return
        for place in range(0, len(numbers), RECORD_NUMBERS):
            word, issued, _, waited, size = numbers[place : place + RECORD_NUMBERS]
            self._kept.append((issued, waited, word >> LANE_SHIFT, size))
        self._kept.sort()
        if len(self._kept) >= _ENOUGH:
            self._make_steps()
        del self._kept[: max(0, len(self._kept) - _MOST)]

    def _make_steps(self) -> None:
        period = smallest_period([entry[2:] for entry in self._kept], least=_ENOUGH // 2)
        if period is None:
            return
        start = self._begin(period)
        while start + period < len(self._kept):
            self._make(self._kept[start : start + period + 1])
            start += period
        self._kept = self._kept[start:]

    def _begin(self, period: int) -> int:
        """Where the repetition begins that the end of the row belongs to."""
        tokens: list[Any] = [entry[2:] for entry in self._kept]
        start = len(tokens) - period
        while start > 0 and tokens[start - 1] == tokens[start - 1 + period]:
            start -= 1
        return start

    def _make(self, entries: Sequence[tuple[int, int, int, int]]) -> None:
        """A step from the first collective to the one that begins the next."""
        start, end = entries[0][0], entries[-1][0]
        waited = min(sum(entry[1] for entry in entries[:-1]), end - start)
        own = (*(0 for _ in PHASES[:-1]), end - start - waited)
        self._steps += 1
        self._add_step(StepRecord(self._steps - 1, start, end, own, waited, ()))
