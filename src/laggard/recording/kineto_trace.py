"""One rank's profiler trace as values: its steps, its phases, and its collectives with how long it waited in them.

Where there are kernels, what ran on the GPU counts: a collective is an NCCL kernel, and it is waited for as long as no
other kernel ran beside it. Else it is gloo's part of a collective, waited for while no operator of torch ran.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from laggard.kit.constants import PHASES
from laggard.recording.kineto_stream import NoTrace, TraceStream
from laggard.recording.records import BYTES_OF_TYPE, MAX_RANKS, UNKNOWN, op_place
from laggard.recording.tables import Intervals

MAX_INTERVALS = 30_000_000
"""The most kernels, or operators of a trace without kernels: each takes 16 bytes, together half a GiB."""
MAX_COLLECTIVES = 2_000_000

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,9})$")
_NCCL = re.compile(r"^(?:void )?(?:nccl|rccl)\w*Kernel", re.IGNORECASE)
_NCCL_OP = re.compile(r"(AllReduce|AllGather|ReduceScatter|Broadcast|AllToAll|Reduce)", re.IGNORECASE)
_PHASE_WORDS = {
    "input": re.compile(r"data_?load|dataloader|next_batch|get_batch|load_batch|_next_data", re.IGNORECASE),
    "forward": re.compile(r"(?<![a-z])(?:forward|fwd)(?![a-z])", re.IGNORECASE),
    "backward": re.compile(r"(?<![a-z])(?:backward|bwd)(?![a-z])", re.IGNORECASE),
    "optimizer": re.compile(r"(?<![a-z])optimi[sz]er(?![a-z])", re.IGNORECASE),
}

_ROUNDING_SECONDS = 1e-6  # old traces have whole microseconds


class Interval(NamedTuple):
    """The begin and the end, in seconds on the rank's clock."""

    start: float
    end: float


class Collective(NamedTuple):
    """`number` is torch's own of the group, -1 where the trace has none."""

    group: str
    op: int
    number: int
    size: int
    start: float
    end: float
    waited: float


class Group(NamedTuple):
    """`members` is empty where the trace does not tell them all."""

    name: str
    description: str
    members: tuple[int, ...]


class Trace(NamedTuple):
    """The content of one file. `spans` are phases, as places in PHASES. `lacks`: lines on what could not be read."""

    path: str
    rank: int
    world_size: int
    node: str | None
    steps: dict[int, Interval]
    spans: tuple[tuple[int, Interval], ...]
    collectives: tuple[Collective, ...]
    groups: dict[str, Group]
    on_device: bool
    lacks: tuple[str, ...]


def read_trace(path: Path) -> Trace:
    """The trace in a file of JSON, packed by gzip or not. Raises NoTrace where it is none or has no rank, and
    OSError."""
    stream = TraceStream(path)
    events = _Events()
    for event in stream.events():
        events.add(event)
    lacks = []
    if stream.damaged or events.damaged:
        lacks.append(f"{stream.damaged + events.damaged} events of {path} left out: damaged")
    if stream.cut_off:
        lacks.append(f"{path}: {stream.cut_off}, and what stood behind is lost")
    if events.dropped:
        lacks.append(f"{path} has more events than are read: {events.dropped} left out")
    return events.trace(path, stream.head, lacks)


