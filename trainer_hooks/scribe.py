"""The thread beside the training: several times a second it takes in what the training thread has noted, and once a
second it gives signs of life.

So the training thread pays for adding to a list, and nothing for the rest: counting, sums, files. It stops where the
interpreter does; what was noted within the last tenth of a second of a process that is killed is lost with it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from laggard.trainer_hooks.recorder import Recorder

INTERVAL_SECONDS: Final = 0.1
BEAT_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 0.5


class Scribe:
    """One recorder's. `acts` are done about once a second; what they raise is counted, the training is not to hear of
    it."""

    def __init__(self, recorder: Recorder) -> None:
        self.acts: list[Callable[[], None]] = []
        self._recorder = recorder
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Raises RuntimeError where no thread can be had."""
        self._stopping = threading.Event()  # its own: a thread that was given up waiting for still ends
        thread = threading.Thread(target=self._run, args=(self._stopping,), name="laggard", daemon=True)
        thread.start()
        self._thread = thread
        self._recorder.beside = self

    def stop(self) -> None:
        """A last round, then no more. Returns soon, also where the thread is stuck."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._recorder.beside = None
            self._stopping.set()
            thread.join(_STOP_SECONDS)

    def around_forks(self) -> None:
        """From now on a fork finds no thread of ours: a child then has none that vanished in the middle of something,
        and Python does not warn of it."""
        paused: list[bool] = []

        def before() -> None:
            paused.append(self._thread is not None)
            self.stop()

        def after() -> None:
            if paused.pop():
                with contextlib.suppress(RuntimeError):  # no thread to be had: the training thread takes over
                    self.start()

        os.register_at_fork(before=before, after_in_parent=after)

    def _run(self, stopping: threading.Event) -> None:
        rounds = 0
        while True:
            self._recorder.take_in()
            if rounds % round(BEAT_SECONDS / INTERVAL_SECONDS) == 0:
                self._act()
            if stopping.wait(INTERVAL_SECONDS):
                break
            rounds += 1
        self._recorder.take_in()
        self._act()

    def _act(self) -> None:
        for act in self.acts:
            try:
                act()
            except Exception:
                self._recorder.totals.errors += 1
