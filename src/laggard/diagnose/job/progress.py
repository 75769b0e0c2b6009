"""The lines of a training's progress: those that tell of a loss or a speed."""

from __future__ import annotations

from typing import Final, NamedTuple

from laggard.kit.words import printable_line

PROGRESS_WORDS: Final = ("loss", "Loss ", "Loss:", "it/s", "s/it")
_MAX_SHOWN_CHARACTERS: Final = 100


class LastProgress(NamedTuple):
    """`line` counts from 1, in its file."""

    line: int
    text: str


def last_progress(piece: str, lines_before: int) -> LastProgress | None:
    """Returns the last line of a piece that has one of the words."""
    at = max(piece.rfind(word) for word in PROGRESS_WORDS)
    if at < 0:
        return None
    start = max(piece.rfind("\n", 0, at), piece.rfind("\r", max(0, at - 2000), at)) + 1
    text = piece[start : start + 400].partition("\n")[0].partition("\r")[0]
    return LastProgress(lines_before + piece.count("\n", 0, at) + 1, printable_line(text, _MAX_SHOWN_CHARACTERS))
