"""The files of the rank directory that a scan reads. Any user may write there: the cost of a scan is bounded, and one
user's files, however many and however named, do not push out another's."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from laggard.rankfile.layout import SUFFIX

MAX_ENTRIES: Final = 65_536
MAX_STATS: Final = 4_096
MAX_FILES: Final = 1_024

T = TypeVar("T")


class FileEntry(NamedTuple):
    """A name in the rank directory. `owner`: uid; `changed`: ctime, Unix time, which only the kernel sets."""

    path: str
    owner: int
    changed: float


class Listing(NamedTuple):
    files: tuple[FileEntry, ...]
    left_out: int  # not read in this scan


def list_files(directory: str, known: Collection[str], max_files: int = MAX_FILES) -> Listing:
    """Lists at most `max_files` files, taken from their owners in turn; an owner's `known` paths come first.

    Where the directory has more names than are worth a system call each, list_files takes a random sample, another one
    each time: a good file is found sooner or later, and is known from then on. Raises OSError where the directory
    cannot be read.
    """
    sampled, left_out = _sample(directory, known)
    found = [entry for path in (*known, *sampled) if (entry := _stat(path))]
    ranked = sorted(found, key=lambda entry: (entry.path in known, entry.changed), reverse=True)
    chosen = tuple(islice(round_robin(ranked, lambda entry: entry.owner), max_files))
    return Listing(chosen, left_out + len(found) - len(chosen))


def round_robin(items: Iterable[T], owner_of: Callable[[T], Hashable]) -> Iterator[T]:
    """Yields the first item of every owner, then every owner's second, and so on."""
    queues: dict[Hashable, list[T]] = {}
    for item in items:
        queues.setdefault(owner_of(item), []).append(item)
    for place in range(max(map(len, queues.values()), default=0)):
        for queue in queues.values():
            if place < len(queue):
                yield queue[place]


def _sample(directory: str, known: Collection[str]) -> tuple[list[str], int]:
    """Returns at most MAX_STATS paths that are not known, and how many others there are. Reservoir sampling: the
    directory may hold more names than are worth keeping in memory."""
    kept: list[str] = []
    count = 0
    with os.scandir(directory) as entries:
        for entry in islice(entries, MAX_ENTRIES):
            if not entry.name.endswith(SUFFIX) or entry.path in known:
                continue
            count += 1
            if len(kept) < MAX_STATS:
                kept.append(entry.path)
            elif (place := random.randrange(count)) < MAX_STATS:
                kept[place] = entry.path
    return kept, count - len(kept)


def _stat(path: str) -> FileEntry | None:
    try:
        status = os.lstat(path)
    except OSError:  # vanished since
        return None
    return FileEntry(path, status.st_uid, status.st_ctime)
