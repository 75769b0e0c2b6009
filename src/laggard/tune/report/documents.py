"""The results of a campaign, as `laggard tune --format json` prints it (`laggard.tune/1`)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from laggard.recommend.advice.values import Recommendation

TUNE_SCHEMA: Final = "laggard.tune/1"


class TrialRow(msgspec.Struct, frozen=True):
    number: int
    phase: str
    changes: dict[str, Any]
    """The settings that differ from the default."""
    status: str
    seconds: float | None
    detail: str


class FinalistRow(msgspec.Struct, frozen=True):
    """One of the best few, against the default in interleaved pairs. `ratio`: throughput over the default's."""

    changes: dict[str, Any]
    ratio: float
    low: float | None
    high: float | None
    pairs: int
    verdict: str


class ImportanceRow(msgspec.Struct, frozen=True):
    parameter: str
    effect: float
    low: float
    high: float
    matters: bool


class TuneDocument(msgspec.Struct, frozen=True):
    kind: str
    objective: str
    study: str
    ended: str
    trials: tuple[TrialRow, ...]
    finalists: tuple[FinalistRow, ...]
    tied: tuple[dict[str, Any], ...]
    importances: tuple[ImportanceRow, ...]
    noise: float
    """Standard deviation of a repeat, as a share of the time."""
    drift: float | None
    """The default's time late in the campaign over early; None: none was seen."""
    spent_seconds: float
    never_tried: dict[str, tuple[Any, ...]]
    """The values that no trial had, by parameter."""
    rejected: dict[str, str]
    """Values that made results wrong, by parameter."""
    recommendation: Recommendation
    notes: tuple[str, ...] = ()
    schema: str = TUNE_SCHEMA
