"""Tells who the members of a process group are. Pure."""

from __future__ import annotations

import re
from typing import Final

from laggard.locate.job_timings import JobTimings

_NAME: Final = re.compile(r"[a-z]+:(\d+)-(\d+)(?:/(\d+))?(?:#.*)?")
"""The form of a group's name that spans its members, as `dp:0-6/2`: role, first rank, last rank, stride."""


class Members:
    """The members of a job's groups, as columns: as a recording declares them, else as the group's name spans them. A
    name that others gave may look like one that spans: `dp:0-4` may be two ranks."""

    def __init__(self, timings: JobTimings) -> None:
        self._columns = {int(rank): column for column, rank in enumerate(timings.ranks)}
        groups = timings.collectives.groups if timings.collectives is not None else ()
        self._declared = {group.name: group.ranks for group in groups if group.ranks}

    def of(self, group: str) -> frozenset[int]:
        """Empty where neither tells. A rank may hang before its first collective in the group."""
        if group in self._declared:
            return frozenset(self._columns[rank] for rank in self._declared[group] if rank in self._columns)
        found = _NAME.fullmatch(group)
        if not found:
            return frozenset()
        first, last, stride = int(found[1]), int(found[2]), int(found[3] or 1)
        spanned = ((rank, column) for rank, column in self._columns.items() if first <= rank <= last)
        return frozenset(column for rank, column in spanned if not (rank - first) % stride)
