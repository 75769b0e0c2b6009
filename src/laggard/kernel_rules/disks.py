"""The arrays in /proc/mdstat, as values. The rules for disks are in disks.ini. Pure.

Sources: Linux, drivers/md (md_seq_show, raid10_status); md(4).
"""

from __future__ import annotations

from typing import Final

import msgspec

from laggard.kit.words import lazy_pattern

_ARRAY: Final = lazy_pattern(r"(md\S{1,32}) : (?:in)?active (?:\([\w-]+\) )*(\w*)")
_MEMBERS: Final = lazy_pattern(r"\[\d+/\d+\] \[([U_]+)\]")
_COPIES: Final = lazy_pattern(r"([1-9]) (?:near|far|offset)-copies")
_REBUILDS: Final = lazy_pattern(r"\b(?:recovery|resync|reshape) *=")
_MAY_LACK: Final = {"linear": 0, "raid0": 0, "raid4": 1, "raid5": 1, "raid6": 2}
"""How many disks an array can do without; raid1 needs one."""


class Array(msgspec.Struct, frozen=True):
    name: str
    level: str
    members: str
    """`U` for each disk that is up, `_` for each that is not."""
    copies: int
    """How many disks next to one another hold the same, in raid10."""
    rebuilds: bool

    @property
    def failed(self) -> bool:
        """Whether data are lost, or two disks are gone and the next one takes the data."""
        lacks = self.members.count("_")
        if self.level == "raid10":
            return any(
                set(self.members[at : at + self.copies]) == {"_"} for at in range(0, len(self.members), self.copies)
            )
        may_lack = _MAY_LACK.get(self.level, len(self.members) - 1)
        return lacks > may_lack or lacks == may_lack >= 2


def incomplete_arrays(mdstat: str) -> list[Array]:
    """Returns the arrays that lack a disk. Levels without spare disks list none."""
    found: list[Array] = []
    for part in f"\n{mdstat}".split("\nmd")[1:]:
        text = f"md{part}"
        head, members, copies = _ARRAY.match(text), _MEMBERS.search(text), _COPIES.search(text)
        if head and members and "_" in members[1]:
            count = int(copies[1]) if copies else 2
            found.append(Array(head[1], head[2], members[1], count, bool(_REBUILDS.search(text))))
    return found
