"""A rank's last steps, which grow with each answer of its agent."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import lt

import numpy as np

from laggard.locate.job_timings import MAX_WINDOW_STEPS, WINDOW_SECONDS, WINDOW_STEPS
from laggard.locate.step_tables import END, NO_STEPS, START, STEP, Table


class StepWindow:
    """A rank's last steps, ascending: WINDOW_STEPS of them, and of shorter steps those of the last WINDOW_SECONDS.
    `table` has them; a later one takes its place, and none ever changes."""

    __slots__ = ("_first", "_last", "_last_end", "table")

    def __init__(self) -> None:
        self.table: Table = NO_STEPS
        # The numbers of the first and the last step, and when the last ended: a number of an array takes 0.1 µs.
        self._first = self._last = -1
        self._last_end = 0.0

    def add(self, steps: Table, most: int = MAX_WINDOW_STEPS) -> bool:
        """Adds those of the steps that are new, and keeps the last of all, `most` of them at most; a repeated step
        changes nothing. Returns whether the rank got any further."""
        last_before = self._last
        known = self._known(steps[:, STEP].tolist())
        if known is None:
            merged = _merged(self.table, steps)
            if len(merged) > len(self.table):
                self._hold(merged, _excess(merged, NO_STEPS, most))
        elif known < len(steps):
            self._append(steps[known:] if known else steps, most)
        return self._last > last_before

    def restarted(self, steps: Table) -> bool:
        """Whether `steps` are numbered anew, later in time: the same job name, another run."""
        last, ended = self._last, self._last_end
        if last < 0 or not len(steps):
            return False
        numbers = steps[:, STEP].tolist()
        if all(map(lt, numbers, numbers[1:])):  # then the first of them alone can be numbers that there were already
            steps = steps[: bisect_right(numbers, last)]
        return any([number <= last and start > ended for number, start in steps[:, : START + 1].tolist()])

    def _known(self, numbers: Sequence[float]) -> int | None:
        """How many of the first of these steps are held, where all others come later; None where it is not so simple:
        they are in no order, or there are gaps that they may fill."""
        if not all(map(lt, numbers, numbers[1:])):
            return None
        known = bisect_right(numbers, self._last)
        if known and (numbers[0] < self._first or self._last - self._first >= len(self.table)):
            return None
        return known

    def _append(self, new: Table, most: int) -> None:
        """Holds `new`, which come after all that are held, too."""
        excess = _excess(self.table, new, most)
        if excess < len(self.table):
            self._keep(np.concatenate((self.table[excess:], new)))
        else:
            self._keep(new[excess - len(self.table) :].copy())

    def _hold(self, table: Table, excess: int) -> None:
        """Holds the steps of `table` but for the first, as many as `excess`."""
        self._keep(table[excess:].copy() if excess else table)

    def _keep(self, table: Table) -> None:
        self.table = table
        self._first, self._last = int(table.item(0, STEP)), int(table.item(-1, STEP))
        self._last_end = table.item(-1, END)


def _merged(held: Table, steps: Table) -> Table:
    """The steps of both, ascending; of those with one number the one that is held, or else the first."""
    together = np.concatenate((held, steps))
    return together[np.unique(together[:, STEP], return_index=True)[1]]


def _excess(held: Table, new: Table, most: int) -> int:
    """The number of the first steps of `held`, with `new` behind them, that are not kept."""
    count = len(held) + len(new)
    if count <= WINDOW_STEPS:
        return 0
    least, certain = max(0, count - most), count - WINDOW_STEPS
    if certain > len(held):
        held = np.concatenate((held, new))
    recent = held[least:certain, START] >= (new if len(new) else held).item(-1, END) - WINDOW_SECONDS
    first = int(recent.argmax()) if len(recent) else 0
    return least + first if len(recent) and recent[first] else certain
