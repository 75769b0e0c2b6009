"""A recommendation as text: the answer first, then each change with what it should gain and how."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from laggard.collector.recommend.advice.values import Gain, Item, Recommendation
from laggard.text.words import ascii_line, counted, printable_line


def render_recommendation(found: Recommendation) -> str:
    return "".join(f"{ascii_line(line)}\n" for line in _lines(found))


def _lines(found: Recommendation) -> Iterator[str]:
    yield _headline(found)
    for number, item in enumerate(found.items, 1):
        yield ""
        yield f"{number}. {_change(item)}"
        yield f"   Why: {printable_line(item.reason)}"
        yield f"   Gain: {gain_text(item.gain)}"
        yield from (f"   Evidence: {printable_line(line, 200)}" for line in item.evidence)
        yield from (f"   Apply: {printable_line(line)}" for line in item.apply.splitlines() if line)
        yield f"   Revert: {printable_line(item.revert)}"
        yield f"   Risk: {item.risk}"
        yield f"   Source: {item.source}"
    if found.notes:
        yield ""
        yield from found.notes
    if found.files:
        yield ""
        yield f"`--write DIR` writes {', '.join(found.files)}."


def _headline(found: Recommendation) -> str:
    if found.blocked_by:
        return f"Repair the fabric before anything is tuned: {', '.join(found.blocked_by)}."
    if not found.items:
        return "Nothing to change, as far as what was given tells."
    first = found.items[0]
    more = f", and {counted(len(found.items) - 1, 'more change')}" if len(found.items) > 1 else ""
    return f"{_change(first)}{more}."


def _change(item: Item) -> str:
    if item.repairs and item.recommended is None and item.target != "nccl_env":
        now = "" if item.current is None else f": {_value(item.current)}"
        return f"Repair {item.key}{now} ({item.target})"
    if item.recommended is None:
        return f"Remove {item.key}={item.current} ({item.target})"
    now = "" if item.current is None else f", now {_value(item.current)}"
    return f"Set {item.key} to {_value(item.recommended)}{now} ({item.target})"


def _value(value: Any) -> str:
    """As configurations have it: `true`, not `True`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def gain_text(gain: Gain) -> str:
    """`1.12 times as fast (1.00 to 1.25, modelled)`; not known: to be measured."""
    low = "" if gain.low is None else f"{gain.low:.2f}"
    high = "" if gain.high is None else f"{gain.high:.2f}"
    between = f"{low} to {high}" if low and high else f"at least {low}" if low else f"at most {high}" if high else ""
    if gain.ratio is None:
        return "not known, to be measured" + (f" ({between} elsewhere)" if between else "")
    words = {"measured": "measured on this job", "modelled": "modelled", "rule": "as published elsewhere"}
    return f"{gain.ratio:.2f} times as fast ({', '.join(filter(None, (between, words[gain.basis])))})"
