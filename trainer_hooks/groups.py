"""Which process group a collective ran in: its name, its role and its members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laggard.rankfile import Lane
from laggard.trainer_hooks.recorder import LaneLog, Recorder

OTHER_ROLE = "other"


class Groups:
    """Names process groups. A role is known by its members: a group of the data-parallel group's members is dp."""

    def __init__(self) -> None:
        self._roles: dict[tuple[int, ...], str] = {}

    def learn(self, role: str, members: Sequence[int]) -> None:
        """From now on a group of these members has this role, unless it has one already."""
        if len(members) > 1:
            self._roles.setdefault(tuple(members), role)

    def members(self, group: Any) -> tuple[int, ...]:
        """Global ranks of a process group; None is the world."""
        import torch.distributed as dist

        return tuple(dist.get_process_group_ranks(dist.group.WORLD if group is None else group))

    def log(self, recorder: Recorder, op: str, group: Any) -> LaneLog:
        """Where `op`'s collectives in `group` are logged."""
        members = self.members(group)
        role = self._roles.get(members, OTHER_ROLE)
        return recorder.lane(Lane(op, role, f"{role}:{_span(members)}{_distinction(group)}"), members)


def _distinction(group: Any) -> str:
    """Torch's own name of the group, the same on every rank: two groups may have the same members."""
    import torch.distributed as dist

    name = getattr(dist.group.WORLD if group is None else group, "group_name", "0")
    return "" if name in ("0", "default_pg") else f"#{name}"


def _span(members: tuple[int, ...]) -> str:
    """0-7 for neighbours, 0-12/4 for every fourth, else the first and last with the number of members."""
    first, last = members[0], members[-1]
    stride = members[1] - first if len(members) > 1 else 1
    if stride > 0 and members == tuple(range(first, last + 1, stride)):
        return f"{first}-{last}" + (f"/{stride}" if stride > 1 else "")
    return f"{first}-{last}({len(members)})"
