"""The changes, as `laggard recommend` and the collector's API say it (`laggard.recommendation/1`)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

RECOMMENDATION_SCHEMA: Final = "laggard.recommendation/1"


class Gain(msgspec.Struct, frozen=True):
    """The new throughput over the old. `basis`: measured (on this job), modelled (from what was measured of it), rule
    (elsewhere: published, or an option to be tried). None: not known."""

    basis: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


class Item(msgspec.Struct, frozen=True):
    """One change. `apply` and `revert` are for people to read before they run them."""

    target: str
    """The thing to change: nccl_env, nccl_tuner, deepspeed, launcher, pcie, nic, host."""
    key: str
    current: Any
    recommended: Any
    """None: remove it."""
    reason: str
    evidence: tuple[str, ...]
    gain: Gain
    risk: str
    apply: str
    revert: str
    """Empty: there is nothing to put back."""
    source: str
    repairs: bool = False
    """True where it repairs something broken, rather than tunes what works."""
    commands: tuple[str, ...] = ()
    """The lines of `apply` that are commands or settings as they stand; the others are words."""


class Recommendation(msgspec.Struct, frozen=True):
    blocked_by: tuple[str, ...]
    """Codes of critical findings of the fabric: until they are gone nothing is tuned, and the items repair them."""
    items: tuple[Item, ...]
    """The largest gain first; repairs before tuning."""
    files: dict[str, str]
    """The text to apply, as files by name."""
    notes: tuple[str, ...] = ()
    """The facts that were not known, and the advice that was held back."""
    schema: str = RECOMMENDATION_SCHEMA
