"""A thread beside the training that does one thing again and again."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Final

INTERVAL_SECONDS: Final = 0.1
_STOP_SECONDS: Final = 0.5


class Rounds:
    """Calls `act` at once, and from then on each INTERVAL_SECONDS; it must not raise anything."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Raises RuntimeError where no thread can be had."""
        self._stopping = threading.Event()  # its own: a thread that was given up waiting for still ends
        thread = threading.Thread(target=self._run, args=(self._stopping,), name="laggard", daemon=True)
        thread.start()
        self._thread = thread

    def stop(self) -> bool:
        """A last round, then no more. Returns soon, and False where the thread is stuck."""
        thread, self._thread = self._thread, None
        if thread is None:
            return True
        self._stopping.set()
        thread.join(_STOP_SECONDS)
        return not thread.is_alive()

    def around_forks(self) -> None:
        """From now on a fork finds no thread of ours: a child then has none that vanished in the middle of something,
        and Python does not warn of it."""
        paused: list[bool] = []

        def before() -> None:
            paused.append(self._thread is not None)
            self.stop()

        def after() -> None:
            if paused.pop():
                with contextlib.suppress(RuntimeError):  # no thread to be had: those who wait for it do it themselves
                    self.start()

        os.register_at_fork(before=before, after_in_parent=after)

    def _run(self, stopping: threading.Event) -> None:
        self._act()
        while not stopping.wait(INTERVAL_SECONDS):
            self._act()
        self._last()

    def _last(self) -> None:
        self._act()
