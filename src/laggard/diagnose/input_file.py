"""Reads the files that users give: of any size, plain or packed, in bounded memory. Lines that a diagnosis quotes are
found again, with their numbers.

What a log is asked for stands at its end, so of a file that is larger than the bounds the beginning and the end are
read, and the rest is not.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import stat
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, BinaryIO, Final, NamedTuple, cast

from laggard.diagnose.file_format import FileContent, mebibytes
from laggard.kit.errors import UsageError

BEGINNING_BYTES: Final = 8 << 20
"""The bytes of a file's beginning that are read. Recorded hardware and a job's first lines fit in many times."""
END_BYTES: Final = 20 << 20
"""The bytes of a file's end that are read. The last words of a job with thousands of ranks fit."""
MAX_UNPACKED_BYTES: Final = 8 << 30
"""The most bytes that are unpacked of one file. Its end is found only by unpacking all of it: 20 s for so much text. 8
MiB of gzip can hold it."""
MAX_READ_SECONDS: Final = 60.0
"""The longest time for which a file, or all of an archive, is read. It is meant for files that hold nothing but
beginnings of packed data, a byte of which costs more than a megabyte of text."""
MAX_CALL_SECONDS: Final = 300.0
"""The longest time for which a call reads and judges: MAX_FOLDER_BYTES of text take about as long."""

MAX_ZERO_BYTES: Final = 512 << 20
"""The longest run of zeros that is unpacked: a log that was emptied while it was written begins with some, and 4 GiB of
them fit into 4 MiB of gzip."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_PIECE_BYTES: Final = 1 << 20
_KEPT_BYTES: Final = 1 << 20
_SMALL_BYTES: Final = 16 << 10
_SPECIAL_FILES: Final[tuple[tuple[Callable[[int], bool], str], ...]] = (
    (stat.S_ISFIFO, "a pipe: give its text as standard input, and - as the file"),
    (stat.S_ISCHR, "a device, and no file"),
    (stat.S_ISBLK, "a device, and no file"),
    (stat.S_ISSOCK, "a socket, and no file"),
)


class Deadline:
    """The moment after which no more is read or judged."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def is_over(self) -> bool:
        return time.monotonic() > self._end

    def within(self, seconds: float) -> Deadline:
        """Returns the same, or one that ends earlier."""
        sooner = Deadline(seconds)
        return sooner if sooner._end < self._end else self


class InputFile:
    """One file of the command line. Its content is read when it is asked for: hundreds of files, one a rank, are not
    held at the same time."""

    def __init__(self, path: str, keeps: bool = True) -> None:
        """`keeps`: whether a small content is held until all is judged, so that it is read once."""
        self.path = path
        self._keeps = keeps
        self.held_bytes = 0
        """The number of bytes of it that were held when it was read last."""
        self.count: Callable[[int], None] | None = None
        """Is told of each piece of the content, in bytes, when it was looked at."""
        self.deadline = Deadline(MAX_CALL_SECONDS)
        """That of the call."""
        self._kept: FileContent | None = None

    def read(self) -> FileContent:
        """Returns the content. Raises UsageError where there is no such file, or it is none that can be read."""
        if self._kept is not None:
            self._kept.count = self.count
            return self._kept
        deadline = self.deadline.within(MAX_READ_SECONDS)
        content = (
            _read(cast(BinaryIO, sys.stdin.buffer), None, deadline) if self.path == "-" else self._from_disk(deadline)
        )
        content.count, self.held_bytes = self.count, content.held_bytes
        if self.path == "-" or (self._keeps and content.held_bytes <= _KEPT_BYTES):
            self._kept = content
        return content

    def _from_disk(self, deadline: Deadline) -> FileContent:
        try:
            _refuse_special(self.path, os.stat(self.path))
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                _refuse_special(self.path, status)
                return _read(file, status.st_size, deadline)
        except FileNotFoundError:
            raise UsageError(f"no file {self.path}") from None
        except OSError as error:
            return FileContent(problem=f"cannot read it: {error.strerror or error}")


class PartFile(InputFile):
    """A part of a file, which is held; packed where it `packs` and is not small."""

    def __init__(self, path: str, content: FileContent, packs: bool = False) -> None:
        super().__init__(path)
        self._kept = content
        self._packed: tuple[bytes, ...] = ()
        self.held_bytes = content.held_bytes
        if packs and content.held_bytes > _SMALL_BYTES:
            self._packed = tuple(zlib.compress(piece, 1) for piece in content.parts)
            self._kept = FileContent(problem=content.problem)
            self._skipped = content.skipped_bytes
            self.held_bytes = sum(map(len, self._packed))

    def read(self) -> FileContent:
        if not self._packed:
            return super().read()
        begin, *end = map(zlib.decompress, self._packed)
        assert self._kept is not None
        content = FileContent(begin, tuple(end), self._skipped, self._kept.own_problem)
        content.count = self.count
        return content


