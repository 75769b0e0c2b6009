"""The process group that a collective ran in: its name, its role and its members."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from laggard.rankfile import Lane
from laggard.rankfile.layout import STATE_LEFT, STATE_RUNNING, WORD_STATE
from laggard.trainer_hooks.collectives.group_counts import GroupCounts
from laggard.trainer_hooks.record.events import LaneLog
from laggard.trainer_hooks.record.recorder import Recorder, clock

OTHER_ROLE: Final = "other"
_WORLD_ROLE: Final = "world"

_DESCRIPTION_PREFIXES: Final = {
    "dp": ("mesh_dp", "mesh_data", "mesh_fsdp", "mesh_replicate", "mesh_shard", "data_parallel"),
    "tp": ("mesh_tp", "mesh_tensor", "mesh_model", "tensor_model_parallel", "tensor_parallel"),
    "pp": ("mesh_pp", "mesh_pipe", "pipeline_model_parallel", "pipeline_parallel"),
    "ep": ("mesh_ep", "mesh_expert", "expert_model_parallel", "expert_parallel"),
}
"""The beginnings of a group's own description, in lower case: the names that scripts give to the dimensions of a
DeviceMesh, which torch puts behind `mesh_`, and those that Megatron gives to its groups."""


class ProcessGroups:
    """Names process groups, and keeps the lane logs of their collectives. A group's role is the one that was set for
    the group itself, else what its description says, else the one set for a group of the same members: a group of the
    data-parallel group's members is dp."""

    def __init__(self, on_use: Callable[[], None] = lambda: None) -> None:
        """`on_use` is called before a group's name and members are read: the process group is up by then."""
        self._on_use = on_use
        self._roles_by_members: dict[tuple[int, ...], str] = {}
        self._roles_by_name: dict[str, str] = {}
        self._pipelines: list[tuple[int, ...]] = []
        self._logs: dict[str, dict[Any, LaneLog]] = {}
        self._counts: dict[str, GroupCounts] = {}
        self.generation = 0  # how often the lane logs were forgotten

    def used(self) -> None:
        """A collective ran in a group, one that cannot be named."""
        self._on_use()

    def set_role_of_members(self, role: str, members: Sequence[int]) -> None:
        """Gives groups of these members this role, unless these members have a role already."""
        if len(members) > 1:
            self._roles_by_members.setdefault(tuple(members), role)
            self.forget()

    def set_role(self, role: str, group: Any) -> None:
        """Gives this very group this role, and others of the same members too, unless these members have a role
        already."""
        members = self.members(group)
        if len(members) > 1:
            self._roles_by_name[name_of(group)] = role
            if role == "pp":
                self._pipelines.append(members)
            self.set_role_of_members(role, members)

    def lane_logs(self, op: str) -> dict[Any, LaneLog]:
        """The dictionary in which the hot path keeps the lane logs of an operation by process group (and peer)."""
        return self._logs.setdefault(op, {})

    def forget(self) -> None:
        """Forgets which lane log belongs to a process group: roles changed, or the groups are gone."""
        self.generation += 1
        for logs in self._logs.values():
            logs.clear()

    def end(self, group: Any) -> None:
        """The process group is about to end: nothing of it is held any longer."""
        for logs in self._logs.values():
            for key in list(logs):
                if key is group or (type(key) is tuple and key[0] is group):
                    del logs[key]
        self.counts_of(name_of(group)).end(clock())

    def members(self, group: Any) -> tuple[int, ...]:
        """Global ranks of a process group; None is the world."""
        import torch.distributed as dist

        try:
            return tuple(dist.get_process_group_ranks(dist.group.WORLD if group is None else group))
        except (KeyError, ValueError):  # made by hand, torch.distributed does not know it
            return ()

    def lane_log(self, recorder: Recorder, op: str, group: Any, peer: int = -1) -> LaneLog:
        """The log of `op`'s collectives in `group`; where it has one, of those with `peer`, a rank in the group."""
        self._on_use()
        if recorder.live.words[WORD_STATE] == STATE_LEFT:  # it has come back
            recorder.live.words[WORD_STATE] = STATE_RUNNING
        members = self.members(group)
        if op in ("send", "recv") and 0 <= peer < len(members):
            return self._pair_log(recorder, op, group, members, members[peer])
        role = self._role(members, group)
        lane = Lane(op, role, f"{role}:{_ranks_text(members)}{_name_suffix(group)}")
        return self._keep(recorder, lane, group, members)

    def _pair_log(self, recorder: Recorder, op: str, group: Any, members: tuple[int, ...], peer: int) -> LaneLog:
        """One lane for a pair and direction, whatever the group: what one side sends first, the other receives first.
        Ranks that send to each other are stages of a pipeline, unless the group is known for something else."""
        role = self._role(members, group)
        role = role if role in ("tp", "ep") else "pp"
        pair = tuple(sorted((members[group.rank()], peer)))
        pipeline = next((each for each in self._pipelines if set(pair) <= set(each)), pair)
        lane = self._lane_to_peer(op, peer) or Lane(op, role, f"{role}:{_ranks_text(pipeline)}", peer)
        return self._keep(recorder, lane, group, pipeline)

    def _lane_to_peer(self, op: str, peer: int) -> Lane | None:
        lanes = (lane for counts in self._counts.values() for lane, _ in counts.lanes.values())
        return next((lane for lane in lanes if (lane.op, lane.peer) == (op, peer)), None)

    def _keep(self, recorder: Recorder, lane: Lane, group: Any, members: tuple[int, ...]) -> LaneLog:
        log = recorder.lane(lane, members)
        self.counts_of(name_of(group)).lanes[id(log)] = lane, log
        return log

    def _role(self, members: tuple[int, ...], group: Any) -> str:
        """Two groups of the same members may have two roles: the one set for the members comes last."""
        own = self._roles_by_name.get(name_of(group)) or _described_role(getattr(group, "group_desc", ""))
        return own or self._roles_by_members.get(members) or (_WORLD_ROLE if _is_world(members) else OTHER_ROLE)

    def lanes(self, group: Any) -> list[tuple[Lane, LaneLog]]:
        """Those of a group that the hooks have seen so far."""
        return list(self.counts_of(name_of(group)).lanes.values())

    def counts_of(self, name: str) -> GroupCounts:
        """The counts of the group of that name, now and later."""
        counts = self._counts.get(name)
        if counts is None:
            counts = self._counts[name] = GroupCounts()
        return counts


