"""The text form of a recorded tree, `tree.txt`: small to keep, easy to read and to change by hand.

A line that begins with `/` names a directory; the lines after it list what is in it:

    /sys/devices/pci0000:15/0000:15:01.0
    vendor = 0x8086                          a text file of one line (an empty text: an empty file)
    driver -> ../../../bus/pci/drivers/nvme  a symlink
    config : 4096 0:8680 40:1000             bytes: the size, then hexadecimal OFFSET:BYTES; zeros between
    config ~ 176:1d00                        in an overlay: the base's bytes with these bytes over them
    power /                                  an empty directory
    mounts |                                 a text file of the lines that follow, each after a tab

`#` begins a comment line. Names hold no spaces.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Patch(NamedTuple):
    """Bytes that replace those of a file, by offset."""

    pieces: tuple[tuple[int, bytes], ...]


def unpack(text: str, root: Path) -> None:
    """Writes the tree `text` below `root`. Files that exist are replaced."""
    made: set[Path] = set()
    for name, content in parse(text):
        path = root / name.lstrip("/")
        folder = path if content is None else path.parent
        if folder not in made:
            folder.mkdir(parents=True, exist_ok=True)
            made.add(folder)
        if isinstance(content, Path):
            path.unlink(missing_ok=True)
            path.symlink_to(content)
        elif isinstance(content, Patch):
            _replace(path, _patched(path.read_bytes(), content.pieces))
        elif content is not None:
            _replace(path, content.encode() if isinstance(content, str) else content)


def _replace(path: Path, data: bytes) -> None:
    """Makes a new file at `path`: the old one may be a hard link to a file of the machine's base."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def parse(text: str) -> Iterator[tuple[str, str | bytes | Path | Patch | None]]:
    """Yields each path of the tree `text` with its content."""
    folder = ""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line.startswith("/"):
            folder = line
        elif line and line[0] not in "#\t":
            name, sign, rest = (*line.split(" ", 2), "")[:3]
            yield os.path.join(folder, name), _content(sign, rest, lines[number + 1 :])


def _content(sign: str, rest: str, following: Iterable[str]) -> str | bytes | Path | Patch | None:
    if sign == "=":
        return rest + "\n" if rest else ""
    if sign == "->":
        return Path(rest)
    if sign == ":":
        return _bytes(rest)
    if sign == "~":
        return Patch(_parse_pieces(rest))
    if sign == "|":
        return "".join(line[1:] + "\n" for line in _while_indented(following))
    if sign == "/":
        return None
    raise ValueError(f"tree.txt: no such sign {sign!r}")


def _while_indented(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("\t"):
            return
        yield line


def _bytes(text: str) -> bytes:
    size, _, parts = text.partition(" ")
    return _patched(bytes(int(size)), _parse_pieces(parts))


def _patched(data: bytes, pieces: Iterable[tuple[int, bytes]]) -> bytes:
    patched = bytearray(data)
    for offset, piece in pieces:
        patched[offset : offset + len(piece)] = piece
    return bytes(patched)


def _parse_pieces(text: str) -> tuple[tuple[int, bytes], ...]:
    parts = (part.split(":") for part in text.split())
    return tuple((int(offset, 16), bytes.fromhex(digits)) for offset, digits in parts)
