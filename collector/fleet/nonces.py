"""Signed questions count once, and not much later than they were asked. Pure, but for the monotonic clock.

What was heard is kept by the monotonic clock: a step of the clock, there and back, must not make an old question new.
What was asked before this collector started it may have heard before."""

from __future__ import annotations

import time
from collections.abc import Callable


class Nonces:
    """To be used under a lock. `clock_seconds`: the largest difference between the clocks of who asks and of this
    collector; `most`: how many questions are kept; `since`: questions of an earlier Unix time count for nothing."""

    def __init__(
        self, clock_seconds: float, most: int, since: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock_seconds, self._most, self._since, self._clock = clock_seconds, most, since, clock
        self._heard: dict[str, float] = {}

    def refusal(self, nonce: str, at: float, wall: float) -> str:
        """Why the question, asked at `at`, counts for nothing; empty where it counts, and never again."""
        if not abs(at - wall) <= self._clock_seconds:
            return f"your clock and the collector's are {abs(at - wall):.0f} s apart: set them"
        if at < self._since:
            return "this was asked before the collector started: ask again"
        if nonce in self._heard or not 16 <= len(nonce) <= 64:
            return "this was asked before"
        now = self._clock()
        if len(self._heard) >= self._most:
            self._heard = {each: heard for each, heard in self._heard.items() if heard > now - 2 * self._clock_seconds}
        if len(self._heard) >= self._most:
            return "too many questions: ask again later"
        self._heard[nonce] = now
        return ""
