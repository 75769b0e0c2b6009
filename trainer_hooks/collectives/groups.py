"""The process group that a collective ran in: its name, its role and its members."""

from __future__ import annotations

import functools
import logging
import sys
from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, Final

from laggard.rankfile import Lane
from laggard.rankfile.fact_names import UNSEEN_WAITS
from laggard.rankfile.layout import SEQUENCE_MASK, STATE_LEFT, STATE_RUNNING, WORD_STATE
from laggard.trainer_hooks.record.ending import Facts
from laggard.trainer_hooks.record.events import LaneLog, Wait
from laggard.trainer_hooks.record.recorder import Recorder, clock


class GroupCounts:
    """The counts of one process group, and of those that took its place later: their collectives are counted on.

    `name`: torch's, of the first. `lanes`: the group's lanes with their logs, by the id() of the log. `ended_at`: when
    the group before ended, on the recorder's clock; 0: there was none.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lanes: dict[int, tuple[Lane, LaneLog]] = {}
        self.ended_at = 0
        self._when_ended = {False: 0, True: 0}
        self._coalesced = 0  # collectives of batches, less one for each batch
        self._before_batch = 0

    def launched(self, pairs: bool) -> int:
        """The number of collectives that were launched, where all of a batch are one. `pairs`: with sends and
        receives."""
        count = -self._coalesced
        for lane, lane_log in self.lanes.values():
            if pairs or (lane.peer < 0 and lane.op != "recv"):
                count += lane_log.last & SEQUENCE_MASK
        return count

    def when_ended(self, pairs: bool) -> int:
        """Returns launched() as it was at `ended_at`."""
        return self._when_ended[pairs]

    def begin_batch(self) -> None:
        """Begins a batch, which is what the group launches from here on. NCCL counts it once, with its first collective
        (ProcessGroupNCCL.cpp, `collective`); gloo has no batches."""
        self._before_batch = self.launched(pairs=False)

    def end_batch(self) -> None:
        """The batch is complete."""
        self._coalesced += max(0, self.launched(pairs=False) - self._before_batch - 1)

    def end(self, now: int) -> None:
        """The group is about to end."""
        self._when_ended = {pairs: self.launched(pairs) for pairs in (False, True)}
        self.ended_at = now


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
        self._ended: dict[tuple[int, ...], deque[GroupCounts]] = {}  # by their members, for the next group of these
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
        counts, members = self.counts_of(group), self.members(group)
        counts.end(clock())
        if members and not _is_first(counts.name) and counts is self._counts.pop(name_of(group), None):
            self._ended.setdefault(members, deque()).append(counts)

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
        name = self.counts_of(group).name
        suffix = "" if _is_first(name) else f"#{name}"  # tells two groups with the same members apart
        lane = Lane(op, role, f"{role}:{_ranks_text(members)}{suffix}")
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
        self.counts_of(group).lanes[id(log)] = lane, log
        return log

    def _role(self, members: tuple[int, ...], group: Any) -> str:
        """Two groups of the same members may have two roles: the one set for the members comes last."""
        own = self._roles_by_name.get(name_of(group)) or _described_role(getattr(group, "group_desc", ""))
        return own or self._roles_by_members.get(members) or (_WORLD_ROLE if _is_world(members) else OTHER_ROLE)

    def lanes(self, group: Any) -> list[tuple[Lane, LaneLog]]:
        """Those of a group that the hooks have seen so far."""
        return list(self.counts_of(group).lanes.values())

    def counts_of(self, group: Any) -> GroupCounts:
        """The counts of the group. One of the members of a group that ended goes on with that one's, and so with its
        lanes: a script may make its groups anew as often as it likes. Every rank meets and ends groups in one order."""
        name = name_of(group)
        counts = self._counts.get(name)
        if counts is None:
            ended = self._ended.get(self.members(group))
            counts = self._counts[name] = ended.popleft() if ended else GroupCounts(name)
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


def _is_first(name: str) -> bool:
    """Whether torch gives this name to the world's group."""
    return name in ("0", "default_pg")


def _ranks_text(members: tuple[int, ...]) -> str:
    """0-7 for neighbours, 0-12/4 for every fourth, else the first and last with the number of members."""
    if not members:
        return "unknown"
    first, last = members[0], members[-1]
    stride = members[1] - first if len(members) > 1 else 1
    if stride > 0 and members == tuple(range(first, last + 1, stride)):
        return f"{first}-{last}" + (f"/{stride}" if stride > 1 else "")
    return f"{first}-{last}({len(members)})"


# The waits for functional collectives (DTensor, FSDP2's gradient norm), which C++ makes and Python waits for.
#
# Eager Python waits in `_functional_collectives.wait_tensor`, to which AsyncCollectiveTensor comes, too. That is
# hooked. Compiled graphs wait in C++, where no hook sees it, and so may others: where there are collectives step after
# step for which nobody was seen to wait, the rank says so (the fact `unseen_waits`), and its own time is not taken for
# work.

