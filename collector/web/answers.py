"""The answers that were made of the latest snapshot, kept until the next: many readers ask for the same between two
rounds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

T = TypeVar("T")

MAX_ANSWERS: Final = 64
"""The most answers that are kept of one snapshot. The largest, a heat map, has about a megabyte."""


class _Answer:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: Any = None


class SnapshotAnswers:
    """The answers of one snapshot, for use from threads. A second thread that asks for an answer that is being made
    waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._snapshot: object = None
        self._answers: dict[Hashable, _Answer] = {}

    def get(self, snapshot: object, key: Hashable, make: Callable[[], T]) -> T:
        """The answer that `make` returned for this snapshot and key. What it raises is not kept."""
        answer = self._answer(snapshot, key)
        with answer.lock:
            if answer.value is None:
                answer.value = make()
            value: T = answer.value
            return value

    def _answer(self, snapshot: object, key: Hashable) -> _Answer:
        with self._lock:
            if self._snapshot is not snapshot:
                self._snapshot, self._answers = snapshot, {}
            if key not in self._answers and len(self._answers) >= MAX_ANSWERS:
                del self._answers[next(iter(self._answers))]  # the oldest
            return self._answers.setdefault(key, _Answer())
