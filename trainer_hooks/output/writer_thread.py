"""The thread that writes a rank's outputs: it drains what the training thread has recorded several times a second, and
about once a second it beats.

So the training thread pays for adding to a list and for nothing else: counters, sums and files are this thread's work.
The thread stops when the interpreter does. What was recorded in the last tenth of a second of a killed process is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from laggard.trainer_hooks.record.event_log import INTERVAL_SECONDS, PeriodicThread
from laggard.trainer_hooks.record.recorder import Recorder

BEAT_SECONDS: Final = 1.0
_DRAINS_PER_BEAT: Final = round(BEAT_SECONDS / INTERVAL_SECONDS)


class WriterThread(PeriodicThread):
    """The writer thread of one recorder. `on_beat`: called about once a second; `on_wake`: each time it wakes, with the
    nanoseconds that it is late. An exception in one of them is counted and does not reach the training."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(self._drain_and_beat)
        self.on_beat: list[Callable[[], None]] = []
        self.on_wake: list[Callable[[int], None]] = []
        self._recorder = recorder
        self._drains = 0

    def start(self) -> None:
        """Starts the thread. Raises RuntimeError where the process can have no further thread."""
        self._drains = 0
        super().start()
        self._recorder.set_background(self)

    def stop(self) -> bool:
        """Stops the thread after a last drain and beat. False where the thread is stuck."""
        self._recorder.set_background(None)
        return super().stop()

    def _drain_and_beat(self) -> None:
        self._recorder.drain()
        if self._drains % _DRAINS_PER_BEAT == 0:
            self._beat()
        self._drains += 1

    def _act_last(self) -> None:
        self._drains = 0
        self._drain_and_beat()

    def _woke(self, late_ns: int) -> None:
        for call in self.on_wake:
            call(late_ns)

    def _beat(self) -> None:
        for call in self.on_beat:
            try:
                call()
            except Exception:
                self._recorder.totals.errors += 1
