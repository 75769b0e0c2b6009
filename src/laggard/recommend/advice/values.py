"""The changes, as `laggard recommend` and the collector's API say it (`laggard.recommendation/1`), and in words,
which pages and `laggard locate` share."""

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


def change_text(item: Item) -> str:
    """`Set zero_optimization.overlap_comm to true, now false (deepspeed)`."""
    if item.repairs and item.recommended is None and item.target != "nccl_env":
        now = "" if item.current is None else f": {_value(item.current)}"
        return f"Repair {item.key}{now}" + ("" if item.target == "host" else f" ({item.target})")
    if item.recommended is None:
        return f"Remove {item.key}" if item.current is None else f"Remove {item.key}={item.current} ({item.target})"
    now = "" if item.current is None else f", now {_value(item.current)}"
    return f"Set {item.key} to {_value(item.recommended)}{now} ({item.target})"


def gain_text(gain: Gain) -> str:
    """`1.12 times as fast (1.05 to 1.25, measured on this job)`; `1.12 times as fast (from no gain to 1.25, modelled)`;
    `at most 1.25 times as fast (modelled)` where the gain is its own bound; not known: to be measured."""
    between = _between(gain)
    if gain.ratio is None:
        return "not known, to be measured" + (f" ({between} elsewhere)" if between else "")
    words = {"measured": "measured on this job", "modelled": "modelled", "rule": "as published elsewhere"}
    if gain.low == 1.0 and gain.high is not None:
        is_bound = gain.ratio >= gain.high
        start = "at most " if is_bound and gain.ratio > 1 else ""
        between = "" if is_bound else f"from no gain to {gain.high:.2f}"
    else:
        start = ""
    return f"{start}{gain.ratio:.2f} times as fast ({', '.join(filter(None, (between, words[gain.basis])))})"


def _between(gain: Gain) -> str:
    low = "" if gain.low is None else f"{gain.low:.2f}"
    high = "" if gain.high is None else f"{gain.high:.2f}"
    return f"{low} to {high}" if low and high else f"at least {low}" if low else f"at most {high}" if high else ""


def _value(value: Any) -> str:
    """The value as configurations have it: `true`, not `True`."""
    return str(value).lower() if isinstance(value, bool) else str(value)
