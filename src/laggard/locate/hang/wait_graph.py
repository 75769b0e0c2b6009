"""The wait graph of a job that stands still, and the words for it: who stands in what, and who has yet to come. Pure.

Three readers fill it: live_waits.py from the rows of ranks that live, and from where recordings say that they stood
last; unfinished.py from the collectives of a recording that never ended, and from what dumps say that devices have yet
to finish. Who is awaited and stands in nothing is at the root. Where all that are awaited stand in something
themselves, some of them wait for one another in a circle.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import structs

from laggard.kit.majority import grouped
from laggard.kit.words import counted, ranks_text
from laggard.locate.job_timings import JobTimings, RankState
from laggard.model import MAX_NAMED_RANKS, Culprit, Note
from laggard.wire.ranks import BeatRow

Node = TypeVar("Node", bound=Hashable)

SILENT_BEATS = 3.0
"""The number of missed beats, and a second more, after which a rank counts as silent: its process runs, but none of its
threads does. Our own choice: one beat may be late, two in a row are not."""


class Standing(NamedTuple):
    """Where a rank stands, since how many seconds, and who has yet to come there: columns, of dumps ranks. `number` is
    the collective's, in its lane or, where torch told of it, in its group; a message's is that in its pair."""

    rank: int
    operation: str  # for people: "all_reduce of dp:0-3", "recv of pp:0-3 from rank 1"
    missed: str  # what the others have not come to: the same, or "send of pp:0-3 to rank 0"
    group: str
    number: int
    seconds: float
    awaited: frozenset[int]


class WaitGraph:
    def __init__(self, standings: Iterable[Standing]) -> None:
        self.standings = {each.rank: each for each in standings}
        by_length = sorted(self.standings.values(), key=lambda each: each.seconds)
        distinct = {each.awaited: each for each in by_length}  # thousands wait for the same ranks
        self.awaited = frozenset().union(*distinct)
        self.longest = by_length[-1] if by_length else None
        ordered = sorted(distinct.values(), key=lambda each: each.seconds)
        self._longest_for = {rank: each for each in ordered for rank in each.awaited}

    @property
    def roots(self) -> frozenset[int]:
        """Who is awaited and stands in nothing."""
        return self.awaited - self.standings.keys()

    @property
    def circle(self) -> frozenset[int]:
        return ranks_in_cycles({rank: each.awaited for rank, each in self.standings.items()})

    def wait_for(self, rank: int) -> Standing | None:
        """The longest wait for this rank; where there is none, as it stands in the collective itself, the longest of
        all."""
        return self._longest_for.get(rank, self.longest)


def ranks_in_cycles(waits_for: Mapping[Node, Set[Node]]) -> frozenset[Node]:
    """The ranks on a cycle of the wait-for graph or on a path between two cycles; empty where there is no cycle.

    `waits_for` maps each rank that waits to all ranks that it waits for. Kahn's elimination, from both ends: first
    the ranks from which no cycle can be reached go, then those that cannot be reached from a cycle.
    """
    forward = {rank: set(others) & waits_for.keys() for rank, others in waits_for.items()}
    before_cycles = _without_dead_ends(forward)
    backward: dict[Node, set[Node]] = {rank: set() for rank in before_cycles}
    for rank in before_cycles:
        for other in forward[rank] & before_cycles:
            backward[other].add(rank)
    return frozenset(_without_dead_ends(backward))


def _without_dead_ends(graph: Mapping[Node, Set[Node]]) -> set[Node]:
    """The nodes from which a path never ends. Linear in the edges: thousands of ranks may wait in a row."""
    edges_left = {node: len(others) for node, others in graph.items()}
    ways = grouped(((node, other) for node, others in graph.items() for other in others), lambda way: way[1])
    dead_ends = [node for node, count in edges_left.items() if not count]
    while dead_ends:
        end = dead_ends.pop()
        del edges_left[end]
        for node, _ in ways.get(end, ()):
            edges_left[node] -= 1
            if not edges_left[node]:
                dead_ends.append(node)
    return set(edges_left)


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


def is_alive(state: RankState) -> bool:
    return state.state == "running"


def has_left(state: RankState) -> bool:
    """Whether the rank's process ended with status 0, and it is known how far it had come."""
    return state.state == "finished" and state.end is not None and state.beat is not None


