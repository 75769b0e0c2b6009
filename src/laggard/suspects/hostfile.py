"""A hostfile without some hosts, as DeepSpeed, Open MPI and MPICH read it: a host a line, with its slots. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from laggard.suspects.names import KnownNames


class Filtered(NamedTuple):
    """The file's lines without the excluded hosts, and how many hosts are left."""

    text: str
    left: int
    excluded: tuple[str, ...]


def without(text: str, names: Collection[str]) -> Filtered:
    """Comments and empty lines stay, and so does whatever follows a host: `n1 slots=8`, `n1:8`."""
    known = KnownNames(names)
    kept, excluded, left = [], [], 0
    for line, host in _hosts(text):
        if host and known.find(host) is not None:
            excluded.append(host)
        else:
            kept.append(line)
            left += bool(host)
    return Filtered("".join(kept), left, tuple(excluded))


def _hosts(text: str) -> Iterator[tuple[str, str]]:
    """Yields each line with its host; empty: it names none."""
    for line in text.splitlines(keepends=True):
        word = line.partition("#")[0].split()
        yield line, word[0].partition(":")[0] if word else ""
