"""The process that writes a recording, and whether it still runs. Pure.

A recording without an end is one of a process that was killed, or of one that still writes: the process itself tells,
where this machine sees it. Where it does not, what was written seconds ago is not over yet, and of anything older
nothing is known.
"""

from __future__ import annotations

from typing import NamedTuple

from laggard.processes.identity import GONE, STOPPED

FRESH_SECONDS = 15.0
"""The age of a recording below which its process counts as running. A rank that lives writes every 5 s at least. Our
own choice."""


class Writer(NamedTuple):
    """The process that wrote a file, as of `seen_at`, Unix time: `state` as of processes.identity.state_of(), and how
    many seconds ago the file was written for the last time."""

    state: str | None
    seen_at: float
    written_seconds_ago: float

    @property
    def is_stopped(self) -> bool:
        return self.state == STOPPED

    @property
    def is_gone(self) -> bool:
        return self.state == GONE

    def lives(self, last_record_at: float | None) -> bool:
        """`last_record_at`: in Unix time, by the rank's clock; None where that is not known, or where nothing new is
        expected of the job. The file's own time does not do alone: a copy of an old recording is a new file."""
        if self.state is not None:
            return self.state != GONE
        ages = (self.written_seconds_ago, self.seen_at - (last_record_at or 0.0))
        return all(abs(age) < FRESH_SECONDS for age in ages)


UNKNOWN_WRITER = Writer(None, 0.0, float("inf"))
