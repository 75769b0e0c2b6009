"""What a file format is to `laggard diagnose`: how its files are recognised and judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from laggard.model import Finding


class KnownHardware(NamedTuple):
    """What the files together show of the machine. None: no file shows it."""

    gpus: int | None = None
    rdma: bool | None = None


class FileJudgement(NamedTuple):
    findings: tuple[Finding, ...] = ()
    facts: dict[str, Any] = {}
    unknown: str = ""
    """What could not be judged, and why; empty: everything was."""


class FileFormat(NamedTuple):
    name: str
    recognise: Callable[[str], bool]
    """Returns whether a text is of this format, by its beginning."""
    judge: Callable[[str, KnownHardware], FileJudgement]
    read_hardware: Callable[[str], KnownHardware] = lambda text: KnownHardware()
    judge_together: Callable[[Sequence[str], KnownHardware], FileJudgement] | None = None
    """Judges all files of this format at once, where they are parts of one whole."""
