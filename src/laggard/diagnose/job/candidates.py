"""The lines of a piece of a job's output that may say anything: those that have one of the rules' words. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from laggard.diagnose.job.lines import MAX_LINE_CHARACTERS

WORDS: Final = (
    "rror", "xception", "nterrupt", "imeout", "imed out", "xit", "return code", "illed", "OOM", "WARN", "atchdog",
    "NCCL work", "ignal", "arrier", "egmentation", "egfault", "vict", "reempt", "low on resource", "what()",
    "ailed", "terminated", "Traceback", "ut Of Memory", "ut of memory", "space left", "tale", "EXIT CODE", "SIGNAL: ",
    "ailure", "remainder of ranks", "lost communication", "invalid usage", "NET/OFI Request", "not connected", "nan",
    "NaN", "NAN", "Illegal", "Duplicate", "Memory access fault", "marked dead", "has died", "HSA_STATUS",
    "): invalid", "double free", "corrupted ", "onsolidate",
)  # fmt: skip
"""The words of which each line that a rule matches has one."""
_MIN_SHAPED: Final = 1 << 14
_MAX_UNLIKE_SHARE: Final = 0.25
"""The largest share of a piece that lines of different shapes make up, for shapes to be searched in place of lines."""
SHAPE_CHARACTERS: Final = 200
"""The number of a line's first characters, numbers aside, that are its shape."""

_NUMBER = re.compile(r"[0-9]+")
_NO_DIGITS: Final = str.maketrans("", "", "0123456789")
_DIGITS: Final = str.maketrans("123456789", "0" * 9)


def sparse(piece: str) -> Iterable[tuple[int, int]]:
    """The same places as those of candidates(), found by the shapes of lines: of thousands of lines most differ in
    numbers alone, and each shape is searched for words once."""
    if "\r" in piece or len(piece) < _MIN_SHAPED or not piece.isascii():  # other text takes four times the memory
        return candidates(piece)
    shapes = piece.translate(_NO_DIGITS).split("\n")
    unlike = set(shapes)
    if sum(map(len, unlike)) > len(piece) * _MAX_UNLIKE_SHARE:
        return candidates(piece)
    wanted = {shape for shape in unlike if any(word in shape for word in WORDS)}
    return _places(piece, shapes, wanted) if wanted else ()


def _places(piece: str, shapes: Iterable[str], wanted: Collection[str]) -> Iterator[tuple[int, int]]:
    start = 0
    for line, shape in zip(piece.split("\n"), shapes, strict=True):
        if shape in wanted:
            if len(line) > MAX_LINE_CHARACTERS:
                yield from ((start + first, start + last) for first, last in candidates(line))
            else:
                yield start, start + len(line)
        start += len(line) + 1


def candidates(piece: str) -> list[tuple[int, int]]:
    """The places of the lines that have one of the words, in order. A carriage return ends a line, too."""
    found: dict[int, int] = {}
    for word in WORDS:
        at = piece.find(word)
        while at >= 0:
            start = max(piece.rfind("\n", 0, at), piece.rfind("\r", max(0, at - MAX_LINE_CHARACTERS), at)) + 1
            end = piece.find("\n", at)
            end = len(piece) if end < 0 else end
            turn = piece.find("\r", at, min(end, at + MAX_LINE_CHARACTERS))
            end = turn if turn >= 0 else end
            found[max(start, at - MAX_LINE_CHARACTERS)] = end
            at = piece.find(word, end)
    return sorted(found.items())


def shape_of(line: str) -> str:
    """The beginning of a line, with 0 for each number."""
    return _NUMBER.sub("0", line[:MAX_LINE_CHARACTERS])[:SHAPE_CHARACTERS]


def shapes_of(piece: str) -> str:
    """The piece with 0 for each number: as shape_of(), for all lines at once."""
    shapes = piece.translate(_DIGITS)
    while "00" in shapes:
        shapes = shapes.replace("00", "0")
    return shapes
