"""Secrets with values that nothing else has, and where in files they are: plain, in hexadecimal digits or in base64."""

import base64
import contextlib
import gzip
import secrets
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path


def new_secret() -> str:
    """Letters and digits alone, which no quoting changes."""
    return f"planted{secrets.token_hex(12)}"


def places_of(values: Mapping[str, str], *folders: Path) -> dict[str, set[str]]:
    """The files that hold each value, by its name; of a file in `folders` its path there."""
    wanted = {name: forms(value) for name, value in values.items()}
    found: dict[str, set[str]] = {name: set() for name in values}
    for path, place in files_of(*folders):
        content = content_of(path)
        for name, any_of in wanted.items():
            if any(form in content for form in any_of):
                found[name].add(place)
    return found


def files_of(*folders: Path) -> Iterator[tuple[Path, str]]:
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_symlink() or path.is_file():
                yield path, str(path.relative_to(folder))


def forms(value: str) -> tuple[bytes, ...]:
    """What a value can look like. In base64 it depends on how many bytes stand before it, and on what stands beside."""
    plain = value.encode()
    coded = (base64.b64encode(b"\0" * before + plain)[4 if before else 0 : -4] for before in range(3))
    return plain, plain.hex().encode(), *coded


def content_of(path: Path) -> bytes:
    """The file's name, target or bytes; unpacked, and the rows of a database, which may lie in several pages."""
    name = str(path).encode()
    if path.is_symlink():
        return name + b"\0" + str(path.readlink()).encode()
    content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        return name + gzip.decompress(content)
    if content.startswith(b"SQLite format 3"):
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            return name + content + "\n".join(database.iterdump()).encode()
    return name + content