class _Events:
    """Takes what is needed from each event."""

    def __init__(self) -> None:
        self.damaged = 0
        self.dropped = 0
        self._steps: dict[int, Interval] = {}
        self._threads: set[Any] = set()
        self._phases: dict[str, list[tuple[Any, int, Interval]]] = {"user_annotation": [], "gpu_user_annotation": []}
        self._kernels = array("d")
        self._operators = array("d")
        self._nccl: list[Collective] = []
        self._gloo: list[Collective] = []
        self._groups: dict[str, Group] = {}
        self._one_group = ""

    def add(self, event: dict[str, Any]) -> None:
        if event.get("ph") != "X":
            return
        name, category = event.get("name"), event.get("cat")
        if not isinstance(name, str) or not isinstance(category, str):
            return
        category = category.lower()
        if category in ("cpu_op", "operator") and not name.startswith("aten::"):
            return
        when = _interval(event)
        if when is None:
            self.damaged += 1
        elif category in ("kernel", "gpu_memcpy", "gpu_memset"):
            if category == "kernel" and _NCCL.match(name):
                self._add_collective(self._nccl, name, event.get("args"), when)
            else:
                self._add_interval(self._kernels, when)
        elif category in ("cpu_op", "operator"):
            self._add_interval(self._operators, when)
        elif category in self._phases:
            self._add_annotation(name, category, event, when)

    def _add_interval(self, intervals: array[float], when: Interval) -> None:
        if len(intervals) >= 2 * MAX_INTERVALS:
            self.dropped += 1
            return
        intervals.append(when.start)
        intervals.append(when.end)

    def _add_annotation(self, name: str, category: str, event: dict[str, Any], when: Interval) -> None:
        step = _STEP.match(name)
        if step:
            if category == "user_annotation":
                self._steps.setdefault(int(step[1]), when)
                self._threads.add(_thread(event))
        elif name.startswith("gloo:"):
            self._add_collective(self._gloo, name.removeprefix("gloo:"), event.get("args"), when)
        elif not name.startswith("nccl:"):
            phase = _phase(name)
            if phase >= 0 and len(self._phases[category]) < MAX_COLLECTIVES:
                self._phases[category].append((_thread(event), phase, when))

    def _add_collective(self, found: list[Collective], name: str, args: Any, when: Interval) -> None:
        if len(found) >= MAX_COLLECTIVES:
            self.dropped += 1
            return
        args = args if isinstance(args, dict) else {}
        told = args.get("Collective name")
        known = _NCCL_OP.search(name)
        op = op_place(told if isinstance(told, str) else known[1] if known else name)
        number = args.get("Seq")
        number = number if type(number) is int and 0 <= number < 1 << 40 else UNKNOWN
        found.append(Collective(self._group(args), op, number, _size(args), when.start, when.end, 0.0))

    def _group(self, args: dict[str, Any]) -> str:
        name = args.get("Process Group Name")
        if not isinstance(name, str):
            return ""
        name = name[:256]
        if name not in self._groups and len(self._groups) < 65_536:
            members = _members(args.get("Process Group Ranks"))
            size = args.get("Group size")
            if type(size) is int and size != len(members):  # a long list is cut off by the profiler
                members = ()
            description = args.get("Process Group Description")
            self._groups[name] = Group(name, description[:256] if isinstance(description, str) else "", members)
        return name

    def trace(self, path: Path, head: dict[str, Any], lacks: list[str]) -> Trace:
        information = head.get("distributedInfo")
        information = information if isinstance(information, dict) else {}
        for group in _configured(information):
            self._groups[group.name] = group
        on_device = bool(self._kernels or self._nccl)
        collectives = self._nccl if on_device else self._gloo
        if not on_device and len(self._groups) == 1:  # gloo's events do not tell their group
            (only,) = self._groups
            collectives = [each._replace(group=only) for each in collectives]
        node = head.get("host_name")
        return Trace(
            str(path),
            _rank(information, path),
            _count(information.get("world_size")),
            node[:256] if isinstance(node, str) else None,
            self._steps,
            tuple(self._spans(on_device)),
            tuple(_with_waits(collectives, self._kernels if on_device else self._operators)),
            self._groups,
            on_device,
            tuple(lacks),
        )

    def _spans(self, on_device: bool) -> Iterable[tuple[int, Interval]]:
        """The outermost phases that do not overlap. What the host calls forward is when a device was told to, so that
        on a device only its own annotations count, and the host's input."""
        found = list(self._phases["gpu_user_annotation"]) if on_device else []
        input_phase = PHASES.index("input")
        found += [
            each
            for each in self._phases["user_annotation"]
            if each[0] in self._threads and (not on_device or each[1] == input_phase)
        ]
        latest = float("-inf")
        for _, phase, when in sorted(found, key=lambda each: (each[2].start, -each[2].end)):
            if when.start >= latest - _ROUNDING_SECONDS:
                latest = when.end
                yield phase, when


def _thread(event: dict[str, Any]) -> Any:
    return str(event.get("pid")), str(event.get("tid"))


def _interval(event: dict[str, Any]) -> Interval | None:
    """The interval of the event, in seconds: traces have microseconds."""
    start, length = event.get("ts"), event.get("dur", 0)
    try:
        start, length = float(start), float(length)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    if not (-1e18 < start < 1e18 and 0 <= length < 1e15):
        return None
    return Interval(start * 1e-6, (start + length) * 1e-6)


def _phase(name: str) -> int:
    """The place in PHASES of the phase that an annotation names; -1 where it names none, or two."""
    found = [phase for phase, words in _PHASE_WORDS.items() if words.search(name)]
    return PHASES.index(found[0]) if len(found) == 1 else -1


def _members(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        value = value.strip("[] ").split(",")
    if not isinstance(value, list) or len(value) > MAX_RANKS:
        return ()
    try:
        ranks = tuple(int(each) for each in value)
    except (TypeError, ValueError):
        return ()
    return ranks if all(0 <= rank < MAX_RANKS for rank in ranks) else ()


def _configured(information: dict[str, Any]) -> Iterable[Group]:
    """The process groups that the trace lists with all members."""
    listed = information.get("pg_config")
    for each in listed[:65_536] if isinstance(listed, list) else ():
        name = each.get("pg_name") if isinstance(each, dict) else None
        members = _members(each.get("ranks")) if isinstance(name, str) else ()
        if isinstance(name, str) and members:
            yield Group(name[:256], str(each.get("pg_desc"))[:256], members)


def _size(args: dict[str, Any]) -> int:
    width = BYTES_OF_TYPE.get(args["dtype"]) if isinstance(args.get("dtype"), str) else None
    counts = [_count(args.get(f"{side} msg nelems")) for side in ("In", "Out")]
    return max(counts) * width if width and max(counts) > 0 else UNKNOWN


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 1 << 50 else 0


def _rank(information: dict[str, Any], path: Path) -> int:
    told = information.get("rank")
    if type(told) is int and 0 <= told < MAX_RANKS:
        return told
    named = re.search(r"rank[-_.]?(\d{1,6})", path.name, re.IGNORECASE)
    if named is None:
        raise NoTrace("it does not say of which rank it is (distributedInfo), nor does its name (rank-3.json)")
    return int(named[1])


def _with_waits(collectives: list[Collective], others: array[float]) -> Iterable[Collective]:
    """Each waited for as long as nothing of `others` ran beside it."""
    both = np.frombuffer(others, np.float64).reshape(-1, 2)
    busy = Intervals.of(both[:, 0], both[:, 1])
    starts, ends = (np.array([each[place] for each in collectives], np.float64) for place in (4, 5))
    waited = np.maximum(ends - starts - busy.within(starts, ends), 0.0)
    return (each._replace(waited=float(wait)) for each, wait in zip(collectives, waited, strict=True))
