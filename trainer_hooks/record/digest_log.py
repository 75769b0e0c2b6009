"""The digests of this rank's parameters, on their way into the rank file's facts and into the recording."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from laggard.rankfile.fact_names import DIGEST_SKIPPED, DIGESTS
from laggard.trainer_hooks.record.facts import FACTS, Facts

_LAST: Final = 4
_SPARSE: Final = (16, 256, 4096)
_MAX_WAITING: Final = 4096
"""The most digests that wait for the recording, whose thread comes round ten times a second."""


class DigestLog:
    """Digests in the order of their steps. add() and skip() are for the training thread, take() for one other."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._first: list[Any] | None = None
        self._last: deque[list[Any]] = deque(maxlen=_LAST)
        self._sparse: dict[int, list[Any]] = {}
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_MAX_WAITING)

    def add(self, step: int, value: int, every: int) -> None:
        """Adds the digest after `step`."""
        pair = [step, f"{value % (1 << 64):016x}"]
        self._first = self._first or pair
        self._last.append(pair)
        self._sparse.update({stride: pair for stride in _SPARSE if step // every % stride == 0})
        kept = sorted({each[0]: each for each in (*self._sparse.values(), *self._last)}.values())
        self._facts.set(DIGESTS, {"every": every, "first": self._first, "last": kept})
        self._waiting.append({"step": step, "value": pair[1], "every": every})

    def skip(self, reason: str) -> None:
        """No digests are computed, for this reason (a key of DIGEST_SKIPPED_REASONS)."""
        self._facts.set(DIGEST_SKIPPED, reason)
        self._waiting.append({"skipped": reason})

    def take(self) -> list[dict[str, Any]]:
        """What came since the last call, as values of the recording's lines `digest`."""
        return [self._waiting.popleft() for _ in range(len(self._waiting))]


DIGEST_LOG: Final = DigestLog(FACTS)
"""The digests of this process."""
