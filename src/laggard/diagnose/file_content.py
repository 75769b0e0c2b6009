"""The content that was read of a file: its beginning and its end, as bytes, and as text where a format asks for it."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Final

_PIECE_BYTES: Final = 1 << 19
_MAX_LINE_BYTES: Final = 1 << 20
_MARKS: Final = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}  # PowerShell and Notepad write UTF-16


class FileContent:
    """The beginning of a file, and its end: what follows the beginning, or the last part of that. Held as bytes, since
    one character outside of Latin-1 makes a text of the same length two or four times as large."""

    def __init__(
        self, beginning: bytes = b"", end: tuple[bytes, ...] = (), skipped_bytes: int = 0, problem: str = ""
    ) -> None:
        self._beginning = beginning
        self._end = end
        self.skipped_bytes = skipped_bytes
        """The number of bytes between the beginning and the end that were not kept."""
        self._problem = problem
        self.host = ""
        """The machine that it comes from, where the file that it is a part of names it."""
        self.other_hosts: tuple[str, ...] = ()
        """The other machines that this file names."""
        self.count: Callable[[int], None] | None = None
        """Is told how many bytes each piece was made of, when the next one is asked for."""

    @classmethod
    def of_text(cls, text: str) -> FileContent:
        return cls(text.encode(errors="surrogateescape"))

    @property
    def held_bytes(self) -> int:
        return len(self._beginning) + sum(map(len, self._end))

    @property
    def raw(self) -> bytes:
        return b"".join((self._beginning, *self._end))

    @property
    def raw_beginning(self) -> bytes:
        return self._beginning

    @property
    def problem(self) -> str:
        """The reason why the pieces are only a part of the file, or nothing of it; empty: they are all of it."""
        reasons = [self._problem]
        if self.skipped_bytes:
            end = sum(map(len, self._end))
            reasons.append(f"only its first {_mebibytes(len(self._beginning))} and last {_mebibytes(end)} were read")
        return "; ".join(filter(None, reasons))

    @property
    def problem_of_the_beginning(self) -> str:
        """The reason why `text` is only a part of the file; empty: it is all of it."""
        cut = f"only its first {_mebibytes(len(self._beginning))} were read" if self._end else ""
        return cut or self._problem

    @cached_property
    def text(self) -> str:
        """The beginning as text. What is no text in it is replaced."""
        if self._beginning[:2] not in _MARKS:  # a decoder that is incremental makes one copy more
            return self._beginning.decode(errors="replace").removeprefix("\ufeff")
        return self._decoder().decode(self._beginning, not self._end).removeprefix("\ufeff")

    @property
    def first_bytes(self) -> bytes:
        return self._beginning[:512]

    def pieces(self) -> Iterator[str]:
        """Yields all that was read as text, in pieces that end with a line. Where something was left out, the line that
        it cuts is dropped on both sides."""
        if not self.skipped_bytes:
            yield from self._decoded((self._beginning, *self._end))
            return
        rest = ""
        for piece in self._decoded((self._beginning,)):
            rest = piece
            if piece.endswith("\n"):
                yield piece
        if not rest.endswith("\n"):
            yield rest[: rest.rfind("\n") + 1]
        cut = True
        for piece in self._decoded(self._end):
            yield piece[piece.find("\n") + 1 :] if cut else piece
            cut = False

    def _decoded(self, parts: tuple[bytes, ...]) -> Iterator[str]:
        decoder = self._decoder()
        rest = ""
        for part in parts:
            for start in range(0, len(part), _PIECE_BYTES):
                data = part[start : start + _PIECE_BYTES]
                text = rest + decoder.decode(data)
                cut = text.rfind("\n") + 1 or (len(text) if len(text) > _MAX_LINE_BYTES else 0)
                if cut:
                    yield text[:cut]
                rest = text[cut:]
                if self.count:
                    self.count(len(data))
        if rest := rest + decoder.decode(b"", True):
            yield rest

    def _decoder(self) -> codecs.IncrementalDecoder:
        encoding = _MARKS.get(self._beginning[:2], "utf-8")
        return codecs.getincrementaldecoder(encoding)(errors="replace")


def _mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"
