"""NCCL Inspector's files: which rank was the last to arrive at collectives. Standard library only.

Inspector is a profiler plugin of NCCL (plugins/profiler/inspector). Its file `HOST-pidPID.log` has a JSON object a line
for each collective (inspector_json.cc of 2.30.7, format v4.0). Of its times only the execution time comes from the
GPU's clock: how long the kernel ran, waiting for the other ranks included. So the rank that ran the shortest in a
collective waited the least, and came last. Ranks meet in the same collective by communicator, operation and number:
NCCL counts each operation of a communicator for itself.

    log = InspectorLog()
    for piece in pieces:        # text, cut anywhere; files one after the other
        log.feed(piece)
    log.end()                   # after each file
    arrivals = last_arrivals(log)
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

MAX_RECORDS: Final = 2_000_000
"""Collectives of one rank each: 12 bytes. Further ones are counted and not kept."""

_MAX_MEMBERS: Final = 1 << 17
_MAX_LINE_CHARACTERS: Final = 64 << 10
_MAX_TEXT_CHARACTERS: Final = 256
_MAX_NUMBER: Final = 1 << 53

_WAITED_IN: Final = ("AllReduce", "AllGather", "ReduceScatter")
"""The operations in which every rank waits for the last. The root of a broadcast, and others of a reduce, do not."""

INSPECTOR_METRIC: Final = re.compile(
    r"^nccl_(?:p2p_)?(?:bus_bandwidth_gbs|(?:collective_)?exec_time_microseconds)\{version=", re.MULTILINE
)
"""A sample in a file of metrics (inspector_prom.cc)."""

NO_NUMBERS: Final = (
    "Inspector's metrics are means over 30 s and more and do not tell collectives apart, so that nobody can be called "
    "late: give its .log files (without NCCL_INSPECTOR_PROM_DUMP)"
)

_GPU_CLOCK: Final = "kernel_gpu"

MIN_COLLECTIVES: Final = 20
"""The least number of collectives that all ranks of a communicator must have recorded."""

_LAST_SHARE: Final = 0.6
"""The least share of them in which a rank must be the last."""

_MIN_LATE_MICROSECONDS: Final = 20.0
_MIN_LATE_SHARE: Final = 0.1
"""The least share by which it must have run shorter than the median: kernels on equal ranks differ by a few
microseconds."""

_OWN_WAIT_SHARE: Final = 0.3
"""The largest share of its peers' waiting that it may wait itself, over all its communicators: who waits more is
delayed itself."""


class Member(NamedTuple):
    """One rank of a communicator, in one process."""

    communicator: str
    ranks: int
    rank: int
    host: str
    pid: int


class LastArrival(NamedTuple):
    """A rank that is regularly the last. `rank` is its rank in the largest communicator of its process."""

    member: Member
    rank: int
    times_last: int
    collectives: int
    late_microseconds: float
    """The median, of the collectives in which it was the last."""
    running_microseconds: float
    """The median of its peers' times in the same ones."""
    own_wait_microseconds: float
    """The mean wait of its own, over all collectives that were compared."""
    peers_wait_microseconds: float


class Arrivals(NamedTuple):
    """The arrivals that the files tell. `compared`: collectives that all ranks of their communicator recorded; `ranks`
    and `ranks_seen` are of the largest communicator; `incomplete`: communicators of which ranks are not seen."""

    late: tuple[LastArrival, ...]
    compared: int
    ranks: int
    ranks_seen: int
    communicators: int
    incomplete: int


