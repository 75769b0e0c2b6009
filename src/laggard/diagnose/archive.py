"""Reads tar and zip archives: nothing is written anywhere, so that names mean nothing; links, devices and what has no
plain name are passed over.

Tar archives are read as a stream: POSIX ustar and pax, and GNU's long names. It is no use of tarfile, which reads
headers of any declared size into memory. The format is that of pax(1) and of GNU tar's manual.

The list of members stands at the end of a zip archive, and zipfile holds it: its size is bounded before it is read. The
format is that of PKWARE's APPNOTE.TXT. What is made of zip for another end, as torch.save's files, numpy's, wheels and
office documents are, is no archive here.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, BinaryIO, Final, NamedTuple, Protocol, cast

from laggard.diagnose.file_format import FileContent
from laggard.diagnose.input_file import InputFile, PartFile, open_unpacked, read_member

BLOCK_BYTES: Final = 512
MAX_MEMBERS: Final = 10_000
"""The most members of an archive that are looked at, directories and links included."""
MAX_ARCHIVE_BYTES: Final = 1 << 30
"""The most unpacked bytes of an archive that are looked at."""

_MAX_NAME_BYTES: Final = 64 << 10
_PIECE_BYTES: Final = 1 << 20
_REGULAR: Final = (b"0", b"\0", b"7")
_LONG_NAME: Final = b"L"
_PAX: Final = b"x"
_PAX_PATH = re.compile(rb"\d{1,8} path=([^\n]{1,4096})\n")
_PAX_SIZE = re.compile(rb"\d{1,8} size=(\d{1,15})\n")


class Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Member:
    """A regular file of an archive, which can be read while the iteration stands at it."""

    def __init__(self, name: str, size: int, source: Source) -> None:
        self.name = name
        self._left = size
        self._source = source

    def read(self, size: int | None = -1) -> bytes:
        wanted = self._left if size is None or size < 0 else min(size, self._left)
        data = self._source.read(min(wanted, _PIECE_BYTES)) if wanted else b""
        self._left = self._left - len(data) if data else 0
        return data


class _Header(NamedTuple):
    name: str
    size: int
    kind: bytes


class Archive:
    """An archive that is read from its beginning. `problem`, after the iteration: the reason why it is not whole."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._read_bytes = 0
        self.problem = ""

    def read(self, size: int) -> bytes:
        data = self._source.read(size)
        self._read_bytes += len(data)
        return data

    def members(self) -> Iterator[Member]:
        name, size = "", None
        for _ in range(MAX_MEMBERS):
            header = self._header()
            if header is None:
                return
            end = self._read_bytes + _padded(header.size if size is None else size)
            if header.kind in (_LONG_NAME, _PAX):
                name, size = self._extension(header, name)
            else:
                length = header.size if size is None else size
                if length and header.kind in _REGULAR and _is_plain(name or header.name):
                    yield Member(name or header.name, length, self)
                name, size = "", None
            if not self._skip_to(end):
                return
        self.problem = f"it has more than {MAX_MEMBERS} members, and the others were not read"

    def _header(self) -> _Header | None:
        block = self._block()
        if not block.strip(b"\0"):
            return None
        header = _parsed(block)
        if header is None:
            self.problem = f"the archive is damaged or cut after {self._read_bytes} bytes"
        return header

    def _block(self) -> bytes:
        data = b""
        while len(data) < BLOCK_BYTES and (piece := self.read(BLOCK_BYTES - len(data))):
            data += piece
        return data

    def _extension(self, header: _Header, name: str) -> tuple[str, int | None]:
        """Returns the name and the size that a header of the archive's own gives to the next member."""
        data = b""
        while len(data) < min(header.size, _MAX_NAME_BYTES) and (piece := self.read(min(header.size, _MAX_NAME_BYTES))):
            data += piece
        if header.kind == _LONG_NAME:
            return _text(data), None
        path, size = _PAX_PATH.search(data), _PAX_SIZE.search(data)
        return _text(path[1]) if path else name, int(size[1]) if size else None

    def _skip_to(self, end: int) -> bool:
        """Reads to the place `end`, and returns whether it was reached within bounds."""
        while self._read_bytes < end:
            if self._read_bytes > MAX_ARCHIVE_BYTES:
                self.problem = f"only the first {MAX_ARCHIVE_BYTES >> 30} GiB of the archive were read"
                return False
            if not self.read(min(_PIECE_BYTES, end - self._read_bytes)):
                self.problem = f"the archive is cut after {self._read_bytes} bytes"
                return False
        return True


