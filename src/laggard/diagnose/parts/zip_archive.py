"""Reads zip archives: nothing is written anywhere, and names mean nothing. What is made of zip for another end, as
torch.save's files, numpy's, wheels and office documents are, is no archive here.

The list of members stands at the end of a zip archive, and zipfile holds it: its size is bounded before it is read. The
format is that of PKWARE's APPNOTE.TXT.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Final

from laggard.diagnose.parts.archive import MAX_MEMBERS

MAGIC: Final = b"PK\x03\x04"
_END: Final = b"PK\x05\x06"
_END_64: Final = b"PK\x06\x07"
_END_BYTES: Final = 22 + (1 << 16)
"""The record of the end with the longest comment."""
_MAX_LIST_BYTES: Final = 4 << 20
_ENCRYPTED: Final = 1
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
        if not self._is_bounded():
            return
        with contextlib.suppress(*_DAMAGES, OSError), zipfile.ZipFile(self._file) as archive:
            listed = archive.infolist()
            if any(_OF_PROGRAMS.search(info.filename) for info in listed):
                return
            for info in listed:
                if info.is_dir() or info.file_size == 0:
                    continue
                if info.flag_bits & _ENCRYPTED:
                    self.problem = "it has encrypted members, which were not read"
                    continue
                with archive.open(info) as file:
                    member = ZipMember(info.filename, file)
                    yield member
                    self.problem = self.problem or member.damage

    def _is_bounded(self) -> bool:
        """Whether there is a list of members, and one that is small enough to be held."""
        end = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, end - _END_BYTES))
        tail = self._file.read(_END_BYTES)
        at = tail.rfind(_END)
        if at < 0 or len(tail) - at < 22:
            self.problem = "it is cut off: the list of its members is missing"
            return False
        if tail.rfind(_END_64, 0, at) >= 0:
            self.problem = "it is a zip64 archive, larger than is read: unpack it"
            return False
        count, size = struct.unpack_from("<HI", tail, at + 10)
        if count > MAX_MEMBERS or size > _MAX_LIST_BYTES:
            self.problem = f"it has more than {MAX_MEMBERS} members, or is larger than 4 GiB: unpack it"
            return False
        return True