def name_of(group: Any) -> str:
    """Torch's own name of the group, the same on every rank."""
    if group is None:
        import torch.distributed as dist

        group = dist.group.WORLD
    return str(getattr(group, "group_name", "0"))


def backends_of(group: Any) -> tuple[Any, ...]:
    """The backends of a process group, each once: one, or several for several kinds of device. None where torch made
    none, as for a group that is written in Python. What a script asked for does not say: `init_process_group()` leaves
    the choice to torch, and one name may stand for another backend in another version."""
    found = {}
    for device in getattr(group, "_device_types", ()):
        backend = group._get_backend(device)
        found[id(backend)] = backend
    return tuple(found.values())


def sharding_groups(module: Any) -> list[Any]:
    """The process groups over which FSDP, of either kind, shards a module and replicates it; none where it does not.
    Torch keeps them to itself: of a version that keeps them elsewhere there are none."""
    if hasattr(module, "_get_fsdp_state"):
        state = module._get_fsdp_state()
        held = getattr(getattr(state, "_fsdp_param_group", None), "mesh_info", None)
        names = ("shard_process_group", "replicate_process_group")
    else:
        held, names = module if hasattr(module, "sharding_strategy") else None, ("process_group", "_inter_node_pg")
    groups = (getattr(held, name, None) for name in names)
    return [group for group in groups if group is not None]


def _is_world(members: tuple[int, ...]) -> bool:
    import torch.distributed as dist

    return members == tuple(range(dist.get_world_size()))


def _described_role(description: str) -> str | None:
    text = description.lower()
    return next((role for role, prefixes in _DESCRIPTION_PREFIXES.items() if text.startswith(prefixes)), None)


def _name_suffix(group: Any) -> str:
    """Tells two groups with the same members apart; nothing for the world."""
    name = name_of(group)
    return "" if name in ("0", "default_pg") else f"#{name}"


def _ranks_text(members: tuple[int, ...]) -> str:
    """0-7 for neighbours, 0-12/4 for every fourth, else the first and last with the number of members."""
    if not members:
        return "unknown"
    first, last = members[0], members[-1]
    stride = members[1] - first if len(members) > 1 else 1
    if stride > 0 and members == tuple(range(first, last + 1, stride)):
        return f"{first}-{last}" + (f"/{stride}" if stride > 1 else "")
    return f"{first}-{last}({len(members)})"
