"""The thread beside the training: several times a second it takes in what the training thread has noted, and once a
second it gives signs of life.

So the training thread pays for adding to a list, and nothing for the rest: counting, sums, files. It stops where the
interpreter does; what was noted within the last tenth of a second of a process that is killed is lost with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from laggard.trainer_hooks.record.periodic_thread import INTERVAL_SECONDS, PeriodicThread
from laggard.trainer_hooks.record.recorder import Recorder

BEAT_SECONDS: Final = 1.0
_ROUNDS_PER_BEAT: Final = round(BEAT_SECONDS / INTERVAL_SECONDS)


class Scribe(PeriodicThread):
    """One recorder's. `beats` are done about once a second; what they raise is counted, the training is not to hear of
    it."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(self._round)
        self.beats: list[Callable[[], None]] = []
        self._recorder = recorder
        self._rounds = 0

    def start(self) -> None:
        """Raises RuntimeError where no thread can be had."""
        self._rounds = 0
        super().start()
        self._recorder.set_background(self)

    def stop(self) -> bool:
        self._recorder.set_background(None)
        return super().stop()

    def _round(self) -> None:
        self._recorder.drain()
        if self._rounds % _ROUNDS_PER_BEAT == 0:
            self._beat()
        self._rounds += 1

    def _act_last(self) -> None:
        self._rounds = 0
        self._round()

    def _beat(self) -> None:
        for beat in self.beats:
            try:
                beat()
            except Exception:
                self._recorder.totals.errors += 1
