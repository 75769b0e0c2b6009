"""Reads the files that users give: plain or gzip, of any size, from anywhere."""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from io import BufferedReader
from typing import Final, NamedTuple, cast

from laggard.errors import UsageError

MAX_BYTES: Final = 256 << 20
"""Of decompressed text: the log of a job with thousands of ranks fits. 1 MiB of gzip can hold a GiB of zeros."""

_GZIP_MAGIC = b"\x1f\x8b"
_PIECE_BYTES = 1 << 20


class InputFile(NamedTuple):
    path: str
    text: str
    problem: str = ""
    """Why `text` is not all of the file, or none of it; empty: it is all."""


def read_input_file(path: str) -> InputFile:
    """Reads the file; `-` is standard input. Raises UsageError where there is no such file, or it is a directory."""
    try:
        if path == "-":
            return _read(path, cast(BufferedReader, sys.stdin.buffer))
        if os.path.isdir(path):
            raise UsageError(f"{path} is a directory: name the files in it")
        with open(path, "rb") as file:
            return _read(path, file)
    except FileNotFoundError:
        raise UsageError(f"no file {path}") from None
    except OSError as error:
        return InputFile(path, "", f"cannot read it: {error.strerror or error}")


def _read(path: str, file: BufferedReader) -> InputFile:
    data = bytearray()
    problem = ""
    try:
        source = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == _GZIP_MAGIC else file
        while len(data) <= MAX_BYTES and (piece := source.read(_PIECE_BYTES)):
            data += piece
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        problem = f"the gzip data is damaged after {len(data)} bytes: {error}"
    if len(data) > MAX_BYTES:
        del data[MAX_BYTES:]
        problem = f"only its first {MAX_BYTES >> 20} MiB were read"
    return InputFile(path, _decode(bytes(data)), problem)


def _decode(data: bytes) -> str:
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"  # PowerShell and Notepad write UTF-16
    return data.decode(encoding, errors="replace").removeprefix("\ufeff")
