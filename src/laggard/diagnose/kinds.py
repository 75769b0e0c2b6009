"""The kind of a failure by its own words, whatever program prints them. It tells whether it is a cause or what another
one brings about, and what mends it. A library's own message may give advice as well. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from laggard.diagnose.rules import Row, table
from laggard.kit.words import printable_line
from laggard.model import Fix

_TABLE: Final = table("failure_kinds")
_KINDS: Final = tuple(row for row in _TABLE.rows if "role" in row.more)
_ADVICE: Final = _TABLE.of("advice")[0].regex
_MAX_CHARACTERS: Final = 2000
_MAX_ADVICE: Final = 300
_SENTENCE: Final = re.compile(r"(?<=[.!])\s+(?=[A-Z0-9(`])")
_BLANKS: Final = re.compile(r"[^\S\n]{3,}")
_SOLUTION: Final = re.compile(r"^\s*(?:Solution|Hint|Suggestion|Resolution|Action): ?(.+)", re.MULTILINE)


@lru_cache(maxsize=4096)
def kind_of(text: str) -> Row | None:
    """The first kind that a text is of; None: its words tell of none."""
    return next((row for row in _KINDS if _holds(row, text[:_MAX_CHARACTERS])), None)


def _holds(row: Row, text: str) -> bool:
    match = row.regex.search(text)
    if match is None:
        return False
    told = match.groupdict()
    return "more" not in told or int(told["more"][:18]) > int(told["than"][:18])


def quote(text: str, limit: int) -> str:
    """`text`; where it is longer than `limit` characters, the part with the words that tell its kind."""
    row = kind_of(text)
    match = row.regex.search(text[:_MAX_CHARACTERS]) if row else None
    if len(text) <= limit or match is None or match.end() <= limit:
        return text[:limit]
    return f"...{text[max(0, match.end() + 3 - limit) : match.end()]}"


def is_cause(text: str) -> bool:
    """Whether the words tell of what brings about other failures by itself."""
    return (row := kind_of(text)) is not None and row.more["role"] == "cause"


def effect_of(text: str) -> Row | None:
    """The kind of a text that tells only that a peer is gone or that something took too long; None: it tells more."""
    row = kind_of(text)
    return row if row is not None and row.more["role"] == "effect" else None


def is_vague(text: str) -> bool:
    """Whether the words tell only of an effect, or that a process ended."""
    return (row := kind_of(text)) is not None and row.more["role"] != "cause"


def own_advice(text: str) -> str:
    """What the message itself tells its reader to do, as it says it; empty: nothing."""
    text = _BLANKS.sub("  ", text[:_MAX_CHARACTERS])
    if told := _SOLUTION.search(text):
        return printable_line(told[1], _MAX_ADVICE)
    found = next((match[1] for match in map(_ADVICE.search, _SENTENCE.split(text)) if match), "")
    return printable_line(found, _MAX_ADVICE)


def advice_for(texts: Sequence[str], otherwise: Fix) -> Fix:
    """What to do about a failure that these texts tell of: what the library says, and what mends the first cause. If no
    cause's kind is known, `otherwise`."""
    causes = (row for row in map(kind_of, texts) if row is not None and row.more["role"] == "cause")
    cause = next(causes, None)
    fix = cause.fix if cause else otherwise
    said = next(filter(None, map(own_advice, texts)), "")
    if not said:
        return fix
    return msgspec.structs.replace(fix, text=f"The message itself says: `{said}`. {fix.text if cause else ''}".strip())


EFFECTS: Final = {row.kind: row.fix for row in _KINDS if row.more["role"] == "effect"}
"""What to do about effects whose cause is not told."""
