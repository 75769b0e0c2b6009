"""The progress of a training by its log: the number of lines that tell of a step or a loss, and the last of them."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from laggard.kit.words import printable_line

PROGRESS_WORDS: Final = ("loss", "it/s", "s/it")
_LOSS: Final = re.compile(r"\bloss\b['\"]?\s{0,3}[:=]?\s{0,3}-?\d", re.IGNORECASE)
_COUNT: Final = re.compile(r"\b(?:step|iter(?:ation)?|epoch|batch|lr|learning_rate)\b", re.IGNORECASE)
_SPEED: Final = re.compile(r"\d\s?(?:it/s|s/it)\b")
MIN_TRAINING_LINES: Final = 3
"""The number of lines of a training that make a text a training's output."""
_MAX_CANDIDATES: Final = 512
_MAX_SHOWN_CHARACTERS: Final = 100


class LastProgress(NamedTuple):
    """`line` counts from 1, in its file."""

    line: int
    text: str


class ProgressReader:
    """Takes the pieces of one file."""

    def __init__(self) -> None:
        self.lines = 0
        self.last: LastProgress | None = None
        self.training_lines = 0
        """Counted up to MIN_TRAINING_LINES."""
        self._looked_at = 0

    def feed(self, piece: str) -> None:
        at = max(piece.rfind(word) for word in PROGRESS_WORDS)
        if at >= 0:
            start, end = _line_around(piece, at)
            text = printable_line(piece[start : min(end, start + 400)], _MAX_SHOWN_CHARACTERS)
            self.last = LastProgress(self.lines + piece.count("\n", 0, at) + 1, text)
            self._count_training_lines(piece)
        self.lines += piece.count("\n") + (not piece.endswith("\n"))

    def _count_training_lines(self, piece: str) -> None:
        """Looks at the first lines that have one of the words: of everyday texts with these there may be millions."""
        for word in PROGRESS_WORDS:
            at = piece.find(word)
            while at >= 0 and self._looked_at < _MAX_CANDIDATES and self.training_lines < MIN_TRAINING_LINES:
                start, end = _line_around(piece, at)
                line = piece[max(start, at - 400) : min(end, at + 400)]
                self._looked_at += 1
                self.training_lines += bool(_SPEED.search(line) or (_LOSS.search(line) and _COUNT.search(line)))
                at = piece.find(word, end)


def _line_around(piece: str, at: int) -> tuple[int, int]:
    """The places where the line around place `at` begins and ends. A carriage return ends a line, too."""
    start = max(piece.rfind("\n", 0, at), piece.rfind("\r", max(0, at - 2000), at)) + 1
    end = piece.find("\n", at)
    end = len(piece) if end < 0 else end
    turn = piece.find("\r", at, min(end, at + 2000))
    return start, turn if turn >= 0 else end


def what_is_known(readers: list[ProgressReader], whole: bool) -> str:
    """One sentence about a job's output in which nothing failed. `whole`: whether all lines were read, so that they
    have numbers."""
    lines = sum(reader.lines for reader in readers)
    last = next((reader.last for reader in reversed(readers) if reader.last), None)
    seen = f"none of {lines:,} lines" if whole else f"none of the {lines:,} lines that were read"
    known = f"{seen} says that anything failed, or that the job ended"
    if last is None:
        return known
    where = f"line {last.line:,}, " if whole and len(readers) == 1 else ""
    return f"{known}; the last that tells of a step or loss: {where}`{last.text}`"
