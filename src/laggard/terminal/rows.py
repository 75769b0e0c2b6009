"""The breaking of a line into the rows of a terminal. Pure; without rich, for errors too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TextIO

_WORD = re.compile(r"(?:[^\s`]*`[^`]*`)+\S*|\S+")  # what is in backquotes is to be copied, and is not broken


def rows(text: str, width: int, indent: int, cells: Callable[[str], int] = len) -> Iterator[tuple[int, int]]:
    """The places where each row of `text` begins and ends. No row has more cells than `width` unless one word has; the
    rows after the first stand behind `indent` spaces. `cells`: how many a text takes."""
    begin = end = 0
    room, first = width, True
    for word in _WORD.finditer(text):
        if first:
            end, first = word.end(), False
        elif cells(text[begin : word.end()]) <= room:
            end = word.end()
        else:
            yield begin, end
            begin, end, room = word.start(), word.end(), width - indent
    yield begin, end


def wrapped_for(stream: TextIO, text: str) -> str:
    """`text` in rows where `stream` is a terminal, else as it is."""
    if not stream.isatty():
        return text
    import shutil  # slow to import: argparse needs it only for --help

    return "\n  ".join(text[begin:end] for begin, end in rows(text, shutil.get_terminal_size().columns, 2))
