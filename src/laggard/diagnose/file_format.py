"""The kinds of files that `laggard diagnose` knows: one file each, one line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from laggard.model import Finding


class Told(NamedTuple):
    """What the files together tell of the machine. None: nothing does."""

    gpus: int | None = None
    rdma: bool | None = None


class Reading(NamedTuple):
    findings: tuple[Finding, ...] = ()
    facts: dict[str, Any] = {}
    unknown: str = ""
    """What could not be judged, and why; empty: everything was."""


class Kind(NamedTuple):
    name: str
    recognise: Callable[[str], bool]
    """Whether a file is of this kind, from its beginning."""
    read: Callable[[str, Told], Reading]
    tell: Callable[[str], Told] = lambda text: Told()
    read_together: Callable[[Sequence[str], Told], Reading] | None = None
    """All files of this kind at once, where they are parts of one thing."""
