"""Reads the files that people hand in: plain or gzip, of any size, from anywhere."""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from io import BufferedReader
from typing import Final, NamedTuple, cast

from laggard.errors import UsageError

MOST_BYTES: Final = 256 << 20
"""Of text, after decompression: the log of a job with thousands of ranks. 1 MiB of gzip can hold a GiB of zeros."""

_GZIP = b"\x1f\x8b"
_PIECE = 1 << 20


class Dump(NamedTuple):
    text: str
    trouble: str
    """Why this is not all of the file, or none of it; empty: it is."""


def read_dump(path: str) -> Dump:
    """The text of the file; `-` is standard input. Raises UsageError where there is no such file."""
    try:
        if path == "-":
            return _read(cast(BufferedReader, sys.stdin.buffer))
        if os.path.isdir(path):
            raise UsageError(f"{path} is a directory: name the files in it")
        with open(path, "rb") as file:
            return _read(file)
    except FileNotFoundError:
        raise UsageError(f"no file {path}") from None
    except OSError as error:
        return Dump("", f"cannot read it: {error.strerror or error}")


def _read(file: BufferedReader) -> Dump:
    data = bytearray()
    trouble = ""
    try:
        source = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == _GZIP else file
        while len(data) <= MOST_BYTES and (piece := source.read(_PIECE)):
            data += piece
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        trouble = f"the gzip data is damaged after {len(data)} bytes: {error}"
    if len(data) > MOST_BYTES:
        del data[MOST_BYTES:]
        trouble = f"only its first {MOST_BYTES >> 20} MiB were read"
    return Dump(_decode(bytes(data)), trouble)


def _decode(data: bytes) -> str:
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"  # PowerShell's and notepad's
    return data.decode(encoding, errors="replace").removeprefix("\ufeff")
