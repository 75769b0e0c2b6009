"""Takes samples of the training for a while, on a thread of its own, within a share of one core."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from laggard.stacks.sampled import Thread
from laggard.trainer_hooks.record.periodic_thread import PeriodicThread
from laggard.trainer_hooks.stacks.children import Children
from laggard.trainer_hooks.stacks.sampler import Sampler

MAX_CPU_SHARE: Final = 0.01
"""The most of one core that sampling takes. Where a sample is dear, as with thousands of threads, there are fewer."""

_GRACE_SECONDS: Final = 0.01  # of CPU, that the first samples may take


class Samples(NamedTuple):
    """The stacks that were seen. `at`: Unix time of the beginning; `seconds`: for how long it was looked."""

    at: float
    seconds: float
    threads: tuple[Thread, ...]


class _Round(NamedTuple):
    sampler: Sampler
    children: Children | None
    samples: int
    until: float
    began: float
    at: float
    done: Callable[[Samples], None]


class Sampling(PeriodicThread):
    """Samples in rounds, one at a time. `new_sampler` and `new_children` are called for each."""

    def __init__(self, new_sampler: Callable[[], Sampler], new_children: Callable[[], Children | None]) -> None:
        super().__init__(self._take)
        self._new_sampler = new_sampler
        self._new_children = new_children
        self._round: _Round | None = None
        self._taken = 0
        self._interval = 1.0

    @property
    def is_busy(self) -> bool:
        return self._round is not None

    def begin(self, samples: int, seconds: float, done: Callable[[Samples], None]) -> None:
        """Takes so many samples in so many seconds, and calls done(...) on its thread; not where no thread can be
        had."""
        self.stop()
        now = time.monotonic()
        self._taken, self._interval = 0, seconds / samples
        self._round = _Round(self._new_sampler(), self._new_children(), samples, now + seconds, now, time.time(), done)
        try:
            self.start()
        except RuntimeError:
            self._round = None

    def rest(self) -> None:
        """Ends the thread where its round is over. For the thread that began it."""
        if self._thread is not None and not self.is_busy:
            self.stop()

    def finish(self) -> None:
        """Ends the thread, and the round with what there is. For the thread that began it."""
        self.stop()
        self._end()

    def _take(self) -> None:
        it = self._round
        if it is None:
            return
        with contextlib.suppress(Exception):  # no stack is worth a fault in the training's process
            elapsed = time.monotonic() - it.began
            if it.sampler.cpu_seconds <= MAX_CPU_SHARE * elapsed + _GRACE_SECONDS:
                waits = it.sampler.take()
                if waits and it.children is not None:  # a signal to a worker is not for nothing
                    it.children.take()
        self._taken += 1
        if self._taken >= it.samples or time.monotonic() >= it.until:
            self._end()

    def _act_last(self) -> None:
        """Nothing: stop() comes before a fork, too."""

    def _end(self) -> None:
        it, self._round = self._round, None
        if it is not None:
            with contextlib.suppress(Exception):
                children = it.children.threads() if it.children is not None else ()
                if it.sampler.threads():  # else it ended before its first sample
                    it.done(Samples(it.at, time.monotonic() - it.began, (*it.sampler.threads(), *children)))

    def _interval_seconds(self) -> float:
        """Never in step with the training's steps."""
        return self._interval * (0.5 + random.random())