class _TooLong(Exception):
    """Reading takes longer than it may."""


@contextlib.contextmanager
def open_unpacked(given: InputFile) -> Iterator[Any]:
    """Opens a file of any packing as a stream of its unpacked bytes, whose read() gives nothing more where it is
    damaged. Raises UsageError where there is no such file any more."""
    try:
        _refuse_special(given.path, os.stat(given.path))
        with open(given.path, "rb") as file:
            begin = file.read(len(_ZSTD_MAGIC)) or b""
            source = _Timed(begin, file, given.deadline.within(MAX_READ_SECONDS))
            yield _Undamaged(*_unpacked(begin, source))
    except FileNotFoundError:
        raise UsageError(f"no file {given.path}") from None


def read_member(file: BinaryIO, max_bytes: int, deadline: Deadline) -> tuple[FileContent, int]:
    """Reads a file within an archive, which may itself be packed, and returns how many bytes it unpacked to. Of one
    that unpacks to more than `max_bytes` the rest is not read."""
    begin = file.read(len(_ZSTD_MAGIC)) or b""
    stream, damages = _unpacked(begin, _Timed(begin, file, deadline))
    return _read_stream(stream, "member's", damages, max_bytes, deadline)


def _unpacked(begin: bytes, source: io.RawIOBase) -> tuple[Any, tuple[type[Exception], ...]]:
    """Returns a stream of unpacked bytes, and what damaged data raises beside OSError."""
    if begin.startswith(_GZIP_MAGIC):
        return gzip.GzipFile(fileobj=cast(BinaryIO, source)), (EOFError, zlib.error)
    if begin == _ZSTD_MAGIC:
        zstd = _zstd()
        return zstd.ZstdFile(cast(BinaryIO, source)), (EOFError, zstd.ZstdError)
    return source, ()


class _Undamaged:
    """A stream that ends where its data is damaged."""

    def __init__(self, stream: Any, damages: tuple[type[Exception], ...]) -> None:
        self._stream = stream
        self._damages: tuple[type[Exception], ...] = (OSError, _TooLong, *damages)

    def read(self, size: int) -> bytes:
        try:
            return bytes(self._stream.read(size))
        except self._damages:
            return b""


def _refuse_special(path: str, status: os.stat_result) -> None:
    """Raises UsageError for what is no regular file: to open a pipe waits for its writer, and a device may never end.
    It is asked before the file is opened, which may do something to a device, and after, for what was opened."""
    if stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{path} is a folder")
    for is_such, name in _SPECIAL_FILES:
        if is_such(status.st_mode):
            raise UsageError(f"{path} is {name}")


def _read(file: BinaryIO, size: int | None, deadline: Deadline) -> FileContent:
    """Reads an open file of `size` bytes; None: not known."""
    begin = file.read(len(_ZSTD_MAGIC)) or b""
    source = _Timed(begin, file, deadline)
    stream, damages = _unpacked(begin, source)
    if stream is source and size is not None and size > BEGINNING_BYTES + END_BYTES:
        return _read_both_ends(source, file, size)
    packing = "gzip" if begin.startswith(_GZIP_MAGIC) else "zstd"
    return _read_stream(stream, packing, damages, MAX_UNPACKED_BYTES, deadline)[0]


def _read_both_ends(source: io.RawIOBase, file: BinaryIO, size: int) -> FileContent:
    beginning = b"".join(_read_up_to(source, BEGINNING_BYTES))
    start = (size - END_BYTES) & ~1  # even: a UTF-16 character is not cut
    file.seek(start)
    return FileContent(beginning, tuple(_read_up_to(file, size - start)), start - len(beginning), "")


def _read_up_to(source: Any, count: int) -> Iterator[bytes]:
    """Yields pieces: the end is not held twice, as it would be where it is put together."""
    while count > 0 and (piece := source.read(min(_PIECE_BYTES, count))):
        count -= len(piece)
        yield piece


def _read_stream(
    source: Any, packing: str, damages: tuple[type[Exception], ...], max_bytes: int, deadline: Deadline
) -> tuple[FileContent, int]:
    """Reads to the end, and keeps the beginning and the last END_BYTES of what follows it; with how many bytes were
    read. `damages`: what damaged data of this packing raises, beside OSError."""
    kept = _BothEnds()
    problem = ""
    zeros = 0
    try:
        while piece := source.read1(_PIECE_BYTES):  # what is there, so that all up to a damage is kept
            kept.add(piece)
            zeros = 0 if piece.strip(b"\0") else zeros + len(piece)
            if zeros >= MAX_ZERO_BYTES:
                problem = f"it has more than {zeros >> 20} MiB of zeros in a row, and what follows them was not read"
                break
            if kept.read_bytes >= max_bytes:
                problem = f"it is longer than {mebibytes(max_bytes)}, and what follows them was not read"
                break
    except _TooLong:
        problem = f"it was not read to its end within {deadline.seconds:.0f} s"
    except gzip.BadGzipFile as error:
        problem = f"the gzip data is damaged after {kept.read_bytes} bytes: {error}"
    except OSError as error:
        problem = f"cannot read it: {error.strerror or error}"
    except damages as error:
        problem = f"the {packing} data is damaged after {kept.read_bytes} bytes: {error}"
    return kept.content(problem), kept.read_bytes


