"""Rank files that were not believed: counted by reason, and each logged once."""

from __future__ import annotations

import logging
import os
from typing import Final

from laggard.wire import Ignored

log = logging.getLogger("laggard.agent")

MOST_LINES: Final = 8
"""Log lines of one scan: a user who makes new junk all day does not fill the log."""


class IgnoredFiles:
    """The ignored files of one scan after another: begin(), add() and count(), end()."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._told: set[tuple[str, str]] = set()
        self._counts: dict[str, int] = {}
        self._examples: dict[str, str] = {}
        self._seen: set[tuple[str, str]] = set()

    def begin(self) -> None:
        self._counts, self._examples, self._seen = {}, {}, set()

    def add(self, path: str, reason: str) -> None:
        name = _printable(os.path.basename(path))
        self._seen.add((name, reason))
        self._examples.setdefault(reason, name)
        self.count(reason, 1)

    def count(self, reason: str, number: int) -> None:
        """Files that were not even looked at, or no single one of which is to blame."""
        if number:
            self._counts[reason] = self._counts.get(reason, 0) + number

    def end(self) -> tuple[Ignored, ...]:
        """What this scan ignored; logs what the one before did not."""
        fresh = sorted(self._seen - self._told)
        for name, reason in fresh[:MOST_LINES]:
            log.warning("ignoring %s in %s: %s", name, self._directory, reason)
        if len(fresh) > MOST_LINES:
            log.warning("ignoring %d more files in %s", len(fresh) - MOST_LINES, self._directory)
        self._told = self._seen  # a file that is gone may come back with another fault
        return tuple(
            Ignored(reason, count, self._examples.get(reason, "")) for reason, count in sorted(self._counts.items())
        )


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text[:256])
