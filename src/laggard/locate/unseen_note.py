"""The note on processes of a job that trained and are not seen as ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from laggard.kit.words import printable_line, ranks_text
from laggard.model import MAX_NAMED_RANKS, Note

NOTE_KIND: Final = "unseen"
_MAX_REASONS: Final = 2
_MAX_LINE_CHARACTERS: Final = 600


def unseen_note(ranks: Sequence[int], whys: Sequence[str], world_size: int) -> Note:
    """`2 processes (ranks 0-1) trained without being seen: why`. `ranks`, `whys`: of each process."""
    reasons = list(dict.fromkeys(whys))
    more = f"; and {len(reasons) - _MAX_REASONS} more reasons" if len(reasons) > _MAX_REASONS else ""
    each = tuple(sorted(set(ranks)))
    named = f" ({ranks_text(each[:MAX_NAMED_RANKS])})" if world_size > 1 else ""
    text = f"{len(ranks)} process{'' if len(ranks) == 1 else 'es'}{named} trained without being seen"
    return Note(
        NOTE_KIND, printable_line(f"{text}: {'; '.join(reasons[:_MAX_REASONS])}{more}", _MAX_LINE_CHARACTERS), each
    )
