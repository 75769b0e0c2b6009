"""A recommendation as text: the answer first, then each change with what it should gain and how."""

from __future__ import annotations

from collections.abc import Iterator

from laggard.recommend.advice.values import Recommendation
from laggard.recommend.advice.words import change_text, gain_text
from laggard.terminal.parts import Line, plain_text
from laggard.text.words import ascii_line, counted, printable_line

_SHELL = ("export ", "unset ")
"""The beginnings of texts that are to be copied as a whole."""


def render_recommendation(found: Recommendation) -> str:
    return plain_text(recommendation_lines(found))


def recommendation_lines(found: Recommendation) -> list[Line]:
    return [line._replace(text=ascii_line(line.text)) for line in _lines(found)]


def _lines(found: Recommendation) -> Iterator[Line]:
    yield Line(_headline(found), "fail" if found.blocked_by else "name")
    for number, item in enumerate(found.items, 1):
        yield Line("")
        yield Line(f"{number}. {change_text(item)}", "name")
        yield Line(f"   Why: {printable_line(item.reason)}")
        yield Line(f"   Gain: {gain_text(item.gain)}")
        yield from (Line(f"   Evidence: {printable_line(line, 200)}") for line in item.evidence)
        yield from (_command("Apply", line) for line in item.apply.splitlines() if line)
        if item.revert:
            yield _command("Revert", item.revert)
        yield Line(f"   Risk: {item.risk}")
        yield Line(f"   Source: {item.source}", "aside")
    if found.notes:
        yield Line("")
        yield from map(Line, found.notes)
    if found.files:
        yield Line("")
        yield Line(f"`--write DIR` writes {', '.join(found.files)}.")


def _command(label: str, text: str) -> Line:
    line = printable_line(text)
    is_shell = line.startswith(_SHELL)
    return Line(f"   {label}:", command=ascii_line(line)) if is_shell else Line(f"   {label}: {line}")


def _headline(found: Recommendation) -> str:
    if found.blocked_by:
        return f"Repair the fabric before anything is tuned: {', '.join(found.blocked_by)}."
    if not found.items:
        return "Nothing to change, as far as what was given tells."
    first = found.items[0]
    more = f", and {counted(len(found.items) - 1, 'more change')}" if len(found.items) > 1 else ""
    return f"{change_text(first)}{more}."