def silence(beat: BeatRow) -> float:
    """The seconds without a sign of life after which a rank is silent."""
    return SILENT_BEATS * beat.interval_seconds + 1.0


def is_silent(state: RankState) -> bool:
    return state.beat is not None and silent_seconds(state) > silence(state.beat)


def silent_seconds(state: RankState) -> float:
    """Seconds since the rank's last sign of life; 0.0 where it never gave one."""
    return state.beat.age_seconds if state.beat else 0.0


def next_step(state: RankState) -> int:
    """The step in which the rank stands."""
    return 0 if state.step is None else state.step + 1


def culprit_at(timings: JobTimings, columns: Sequence[int], at: Any, waiting: Iterable[int], **more: Any) -> Culprit:
    """The ranks of these columns as a culprit, which stands where `at` says, a RankState or LastBeat; `waiting`: the
    columns of those that wait for it. `more`: other fields, and what is told in place of these."""
    nodes = {timings.nodes[column] for column in columns}
    found = Culprit(
        kind="hung",
        ranks=tuple(sorted(int(timings.ranks[column]) for column in columns)),
        node=nodes.pop() if len(nodes) == 1 else None,
        gpu=timings.gpus[columns[0]] if len(columns) == 1 else None,
        phase="collective" if at.in_flight else at.phase,
        group=at.in_flight.group if at.in_flight else None,
        since_step=next_step(timings.states[columns[0]]),
        victims=ranks_of(timings, {*waiting} - {*columns}),
    )
    return structs.replace(found, **more)


def ranks_of(timings: JobTimings, columns: Iterable[int]) -> tuple[int, ...]:
    """As many of the ranks of these columns as are named."""
    return tuple(sorted(int(timings.ranks[column]) for column in columns)[:MAX_NAMED_RANKS])


def circle_note(ranks: Iterable[int]) -> Note:
    """The note on ranks each of which has yet to come to what another is in."""
    ordered = sorted(ranks)
    text = f"{ranks_text(ordered)} wait for one another, a deadlock: each has yet to come to what another is in"
    return Note("deadlock", text, tuple(ordered[:MAX_NAMED_RANKS]))


def unfinished_note(stuck: Sequence[int], standing: int, names: Sequence[str]) -> Note:
    """The note on a job of which so many ranks stand in the last operations, of these `names`, to which all came;
    `stuck`: in the first of them."""
    who = f"{counted(standing, 'rank')} never finished"
    text = f"{who} what they launched; nothing tells for whom they wait"
    if names:
        text = (
            f"{who} the last collectives, to which all came: {names[0]}{' and others' if len(names) > 1 else ''}; the "
            "job was ended in them, or the network or a device among them stands still"
        )
    return Note("unfinished", text, ranks=tuple(sorted(stuck)[:MAX_NAMED_RANKS]))


def unseen_note(stuck: Sequence[int], name: str, unseen: Sequence[int], waiting: int) -> Note:
    """The note on a hang at whose root may be a rank of which nothing is recorded. `stuck`: in the operation `name`."""
    others = f"; {counted(waiting, 'rank')} wait in all" if waiting > len(stuck) else ""
    text = (
        f"{ranks_text(stuck)} never finished {name}, to which all came that are seen; nothing is recorded of "
        f"{ranks_text(unseen)}, which may have died or hang{others}"
    )
    return Note("unseen_ranks", text, ranks=tuple(sorted(unseen)[:MAX_NAMED_RANKS]))
