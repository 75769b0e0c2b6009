"""Steps by the period of the collectives, for scripts whose optimizer has no hook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from laggard.constants import PHASES
from laggard.rankfile import Lane
from laggard.rankfile.layout import LANE_SHIFT
from laggard.trainer_hooks.record.records import RECORD_NUMBERS, StepRecord, Totals
from laggard.trainer_hooks.steps.period import smallest_period

_MIN_COLLECTIVES: Final = 192
"""The number of collectives without a step, before a period is searched. Half of them must repeat with it, because
three equal ones in a row occur within many a step."""
_MAX_KEPT: Final = 4096  # collectives; a step of more than a third of them is not found
_PATIENCE_NS: Final = 1_800_000_000_000
"""The time that an engine or an optimizer which was made may take for its first step. Layers of one size repeat their
collectives within it, as those of ZeRO stage 3 and FSDP do: these are no steps."""
_COPYING: Final = frozenset({"broadcast", "all_gather", "scatter", "gather", "barrier"})
"""The operations that alone are no step of training: parameters are sent to all ranks when a model is built, loaded or
saved."""


class PeriodicSteps:
    """A sink that makes steps of the collectives it gets, from the third repetition on, and none any more once steps
    come from elsewhere. At which place of the true step a period begins is not known: a step made so has the right
    length and waits, and all else of it is in the phase `other`."""

    def __init__(self, add_step: Callable[[StepRecord], None], expected: Callable[[], bool] = lambda: False) -> None:
        """`expected`: whether something was made that will tell of steps, such as a DeepSpeed engine."""
        self._add_step, self._expected = add_step, expected
        self._began: int | None = None
        self._copying: list[bool] = []  # by lane
        self._kept: list[tuple[int, int, int, int]] = []  # issued, waited, and what makes the token: lane, bytes
        self._steps = 0
        self._disabled = False

    def add_lane(self, lane: Lane, members: Sequence[int]) -> None:
        self._copying.append(lane.op in _COPYING)

    def flush(self, totals: Totals) -> None: ...

    def close(self) -> None: ...

    def step(self, record: StepRecord, totals: Totals) -> None:
        if totals.steps > self._steps:
            self._disabled = True
            self._kept.clear()

    def collectives(self, step: int, numbers: Sequence[int], launched: Mapping[int, int]) -> None:
        if self._disabled:
            return
        for place in range(0, len(numbers), RECORD_NUMBERS):
            word, issued, _, waited, size = numbers[place : place + RECORD_NUMBERS]
            self._kept.append((issued, waited, word >> LANE_SHIFT, size))
        self._kept.sort()
        if len(self._kept) >= _MIN_COLLECTIVES and not self._is_early():
            self._add_steps()
        del self._kept[: max(0, len(self._kept) - _MAX_KEPT)]

    def _add_steps(self) -> None:
        period = smallest_period([entry[2:] for entry in self._kept], least=_MIN_COLLECTIVES // 2)
        if period is None or all(self._is_copying(entry[2]) for entry in self._kept[-period:]):
            return
        start = self._first_repetition(period)
        while start + period < len(self._kept):
            self._add_period(self._kept[start : start + period + 1])
            start += period
        self._kept = self._kept[start:]

    def _is_early(self) -> bool:
        """Whether steps may still come from elsewhere."""
        if self._began is None:
            self._began = self._kept[0][0]
        return self._expected() and self._kept[-1][0] - self._began < _PATIENCE_NS

    def _is_copying(self, lane: int) -> bool:
        return lane < len(self._copying) and self._copying[lane]

    def _first_repetition(self, period: int) -> int:
        """The place where the repetition begins that lasts to the end of the row."""
        tokens: list[Any] = [entry[2:] for entry in self._kept]
        start = len(tokens) - period
        while start > 0 and tokens[start - 1] == tokens[start - 1 + period]:
            start -= 1
        return start

    def _add_period(self, entries: Sequence[tuple[int, int, int, int]]) -> None:
        """Adds a step from the first of these collectives to the last, which begins the next step."""
        start, end = entries[0][0], entries[-1][0]
        waited = min(sum(entry[1] for entry in entries[:-1]), end - start)
        own = (*(0 for _ in PHASES[:-1]), end - start - waited)
        self._steps += 1
        self._add_step(StepRecord(self._steps - 1, start, end, own, waited, ()))
