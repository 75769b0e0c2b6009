"""Reads the events of a profiler trace one after the other, so that a trace of gigabytes takes no memory of that size.

What is held is a chunk of the file and the event that is read; an event that is longer than MAX_EVENT_CHARS ends the
reading. A damaged event costs that event, what is cut off the rest; both are counted and told.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

CHUNK_BYTES = 4 << 20
MAX_EVENT_CHARS = 16 << 20
"""The most characters of an event. An event with its shapes and its stack has kilobytes."""

_NEXT_EVENT = re.compile(r'\}\s*,\s*(?=\{\s*")')
_SPACE = re.compile(r"[\s,]*")
_OF_NUMBERS = ("", *"0123456789.eE+-")
"""The characters with which a number may go on in the next chunk."""

_DECODER = json.JSONDecoder()
_GZIP_MAGIC = b"\x1f\x8b"


class NoTrace(ValueError):
    """The file is no profiler trace, or cannot be read; the text says why."""


class TraceStream:
    """The events of one trace. `head` has the other values of the file that were met so far. `damaged` counts the
    events that could not be read; `cut_off` says why the file could not be read to its end, empty where it could."""

    def __init__(self, path: Path) -> None:
        self.head: dict[str, Any] = {}
        self.damaged = 0
        self.cut_off = ""
        self._path = path
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._text = ""
        self._at = 0
        self._ended = False

    def events(self) -> Iterator[dict[str, Any]]:
        """The members of `traceEvents` that are objects. Raises NoTrace where there is no such list, and OSError."""
        with open(self._path, "rb") as file:
            self._file = _Unpacked(file)
            found = False
            if not self._skip_to("{"):
                raise NoTrace("no JSON object")
            while (key := self._key()) is not None:
                if key == "traceEvents" and self._skip_to("["):
                    found = True
                    yield from self._list()
                    continue
                value = self._value()
                if value is None:
                    break
                self.head[key] = value[0]
            if not found:
                raise NoTrace(self.cut_off or "it has no list traceEvents")

    def _list(self) -> Iterator[dict[str, Any]]:
        while self._peek() not in ("]", ""):
            value = self._value()
            if value is not None and isinstance(value[0], dict):
                yield value[0]
            elif value is not None:
                self.damaged += 1
            elif not self._next_event():
                return
        self._skip_to("]")

    def _next_event(self) -> bool:
        """Goes on behind what could not be read; False where nothing follows."""
        self.damaged += 1
        while not self.cut_off:
            match = _NEXT_EVENT.search(self._text, self._at)
            if match is not None:
                self._at = match.end()
                return True
            self._at = max(len(self._text) - 64, self._at)  # what separates events may lie across two chunks
            if not self._more():
                self.cut_off = self.cut_off or "it is cut off"
        return False

    def _peek(self) -> str:
        """The next character that is no space or comma; empty at the end."""
        while True:
            match = _SPACE.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                self.cut_off = self.cut_off or "it is cut off"
                return ""

    def _skip_to(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self._at += 1
        return True

    def _key(self) -> str | None:
        if self._peek() != '"':
            return None
        key = self._value()
        if key is None or not isinstance(key[0], str) or not self._skip_to(":"):
            return None
        return key[0]

    def _value(self) -> tuple[Any] | None:
        """The next value, in a tuple; None where it is none, or cut off."""
        self._peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                return None
            except ValueError as error:
                near_end = getattr(error, "pos", 0) > len(self._text) - 512 or "Unterminated" in str(error)
                if not near_end or len(self._text) - self._at > MAX_EVENT_CHARS or not self._more():
                    return None
            else:
                goes_on = isinstance(value, (int, float)) and self._text[end : end + 1] in _OF_NUMBERS
                if not (goes_on and len(self._text) - end < 64) or not self._more():
                    self._at = end
                    return (value,)

    def _more(self) -> bool:
        """Reads on, and forgets what was read; False at the end of the file."""
        if self._ended:
            return False
        try:
            data = self._file.read(CHUNK_BYTES)
        except zlib.error:
            data, self.cut_off = b"", "it is damaged where it is packed"
        self._ended = not data
        self._text = self._text[self._at :] + self._decode(data, final=self._ended)
        self._at = 0
        return not self._ended


class _Unpacked:
    """A file's bytes or, where it is packed by gzip, what is in it. Of a file that is cut off all that there is comes,
    which the gzip module does not promise."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        packed = file.read(2) == _GZIP_MAGIC
        file.seek(0)
        self._unpack = _unpacker() if packed else None
        self._rest = b""

    def read(self, count: int) -> bytes:
        """Reads at most `count` bytes; none at the end. Raises zlib.error."""
        if self._unpack is None:
            return self._file.read(count)
        while True:
            if self._unpack.eof and not self._begin_member(count):
                return b""
            data: bytes = self._rest or self._file.read(count)
            unpacked: bytes = self._unpack.decompress(data, count)
            self._rest = self._unpack.unconsumed_tail
            if unpacked or not data:
                return unpacked

    def _begin_member(self, count: int) -> bool:
        """Goes on with what was packed behind the first; False where nothing more was."""
        rest = self._unpack.unused_data if self._unpack else b""
        while len(rest) < len(_GZIP_MAGIC) and (more := self._file.read(count)):
            rest += more
        self._unpack, self._rest = _unpacker(), rest
        return rest.startswith(_GZIP_MAGIC)


def _unpacker() -> Any:
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
