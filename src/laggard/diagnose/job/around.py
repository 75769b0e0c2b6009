"""A line of a job's output with the lines around it: where an exception was raised, what NCCL gave as its reason, whom
the paragraph names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Final, NamedTuple

from laggard.diagnose.entities import Entity, entities
from laggard.diagnose.job.lines import JobLine

_LOOK_BACK: Final = 1 << 13
_LINES_BACK: Final = 80
_LINES_ABOVE: Final = 5
_LINES_BELOW: Final = 14
"""The most lines of a paragraph above and below a line: the longest messages of Open MPI have twelve."""
_CODE_LINE = re.compile(r'\s*File "([^"]{1,300})", line (\d{1,7})')
_LOADER = re.compile(r'File "[^"]*torch/utils/data/dataloader\.py"')
_SHARED = re.compile(r'File "[^"]*/multiprocessing/(?:connection|resource_sharer|queues|reductions)\.py"')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|<frozen|<string>")
_LINES_OF_A_MESSAGE: Final = 8
_RULE = re.compile(r"[-=*_]{8,}\s*$")
_TRACEBACK: Final = "Traceback"
_ANY_EXCEPTION = re.compile(r"(?:\w+\.)*[A-Z]\w+(?::|$)")
_NEAREST: Final = 2
_FAILS = re.compile(r"rror|atal|xception|bort|ailed")
_NOBODY: Final = JobLine("").stream


class Raised(NamedTuple):
    where: str = ""
    """The innermost line of code that is no library's; without one, the innermost; empty: none is there."""
    is_within: bool = False
    """True: a library raised it."""


def _raised(frames: Iterable[str]) -> Raised:
    """`frames`: the lines of a traceback, the innermost first."""
    found = [match for text in frames if (match := _CODE_LINE.match(text))]
    own = next((match for match in found if not _LIBRARY.search(match[1])), None)
    shown = own or (found[0] if found else None)
    return Raised(f"{shown[1]} line {shown[2]}", own is not found[0]) if shown else Raised()


class Around:
    """One line of a piece of text. `parse` takes heads off."""

    def __init__(self, parse: Callable[[str], JobLine], piece: str, start: int, end: int) -> None:
        self._parse = parse
        self.piece = piece
        self.start = start
        self.end = end
        self.line = parse(piece[start:end])

    def before(self, count: int) -> list[JobLine]:
        """The last lines above, the nearest first."""
        texts = self.piece[max(0, self.start - _LOOK_BACK) : self.start].split("\n")[-count - 1 : -1]
        return [self._parse(text.rstrip("\r").rpartition("\r")[2]) for text in reversed(texts)]

    def after(self, count: int) -> list[JobLine]:
        """The lines below."""
        below = self.piece[self.end + 1 : self.end + 1 + _LOOK_BACK].split("\n")[:count]
        return [self._parse(text) for text in below]

    def ending(self) -> tuple[JobLine, Raised] | None:
        """What ends the traceback that this line begins, whatever its name: the first line that is not indented, with
        the place where it was raised."""
        frames: list[str] = []
        for line in self.after(_LINES_BACK):
            if line.stream not in (self.line.stream, _NOBODY) or (not line.text.strip() and not frames):
                continue
            if not line.text.startswith(" "):
                return (line, _raised(reversed(frames))) if frames and _ANY_EXCEPTION.match(line.text) else None
            frames.append(line.text)
        return None

    @cached_property
    def frames(self) -> tuple[str, ...]:
        """The lines of the traceback above, of the same process, the innermost first."""
        own = [before.text for before in self.before(_LINES_BACK) if before.stream == self.line.stream]
        begun = next((place for place, text in enumerate(own) if text.startswith(_TRACEBACK)), len(own))
        return tuple(own[:begun])

    def raised(self) -> Raised:
        return _raised(self.frames)

    def next_rank(self) -> int | None:
        """The rank that the next lines tell a failure of, where they name one alone."""
        found = {each.rank for each in self.after(_NEAREST) if each.rank is not None and _FAILS.search(each.text)}
        return found.pop() if len(found) == 1 else None

    def fetches(self) -> bool:
        """Whether the traceback leads through torch's DataLoader into multiprocessing: a connection to a worker, and
        not to another rank."""
        return any(map(_LOADER.search, self.frames)) and any(map(_SHARED.search, self.frames))

    def last_error(self) -> str:
        """The text that follows `Last error:` in torch's message about NCCL."""
        own = [
            each.text
            for each in self.after(12)
            if each.local_rank == self.line.local_rank and each.rank in (None, self.line.rank)
        ]
        at = next((place for place, text in enumerate(own[:4]) if text.startswith("Last error:")), None)
        return own[at + 1].strip()[:200] if at is not None and at + 1 < len(own) else ""

    def goes_on(self) -> str:
        """The lines with which the message goes on, of the same process: those that are indented, and below a colon
        those up to a gap."""
        found: list[str] = []
        lists = self.line.text.endswith(":")
        for below in self.after(_LINES_OF_A_MESSAGE):
            own = below.stream in (self.line.stream, _NOBODY) and not below.text.startswith(_TRACEBACK)
            if not own or not below.text.strip() or not (lists or below.text.startswith(" ")):
                break
            found.append(below.text)
        return "\n".join(found)

    def named(self) -> tuple[Entity, ...]:
        """Whom and what the paragraph names: the line, what it goes on with, and the lines above up to a gap."""
        above: list[str] = []
        for text in reversed(self.piece[max(0, self.start - 2000) : self.start].split("\n")[-_LINES_ABOVE - 1 : -1]):
            if not text.strip() or _RULE.match(text):
                break
            above.insert(0, text)
        below: list[str] = []
        for text in self.piece[self.end + 1 : self.end + 3000].split("\n")[:_LINES_BELOW]:
            if _RULE.match(text):
                break
            below.append(text)
        return entities("\n".join((*above, self.piece[self.start : self.end], *below)))
