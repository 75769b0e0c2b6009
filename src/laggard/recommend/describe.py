"""A recommendation as text: the answer first, then each change with what it should gain and how."""

from __future__ import annotations

from collections.abc import Iterator

from laggard.collector.recommend.advice.values import Recommendation
from laggard.collector.recommend.advice.words import change_text, gain_text
from laggard.text.words import ascii_line, counted, printable_line


def render_recommendation(found: Recommendation) -> str:
    return "".join(f"{ascii_line(line)}\n" for line in _lines(found))


def _lines(found: Recommendation) -> Iterator[str]:
    yield _headline(found)
    for number, item in enumerate(found.items, 1):
        yield ""
        yield f"{number}. {change_text(item)}"
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
    return f"{change_text(first)}{more}."
