"""The document that `laggard diagnose` makes (`laggard.diagnosis/1`)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from laggard.model import Finding, Verdict

DIAGNOSIS_SCHEMA: Final = "laggard.diagnosis/1"


class FileResult(msgspec.Struct, frozen=True):
    """One file of a diagnosis."""

    path: str
    kind: str | None
    """The name of its format; None where no format recognised it."""
    unknown: str = ""
    """The parts that could not be judged, and why; empty: everything was judged."""


class Diagnosis(msgspec.Struct, frozen=True):
    verdict: Verdict
    files: tuple[FileResult, ...]
    findings: tuple[Finding, ...]
    facts: dict[str, Any]
    schema: str = DIAGNOSIS_SCHEMA
