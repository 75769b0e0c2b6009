"""Remembers how the noise of a live job's ranks lasted in windows that are over: a window of 128 steps does not tell
what memory of hundreds of steps its noise has. Pure but for what is kept."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import numpy as np

from laggard.locate.job_timings import Floats, JobTimings
from laggard.locate.slow.noise import Blocks, blocks_of, joined_blocks
from laggard.locate.slow.steps import Steps

MAX_WINDOWS: Final = 16
"""The most windows that are kept of a job: what is older may have been another load."""

MAX_RANKS: Final = 64
"""The most ranks that are looked at: their median tells as well as that of thousands."""


class _Window(NamedTuple):
    blocks: list[Blocks]
    levels: Floats  # [R]


class NoiseHistory:
    """The noise of one run of a job."""

    def __init__(self) -> None:
        self._windows: deque[_Window] = deque(maxlen=MAX_WINDOWS)
        self._ranks: tuple[int, ...] = ()
        self._last = -1
        self.blocks: tuple[Blocks, ...] = ()

    def take(self, timings: JobTimings) -> None:
        """Takes a window in which nobody was accused, if none of its steps has been taken."""
        ranks, last = tuple(timings.ranks.tolist()), int(timings.steps[-1]) if len(timings.steps) else -1
        if ranks != self._ranks or last < self._last:
            self._windows.clear()
            self._ranks, self._last = ranks, -1
        if self._windows and last - self._last < len(timings.steps):
            return
        steps = Steps.usable(timings)
        if steps is None:
            return
        some = steps.excess[:, np.isfinite(steps.excess).all(axis=0)]
        relative = some[:, :: max(1, some.shape[1] // MAX_RANKS)] / float(np.median(steps.duration))
        if relative.shape[1] < 2:
            return
        if self._windows and relative.shape[1] != len(self._windows[-1].levels):
            self._windows.clear()
        self._windows.append(_Window(blocks_of(relative), relative.mean(axis=0)))
        self._last = last
        longer = blocks_of(np.stack([each.levels for each in self._windows]))
        whole = [each._replace(length=each.length * len(steps.numbers)) for each in longer]
        self.blocks = tuple(joined_blocks([*(each.blocks for each in self._windows), whole]))