class InspectorLog:
    """The collectives in the files. Bounded in memory, whatever is in them."""

    def __init__(self) -> None:
        self.records = 0
        self.not_kept = 0
        """Records beyond MAX_RECORDS."""
        self.torn = 0
        """Lines that are no JSON object, or an impossible one."""
        self.host_clock = 0
        """Records whose time is not the GPU's: nothing can be told from them."""
        self.times: dict[tuple[Member, str], tuple[array[int], array[int]]] = {}
        """Numbers of the collectives and microseconds, by rank and operation."""
        self._rest = ""

    def feed(self, text: str) -> None:
        """Reads the next piece."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                self._add(line)
        if len(self._rest) > _MAX_LINE_CHARACTERS:
            self._rest = self._rest[:_MAX_LINE_CHARACTERS]

    def end(self) -> None:
        """Ends a file: a line without its line feed is what was being written."""
        self.torn += bool(self._rest.strip())
        self._rest = ""

    def _add(self, line: str) -> None:
        try:
            found = _record(line)
        except (ValueError, RecursionError, KeyError, TypeError):
            self.torn += 1
            return
        if found is None:
            return
        self.records += 1
        member, operation, number, microseconds, clock = found
        if clock != _GPU_CLOCK:
            self.host_clock += 1
        elif operation in _WAITED_IN:
            self._keep((member, operation), number, microseconds)

    def _keep(self, key: tuple[Member, str], number: int, microseconds: int) -> None:
        kept = self.times.get(key)
        if self.records - self.not_kept > MAX_RECORDS or (kept is None and len(self.times) >= _MAX_MEMBERS):
            self.not_kept += 1
            return
        if kept is None:
            kept = self.times[key] = array("Q"), array("Q")
        kept[0].append(number)
        kept[1].append(microseconds)


def is_inspector_line(line: str) -> bool:
    """Returns whether a line is one of Inspector's."""
    if not line.startswith("{") or "inspector_output_format_version" not in line[:_MAX_LINE_CHARACTERS]:
        return False
    try:
        return "header" in json.loads(line)
    except (ValueError, RecursionError):
        return False


def _record(line: str) -> tuple[Member, str, int, int, str] | None:
    """The collective in a line; None for a send or receive. Raises ValueError, KeyError or TypeError."""
    if len(line) >= _MAX_LINE_CHARACTERS:
        raise ValueError("too long")
    tree = json.loads(line)
    header, made = tree["header"], tree["metadata"]
    if "coll_perf" not in tree:
        if "p2p_perf" in tree:
            return None
        raise ValueError("neither a collective nor a send or receive")
    timed = tree["coll_perf"]
    ranks, rank = _number(header["n_ranks"], 1), _number(header["rank"])
    if rank >= ranks:
        raise ValueError("no rank of the communicator")
    member = Member(_text(header["id"]), ranks, rank, _text(made["hostname"]), _number(made["pid"]))
    clock = _text(timed.get("coll_timing_source", _GPU_CLOCK))
    return member, _text(timed["coll"]), _number(timed["coll_sn"]), _number(timed["coll_exec_time_us"]), clock


