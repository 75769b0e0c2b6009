"""A background thread that does one thing again and again."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Final

INTERVAL_SECONDS: Final = 0.1
_INTERVAL_NS: Final = int(INTERVAL_SECONDS * 1e9)
_STOP_SECONDS: Final = 0.5


class PeriodicThread:
    """Calls `act` at once when started, and from then on every INTERVAL_SECONDS. `act` must not raise anything."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Raises RuntimeError where no thread can be had."""
        self._stopping = threading.Event()  # its own: a thread that stop() no longer waited for still ends
        thread = threading.Thread(target=self._run, args=(self._stopping,), name="laggard", daemon=True)
        thread.start()
        self._thread = thread

    def stop(self) -> bool:
        """Calls `act` a last time, on the thread, and ends the thread. Returns within _STOP_SECONDS, and False where
        the thread is stuck."""
        thread, self._thread = self._thread, None
        if thread is None:
            return True
        self._stopping.set()
        thread.join(_STOP_SECONDS)
        return not thread.is_alive()

    def pause_around_forks(self) -> None:
        """Has the thread stopped before each fork and started again in the parent: a child then has no thread that
        vanished in the middle of something, and Python does not warn of it."""
        paused: list[bool] = []

        def before() -> None:
            paused.append(self._thread is not None)
            self.stop()

        def after() -> None:
            if paused.pop():
                with contextlib.suppress(RuntimeError):  # no thread to be had: who relies on it does the work itself
                    self.start()

        os.register_at_fork(before=before, after_in_parent=after)

    def _run(self, stopping: threading.Event) -> None:
        self._act()
        asked = time.perf_counter_ns()
        while not stopping.wait(self._interval_seconds()):
            self._woke(time.perf_counter_ns() - asked - _INTERVAL_NS)
            self._act()
            asked = time.perf_counter_ns()
        self._act_last()

    def _interval_seconds(self) -> float:
        """The time until the next call."""
        return INTERVAL_SECONDS

    def _woke(self, late_ns: int) -> None:
        """The thread woke so much later than it had asked for."""

    def _act_last(self) -> None:
        self._act()