_WAITS_LIMIT: Final = 4096  # between two checks
_DECAY: Final = 0.75  # of the share of earlier checks, at each later one
_MANY_UNSEEN: Final = (
    2.0  # three checks in a row with unseen waits, or most of them for longer: not what happens once or twice
)
_FEW_UNSEEN: Final = 0.5
_UNWAITED_SHARE: Final = 0.1
"""The share of the bytes from which on the waits for them may be a large part of the rank's own time. Our choice: what
a script reduces for its log, and never waits for, is next to none."""


class FunctionalWaits:
    """The waits of one process that no collective's own record counts."""

    def __init__(self, recorder: Recorder, facts: Facts, training_thread: Callable[[], int]) -> None:
        """`training_thread` gives the number of the training thread."""
        self._recorder = recorder
        self._facts = facts
        self._training_thread = training_thread
        self._waits: list[Wait] = []
        self._count = 0
        self._unseen = 0.0
        self._saying, self._said_at = 0, 0
        self._hidden = False

    def hook(self, module: Any) -> None:
        """Hooks torch.distributed._functional_collectives; torch's compiler goes on with the function as it was."""
        module.wait_tensor = self._timed(module.wait_tensor)

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder, training_thread = self._recorder, self._training_thread
        # Autograd's threads, and no others, are inside a graph task: they work for the training thread's backward pass.
        graph_task: Callable[[], int] = sys.modules["torch"]._C._current_graph_task_id

        @functools.wraps(original)
        def wait_tensor(tensor: Any) -> Any:
            if get_ident() != training_thread() and graph_task() < 0:
                return original(tensor)
            self._count += 1
            if recorder.live.device is not None:
                return recorder.live.device.time_native_wait(original, tensor)
            began = clock()
            result = original(tensor)
            self._waited(began, clock())
            return result

        wait_tensor._torchdynamo_inline = original  # type: ignore[attr-defined]
        return wait_tensor

    def _waited(self, began: int, ended: int) -> None:
        try:
            self._recorder.events.waited(ended - began)
            if len(self._waits) < _WAITS_LIMIT:
                self._waits.append((began, ended))
        except Exception:
            self._recorder.totals.errors += 1

    def begin(self) -> None:
        """The script, or what it calls, waits for other ranks from here on, for collectives that no hook sees."""
        self._saying += 1
        if self._saying == 1:
            self._said_at = clock()

    def end(self) -> None:
        """It no longer does. Of waits within each other the outer one counts; one that began before there was a
        session is left out."""
        if not self._saying:
            return
        self._saying -= 1
        if not self._saying:
            if not self._hidden:
                self._facts.set(UNSEEN_WAITS, None)
            self._recorder.events.waited(clock() - self._said_at)

    def hide(self) -> None:
        """A library was asked for what it does beside the script: who waits for that, nobody sees."""
        self._hidden = True
        self._facts.set(UNSEEN_WAITS, True)

    def take(self) -> list[Wait]:
        """The waits on the host's clock since the last time."""
        waits, self._waits = self._waits, []
        return waits

    def checked(self, made: int) -> None:
        """Takes note, at the end of a step, that C++ made so many collectives outside of DDP since the last one. Sets
        the fact where it does so again and again and nobody is seen to wait for them, or for many of Python's own."""
        unseen, self._count = made > self._count or self._recorder.unwaited_share() > _UNWAITED_SHARE, 0
        self._unseen = self._unseen * _DECAY + unseen
        if self._unseen > _MANY_UNSEEN:
            self._facts.set(UNSEEN_WAITS, True)
        elif self._unseen < _FEW_UNSEEN and not self._hidden:
            self._facts.set(UNSEEN_WAITS, None)


log = logging.getLogger("laggard")


def hook_ends(distributed: Any, act: Callable[[Any], None]) -> None:
    """Has act(group) precede the end of each process group of torch's. What it raises is logged and goes no further.

    Every way to destroy a group or to abort it leads to the group's own shutdown() or abort(); before torch had these
    methods, to one function of distributed_c10d. Those are hooked: the functions that scripts call may have been
    imported before."""
    for name in ("shutdown", "abort"):
        if hasattr(distributed.ProcessGroup, name):
            setattr(distributed.ProcessGroup, name, _before(getattr(distributed.ProcessGroup, name), name, act))
    module = distributed.distributed_c10d
    if hasattr(module, "_shutdown_backend"):
        module._shutdown_backend = _before(module._shutdown_backend, "_shutdown_backend", act)


def _before(original: Callable[..., Any], name: str, act: Callable[[Any], None]) -> Callable[..., Any]:
    def ending(self: Any, *args: Any, **named: Any) -> Any:
        try:
            act(self)
        except Exception as error:
            log.warning("laggard: the end of a process group is not recorded: %s: %s", type(error).__name__, error)
        return original(self, *args, **named)

    # pybind11 takes a Python method of a C++ class's subclass for an override, unless a frame of that name called it
    ending.__code__ = ending.__code__.replace(co_name=name)
    functools.update_wrapper(ending, original, assigned=("__doc__",), updated=())
    ending.__name__ = name
    return ending
