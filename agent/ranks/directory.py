"""Which files of the rank directory are looked at. Everybody may write there: the cost of a look is bounded, and one
user's files, however many and however named, do not push out another's."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from laggard.rankfile.layout import SUFFIX

MOST_ENTRIES: Final = 65_536
MOST_STATS: Final = 4_096
MOST_FILES: Final = 1_024

T = TypeVar("T")


class File(NamedTuple):
    """A name in the rank directory. `owner`: uid; `changed`: Unix time, set by the kernel alone."""

    path: str
    owner: int
    changed: float


class Listing(NamedTuple):
    files: tuple[File, ...]
    left_out: int  # not looked at this time


def list_files(directory: str, known: Collection[str], most: int = MOST_FILES) -> Listing:
    """At most `most` files, dealt out to their owners in turn; `known` paths come before others of their owner.

    Where there are more names than are worth a system call each, a random sample is taken, another one each time: a
    good file is found sooner or later, and is known from then on. Raises OSError where the directory is unreadable.
    """
    sampled, left_out = _sample(directory, known)
    found = [file for path in (*known, *sampled) if (file := _look(path))]
    ranked = sorted(found, key=lambda file: (file.path in known, file.changed), reverse=True)
    chosen = tuple(islice(in_turn(ranked, lambda file: file.owner), most))
    return Listing(chosen, left_out + len(found) - len(chosen))


def in_turn(items: Iterable[T], owner: Callable[[T], Hashable]) -> Iterator[T]:
    """The first item of every owner, then everybody's second, and so on."""
    queues: dict[Hashable, list[T]] = {}
    for item in items:
        queues.setdefault(owner(item), []).append(item)
    for place in range(max(map(len, queues.values()), default=0)):
        for queue in queues.values():
            if place < len(queue):
                yield queue[place]


def _sample(directory: str, known: Collection[str]) -> tuple[list[str], int]:
    """Reservoir sampling: the directory may hold more names than are worth keeping in memory."""
    kept: list[str] = []
    seen = 0
    with os.scandir(directory) as entries:
        for entry in islice(entries, MOST_ENTRIES):
            if not entry.name.endswith(SUFFIX) or entry.path in known:
                continue
            seen += 1
            if len(kept) < MOST_STATS:
                kept.append(entry.path)
            elif (place := random.randrange(seen)) < MOST_STATS:
                kept[place] = entry.path
    return kept, seen - len(kept)


def _look(path: str) -> File | None:
    try:
        about = os.lstat(path)
    except OSError:  # vanished since
        return None
    return File(path, about.st_uid, about.st_ctime)
