"""Rows that hold a document each. One row's damage costs that row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from laggard.wire import WireError, decode

T = TypeVar("T")


def decoded(documents: Iterable[bytes], kind: type[T]) -> Iterator[T]:
    """Those that can be read."""
    for document in documents:
        try:
            yield decode(document, kind)
        except WireError:
            continue


def documents(rows: Iterable[tuple[bytes]], kind: type[T]) -> tuple[T, ...]:
    return tuple(decoded((row[0] for row in rows), kind))
