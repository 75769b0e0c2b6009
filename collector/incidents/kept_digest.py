"""A digest of a run as it is kept. Values alone."""

from __future__ import annotations

from typing import Final, NamedTuple

from laggard.wire import encode
from laggard.wire.digest import Digest

LAST: Final = "last"
"""A run while it was healthy: its newest digest."""

FIRST: Final = "first"
"""A run's first hour."""


def of_incident(number: int) -> str:
    """A run as it was when the incident began."""
    return f"incident:{number}"


def incident_of(run: str) -> int | None:
    """The incident of such a run; None for others."""
    kind, _, number = run.partition(":")
    return int(number) if kind == "incident" and number.isascii() and number.isdecimal() else None


class KeptDigest(NamedTuple):
    """`run`: LAST, FIRST or of_incident(). There is one of each of a run, which began at `started_at` (Unix seconds; 0:
    not known)."""

    owner: int
    job_id: str
    run: str
    digest: Digest

    def row(self) -> tuple[int, str, float, str, str, int, float, bytes]:
        it = self.digest
        began, made = it.started_at or 0.0, it.made_at or 0.0
        return self.owner, self.job_id, began, self.run, it.script or "", it.world_size, made, encode(it)


class AskedDigest(NamedTuple):
    """The digest that is wanted: of the run itself, or with LAST of the last healthy other one of its script and
    size."""

    run: str
    owner: int
    job_id: str
    started_at: float
    script: str
    world_size: int
