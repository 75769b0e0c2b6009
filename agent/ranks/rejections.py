"""Rank files that were rejected: counted by reason, and each logged once."""

from __future__ import annotations

import logging
import os
from typing import Final

from laggard.wire.ranks import RejectedFiles

log = logging.getLogger("laggard.agent")

MAX_LOG_LINES: Final = 8
"""The most lines of the log for each scan, so that a user who makes new junk all day does not fill the log."""


class Rejections:
    """The rejected files of one scan after another: begin_scan(), then add() and count(), then end_scan()."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._logged: set[tuple[str, str]] = set()
        self._counts: dict[str, int] = {}
        self._examples: dict[str, str] = {}
        self._current: set[tuple[str, str]] = set()

    def begin_scan(self) -> None:
        self._counts, self._examples, self._current = {}, {}, set()

    def add(self, path: str, reason: str) -> None:
        name = _printable(os.path.basename(path))
        self._current.add((name, reason))
        self._examples.setdefault(reason, name)
        self.count(reason, 1)

    def count(self, reason: str, number: int) -> None:
        """Counts files that were not read, or of which no single one is to blame: they have no example and no line in
        the log."""
        if number:
            self._counts[reason] = self._counts.get(reason, 0) + number

    def end_scan(self) -> tuple[RejectedFiles, ...]:
        """Returns what this scan rejected, and logs what the scan before did not reject."""
        new = sorted(self._current - self._logged)
        for name, reason in new[:MAX_LOG_LINES]:
            log.warning("ignoring %s in %s: %s", name, self._directory, reason)
        if len(new) > MAX_LOG_LINES:
            log.warning("ignoring %d more files in %s", len(new) - MAX_LOG_LINES, self._directory)
        self._logged = self._current  # only these: a file that is gone may come back with another fault
        return tuple(
            RejectedFiles(reason, count, self._examples.get(reason, ""))
            for reason, count in sorted(self._counts.items())
        )


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text[:256])