def _number(value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= _MAX_NUMBER:
        raise ValueError("no number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT_CHARACTERS or not value.isprintable():
        raise ValueError("no text")
    return value


class _Tally:
    """The sums over a rank's collectives, of all its communicators."""

    def __init__(self) -> None:
        self.last: dict[Member, list[tuple[float, float]]] = {}  # (late, running) of those in which it was the last
        self.collectives: dict[Member, int] = {}
        self.waits: list[float] = []
        self.peers_waits: list[float] = []


def last_arrivals(log: InspectorLog) -> Arrivals:
    """Compares the ranks of each communicator in the collectives that all of them recorded."""
    communicators: dict[str, dict[str, list[Member]]] = {}
    for member, operation in log.times:
        communicators.setdefault(member.communicator, {}).setdefault(operation, []).append(member)
    tallies: dict[tuple[str, int, int], _Tally] = {}
    compared = incomplete = 0
    for by_operation in communicators.values():
        complete = [(name, members) for name, members in by_operation.items() if _all_are_there(members)]
        incomplete += not complete
        for operation, members in complete:
            compared += _compare(log, operation, sorted(members), tallies)
    world = _largest(member for member, _ in log.times)
    late = [found for tally in tallies.values() if (found := _regularly_last(tally, log))]
    return Arrivals(
        tuple(sorted(late, key=lambda it: -it.late_microseconds * it.times_last)),
        compared,
        world.ranks if world else 0,
        len({member.rank for member, _ in log.times if world and member.communicator == world.communicator}),
        len(communicators),
        incomplete,
    )


def _all_are_there(members: Sequence[Member]) -> bool:
    return len(members) > 1 and len({member.rank for member in members}) == len(members) == members[0].ranks


def _compare(
    log: InspectorLog, operation: str, members: Sequence[Member], tallies: dict[tuple[str, int, int], _Tally]
) -> int:
    """Adds each collective to its ranks' tallies. Returns how many there are."""
    by_rank = [_once_each(*log.times[member, operation]) for member in members]
    numbers = set(by_rank[0]).intersection(*by_rank[1:])
    own = [tallies.setdefault((it.host, it.pid, _device(it, members)), _Tally()) for it in members]
    for number in numbers:
        times = [times[number] for times in by_rank]
        least = min(times)
        mean_wait = (sum(times) - least * len(times)) / (len(times) - 1)
        for place, (tally, time) in enumerate(zip(own, times, strict=True)):
            tally.collectives[members[place]] = tally.collectives.get(members[place], 0) + 1
            tally.waits.append(time - least)
            tally.peers_waits.append(mean_wait)
        if times.count(least) == 1:
            last = times.index(least)
            running = median(time for place, time in enumerate(times) if place != last)
            own[last].last.setdefault(members[last], []).append((running - least, running))
    return len(numbers)


def _device(member: Member, members: Sequence[Member]) -> int:
    """Tells the ranks of one process apart, by their order in the communicator."""
    return sum(it.rank < member.rank for it in members if (it.host, it.pid) == (member.host, member.pid))


def _once_each(numbers: array[int], times: array[int]) -> dict[int, int]:
    """The times by number, without numbers that come again: replays of a CUDA graph all have the same."""
    seen = Counter(numbers)
    return {number: time for number, time in zip(numbers, times, strict=True) if seen[number] == 1}


def _regularly_last(tally: _Tally, log: InspectorLog) -> LastArrival | None:
    if not tally.waits or not tally.last:
        return None
    own, peers = sum(tally.waits) / len(tally.waits), sum(tally.peers_waits) / len(tally.peers_waits)
    if own > _OWN_WAIT_SHARE * peers:
        return None
    found = [_in_communicator(tally, member, own, peers, log) for member in tally.last]
    return max(filter(None, found), key=lambda it: it.late_microseconds * it.times_last, default=None)


def _in_communicator(tally: _Tally, member: Member, own: float, peers: float, log: InspectorLog) -> LastArrival | None:
    last, collectives = tally.last[member], tally.collectives[member]
    late, running = median(each for each, _ in last), median(each for _, each in last)
    enough = collectives >= MIN_COLLECTIVES and len(last) >= _LAST_SHARE * collectives
    if not enough or late < max(_MIN_LATE_MICROSECONDS, _MIN_LATE_SHARE * running):
        return None
    in_world = _largest(it for it, _ in log.times if (it.host, it.pid) == (member.host, member.pid))
    alone = sum(it.communicator == in_world.communicator for it, _ in log.times if in_world and it.pid == member.pid)
    rank = in_world.rank if in_world and alone == 1 else member.rank
    return LastArrival(member, rank, len(last), collectives, late, running, own, peers)


def _largest(members: Iterable[Member]) -> Member | None:
    return max(members, key=lambda it: (it.ranks, it.communicator), default=None)


def gaps_of(log: InspectorLog, arrivals: Arrivals) -> Iterator[str]:
    """The gaps: what could not be used, and why, a line each."""
    if log.torn:
        yield f"{log.torn} torn or impossible lines were left out"
    if log.host_clock:
        yield f"{log.host_clock} records have the host's clock and tell nothing"
    if log.not_kept:
        yield f"{log.not_kept} records beyond the first {MAX_RECORDS} were left out"
    if arrivals.incomplete:
        yield (
            f"{arrivals.incomplete} of {arrivals.communicators} communicators cannot be compared: give the files of "
            "all their ranks"
        )
    if arrivals.compared < MIN_COLLECTIVES:
        yield f"{arrivals.compared} collectives were recorded by all their ranks, {MIN_COLLECTIVES} are needed"