class _BothEnds:
    """Takes a file in pieces, and keeps its beginning and its end. Small pieces are joined: a packed file can be made
    to unpack to a byte a piece, and each piece takes memory of its own."""

    def __init__(self) -> None:
        self.read_bytes = 0
        self._beginning = bytearray()
        self._end: deque[bytes] = deque()
        self._latest = bytearray()
        self._held = 0

    def add(self, piece: bytes) -> None:
        self.read_bytes += len(piece)
        room = BEGINNING_BYTES - len(self._beginning)
        if room > 0:
            self._beginning += piece[:room]
            piece = piece[room:]
        self._latest += piece
        if len(self._latest) >= _PIECE_BYTES:
            self._close_piece()

    def content(self, problem: str) -> FileContent:
        self._close_piece()
        skipped = self.read_bytes - len(self._beginning) - self._held
        return FileContent(bytes(self._beginning), tuple(filter(None, self._end)), skipped, problem)

    def _close_piece(self) -> None:
        self._end.append(bytes(self._latest))
        self._held += len(self._latest)
        self._latest.clear()
        while self._held - len(self._end[0]) >= END_BYTES:
            self._held -= len(self._end.popleft())


class _Timed(io.RawIOBase):
    """A file whose first bytes were read already. Raises _TooLong where its bytes are asked for too late."""

    def __init__(self, begin: bytes, file: BinaryIO, deadline: Deadline) -> None:
        self._begin = begin
        self._file = file
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        if self._begin and size:
            end = len(self._begin) if size is None or size < 0 else size
            begin, self._begin = self._begin[:end], self._begin[end:]
            return begin
        if self._deadline.is_over():
            raise _TooLong
        return self._file.read(-1 if size is None else size) or b""

    read1 = read


def _zstd() -> ModuleType:
    """The standard library's module, from Python 3.14 on, or its backport; imported where a file needs it. It refuses
    windows over 128 MiB, and so memory."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


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
        wanted, at_offset = quote[:_QUOTE_CHARACTERS], None
        for piece in self._pieces(path) if quote else ():
            if piece.before + len(piece.text) > offset:
                start = max(0, offset - piece.before)
                if at_offset is None and offset:
                    at_offset = piece.line(start)
                if (at := piece.text.find(wanted, start)) >= 0:
                    return piece.line(at)
        return at_offset

    def find_last(self, path: str, quote: str) -> FoundLine | None:
        """Returns the last line that holds the quote."""
        wanted, found = quote[:_QUOTE_CHARACTERS], None
        for piece in self._pieces(path) if quote else ():
            if (at := piece.text.rfind(wanted)) >= 0:
                found = piece.line(at)
        return found

    def last(self, path: str) -> FoundLine | None:
        """Returns the last line that is not empty."""
        found = None
        for piece in self._pieces(path):
            if text := piece.text.rstrip():
                found = piece.line(len(text) - 1)
        return found

    def _pieces(self, path: str) -> Iterator[_Piece]:
        content = self._files[path].read() if path in self._files else FileContent()
        before, number, counted = 0, 1, len(content.raw_beginning) if content.skipped_bytes else None
        for text in content.pieces():
            yield _Piece(text, before, number, counted)
            before, number = before + len(text), number + text.count("\n")


class _Piece(NamedTuple):
    """A piece of a file, with the characters before it and the number of its first line."""

    text: str
    before: int
    number: int
    counted: int | None
    """The characters of the file up to which lines have numbers; None: all."""

    def line(self, at: int) -> FoundLine:
        """The line at a place of the piece."""
        start = max(self.text.rfind("\n", 0, at), self.text.rfind("\r", 0, at)) + 1
        end = min(_ends(self.text, at))
        is_counted = self.counted is None or self.before + at < self.counted
        number = self.number + self.text.count("\n", 0, at) if is_counted else None
        return FoundLine(number, self.text[start : min(end, start + _MAX_LINE_CHARACTERS)])


def _ends(piece: str, at: int) -> Iterator[int]:
    for mark in ("\n", "\r"):
        end = piece.find(mark, at)
        yield end if end >= 0 else len(piece)