def _parsed(block: bytes) -> _Header | None:
    """A header; None where its checksum, the sum of its bytes, says that it is none."""
    if len(block) < BLOCK_BYTES:
        return None
    total = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    size = int.from_bytes(block[125:136], "big") if block[124] & 0x80 else _octal(block[124:136])
    if _octal(block[148:156]) != total or size is None:
        return None
    prefix = _text(block[345:500]) if block[257:263] == b"ustar\0" else ""
    return _Header("/".join(filter(None, (prefix, _text(block[:100])))), size, block[156:157])


def _octal(field: bytes) -> int | None:
    digits = field.strip(b"\0 ")
    return int(digits, 8) if re.fullmatch(rb"[0-7]{1,12}", digits) else (None if digits else 0)


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="replace")[:4096]


def _is_plain(name: str) -> bool:
    return bool(name) and not name.startswith("/") and ".." not in name.split("/")


def _padded(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


MAGIC: Final = b"PK\x03\x04"
_END: Final = b"PK\x05\x06"
_END_64: Final = b"PK\x06\x07"
_END_BYTES: Final = 22 + (1 << 16)
"""The record of the end with the longest comment."""
_MAX_LIST_BYTES: Final = 4 << 20
_ENCRYPTED: Final = 1
_BOUNDED: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The packings that zipfile unpacks in pieces of the size that is asked for: of others a call may give gigabytes."""
_OF_PROGRAMS = re.compile(
    r"(?:^|/)(?:data\.pkl|constants\.pkl|byteorder|META-INF/.*|\[Content_Types\]\.xml|AndroidManifest\.xml)$"
    r"|\.npy$|\.dist-info/|^mimetype$"
)
_DAMAGES: Final = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)


class ZipMember:
    """A file of the archive, which ends where it is damaged. `damage`: what was wrong."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self.name = name
        self.damage = ""
        self._file = file

    def read(self, size: int | None = -1) -> bytes:
        try:
            return self._file.read(-1 if size is None else size)
        except (*_DAMAGES, OSError) as error:
            self.damage = f"{self.name} is damaged: {error}"
            return b""


class ZipArchive:
    """`problem`, after the iteration: the reason why it is not whole."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file = file
        self.problem = ""

    def members(self) -> Iterator[ZipMember]:
        """Yields the regular files, each of which can be read while the iteration stands at it; nothing of what is no
        archive."""
        self.problem = self._list_problem()
        if self.problem:
            return
        with contextlib.suppress(*_DAMAGES, OSError), zipfile.ZipFile(self._file) as archive:
            listed = archive.infolist()
            if any(_OF_PROGRAMS.search(info.filename) for info in listed):
                return
            self.problem = _problem_of(listed)
            for info in () if self.problem else listed:
                if info.is_dir() or info.file_size == 0:
                    continue
                if info.flag_bits & _ENCRYPTED or info.compress_type not in _BOUNDED:
                    how = "encrypted" if info.flag_bits & _ENCRYPTED else "packed with bzip2, LZMA or the like"
                    self.problem = f"members that are {how} were not read: unpack it"
                    continue
                with archive.open(info) as file:
                    member = ZipMember(info.filename, file)
                    yield member
                    self.problem = self.problem or member.damage

    def _list_problem(self) -> str:
        """Why the list of members cannot be held; empty: it can."""
        end = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, end - _END_BYTES))
        tail = self._file.read(_END_BYTES)
        at = tail.rfind(_END)
        if at < 0 or len(tail) - at < 22:
            return "it is cut off: the list of its members is missing"
        if tail.rfind(_END_64, 0, at) >= 0:
            return "it is a zip64 archive, larger than is read: unpack it"
        (size,) = struct.unpack_from("<I", tail, at + 12)
        return "the list of its members is larger than is read: unpack it" if size > _MAX_LIST_BYTES else ""


def _problem_of(listed: Sequence[zipfile.ZipInfo]) -> str:
    """Why none of these members is read. Counts and places are those of the list itself, not what a header claims."""
    if len(listed) > MAX_MEMBERS:
        return f"it has more than {MAX_MEMBERS} members: unpack it"
    spans = sorted((info.header_offset, info.header_offset + info.compress_size) for info in listed)
    overlap = any(end > begin for (_, end), (begin, _) in zip(spans, spans[1:], strict=False))
    return "its members overlap, so that little data unpacks to much: none was read" if overlap else ""


_MAX_TEXT_BYTES: Final = 256 << 20
"""The most bytes of members that are kept to be judged."""
_MAX_HELD_BYTES: Final = 48 << 20
"""The most bytes that are held of them, packed: their text is needed until all of it is judged."""
_SMALL_BYTES: Final = 64 << 20
_MAX_RATIO: Final = 64
"""How many times an archive's size its text may have, where that is over _SMALL_BYTES. Logs have ten to thirty times,
deflate's bound is a thousand."""
_TAR: Final = (257, b"ustar")


class Unpacked(NamedTuple):
    files: tuple[InputFile, ...]
    problem: str
    """The reason why these are not all members; empty: they are."""
    packing: str


def unpack(file: InputFile, content: FileContent) -> Unpacked | None:
    """Returns the members of an archive with this content; None of what is none, as a checkpoint is not."""
    with contextlib.ExitStack() as stack:
        if content.first_bytes[_TAR[0] :].startswith(_TAR[1]):
            whole = file.path == "-" or not os.path.isfile(file.path)
            tar = Archive(io.BytesIO(_held(content)) if whole else stack.enter_context(open_unpacked(file)))
            files, problem = _members(file, tar.members())
            return Unpacked(files, problem or tar.problem or (content.problem if whole else ""), "tar")
        if not content.first_bytes.startswith(MAGIC):
            return None
        if file.path != "-" and not os.path.isfile(file.path) and content.skipped_bytes:
            return Unpacked((), "it is too large to be read within another archive", "zip")
        plain = stack.enter_context(open(file.path, "rb")) if content.skipped_bytes else io.BytesIO(content.raw)
        archive = ZipArchive(plain)
        files, problem = _members(file, archive.members())
        problem = problem or archive.problem
        return Unpacked(files, problem, "zip") if files or problem else None


def _held(content: FileContent) -> bytes:
    return content.raw_beginning if content.skipped_bytes else content.raw


def _members(file: InputFile, members: Iterable[Member | ZipMember]) -> tuple[tuple[InputFile, ...], str]:
    files: list[InputFile] = []
    held = text = unpacked = 0
    packed = os.path.getsize(file.path) if os.path.isfile(file.path) else file.held_bytes
    allowed = min(_MAX_TEXT_BYTES, max(_SMALL_BYTES, _MAX_RATIO * packed))
    for member in members:
        is_full = held >= _MAX_HELD_BYTES or text >= allowed or unpacked >= MAX_ARCHIVE_BYTES
        if is_full or file.deadline.is_over():
            return tuple(files), f"only {len(files)} files of the archive were read: it is too large"
        inner, size = read_member(cast(BinaryIO, member), MAX_ARCHIVE_BYTES - unpacked, file.deadline)
        files.append(PartFile(f"{file.path}: {member.name}", inner, packs=True))
        held, text, unpacked = held + files[-1].held_bytes, text + inner.held_bytes, unpacked + size
        del inner  # while the next one is read
    return tuple(files), ""
