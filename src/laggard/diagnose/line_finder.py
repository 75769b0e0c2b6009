"""Finds lines in files again: those that a diagnosis quotes, with their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.input_file import InputFile

_QUOTE_CHARACTERS: Final = 120
_MAX_LINE_CHARACTERS: Final = 4000


class FoundLine(NamedTuple):
    """`number` counts from 1; None: what stands before it was not read."""

    number: int | None
    text: str


class LineFinder:
    """Looks into files by their paths."""

    def __init__(self, files: Iterable[InputFile]) -> None:
        self._files: Mapping[str, InputFile] = {file.path: file for file in files}

    def find(self, path: str, quote: str, offset: int = 0) -> FoundLine | None:
        """Returns the first line from the character `offset` on that holds the quote; where none does, the line at the
        offset. None: there is no such file, or no such line."""
        if path not in self._files or not quote:
            return None
        content = self._files[path].read()
        wanted, before = quote[:_QUOTE_CHARACTERS], 0
        number = 1
        at_offset: FoundLine | None = None
        for piece in content.pieces():
            if before + len(piece) > offset:
                start = max(0, offset - before)
                if at_offset is None and offset:
                    at_offset = _line(content, piece, start, number, before)
                if (at := piece.find(wanted, start)) >= 0:
                    return _line(content, piece, at, number, before)
            before += len(piece)
            number += piece.count("\n")
        return at_offset

    def find_last(self, path: str, quote: str) -> FoundLine | None:
        """Returns the last line that holds the quote."""
        if path not in self._files or not quote:
            return None
        content = self._files[path].read()
        wanted, before, number = quote[:_QUOTE_CHARACTERS], 0, 1
        found: FoundLine | None = None
        for piece in content.pieces():
            if (at := piece.rfind(wanted)) >= 0:
                found = _line(content, piece, at, number, before)
            before += len(piece)
            number += piece.count("\n")
        return found

    def last(self, path: str) -> FoundLine | None:
        """Returns the last line that is not empty."""
        if path not in self._files:
            return None
        content = self._files[path].read()
        number, found = 1, None
        for piece in content.pieces():
            if text := piece.rstrip():
                start = max(text.rfind("\n"), text.rfind("\r")) + 1
                found = FoundLine(number + text.count("\n"), text[start:][:_MAX_LINE_CHARACTERS])
            number += piece.count("\n")
        return found if found is None or not content.skipped_bytes else found._replace(number=None)


def _line(content: FileContent, piece: str, at: int, number: int, before: int) -> FoundLine:
    start = max(piece.rfind("\n", 0, at), piece.rfind("\r", 0, at)) + 1
    end = min(_ends(piece, at))
    is_counted = not content.skipped_bytes or before + at < len(content.raw_beginning)
    return FoundLine(number + piece.count("\n", 0, at) if is_counted else None, piece[start : min(end, start + 4000)])


def _ends(piece: str, at: int) -> Iterator[int]:
    for mark in ("\n", "\r"):
        end = piece.find(mark, at)
        yield end if end >= 0 else len(piece)
