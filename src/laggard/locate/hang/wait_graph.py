"""The wait graph of a job that stands still: who stands in what, since when, and who has yet to come. Pure.

Three sources fill it: the rows of ranks that live, where recordings say that ranks stood last, which have the form of
such rows, and, in unfinished.py, what recordings and dumps say that was never finished. Who is awaited and stands in
nothing is at the root. Where all that are awaited stand in something themselves, some of them wait for one another in a
circle.

By the rows a rank waits when it has been inside a collective, a send or a receive for longer than steps take. It waits
for the members of the group that have entered fewer collectives of that lane, or for its partner in the pair.
Collectives that C++ called, as DDP's are, no hook sees in flight; torch's Flight Recorder counts those of the world.
The thresholds are our own choices.

Sends and receives match by pair and direction, whatever the process group: the nth send of A to B is the nth receive of
B from A. No partner is reported missing where the two counts cannot be of the same messages: a rank was restarted, or
hooked after its first messages, or receives from any rank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import structs

from laggard.kit.majority import grouped
from laggard.kit.words import ranks_text, seconds_text
from laggard.locate.job_timings import JobTimings, LastBeat, RankState
from laggard.model import MAX_NAMED_RANKS, Culprit, Note
from laggard.rankfile.layout import LANE_COUNT
from laggard.wire.ranks import BeatRow, GroupProgress, InFlight, LaneProgress

Node = TypeVar("Node", bound=Hashable)

SILENT_BEATS = 3.0
"""The missed beats, and a WAITING_SECONDS more, after which a rank counts as silent: its process runs, but none of its
threads does. Our own choice: one beat may be late, two in a row are not."""

WAITING_SECONDS = 1.0
"""The time in a collective from which on a rank counts as waiting in a job that stands still: a process of it is
stopped, or one has waited for WAITING_STEPS. Our own choice: stages of a pipeline begin to wait one after the other."""

WAITING_STEPS = 2.0
"""The usual steps in one collective after which a job stands still: within one, each comes to what others are in."""

STANDSTILL_SECONDS = 20.0
"""The same where no step tells: the first ones load data and compile, NCCL RAS counts launches alone, and of a job that
was ended nobody waits on. Our own choice: two answers of NCCL RAS, and little of torch's timeout of ten minutes."""

MESSAGES = ("send", "recv")

ANY_RANK = -1
"""The peer of a receive from any rank, of a group that was made by hand, and where an agent reports none."""

CONFIDENCE: Final = {
    "stopped": 0.9, "gone": 0.9, "left": 0.9, "silent": 0.8, "never came": 0.8, "device": 0.8, "not reached": 0.7,
    "late": 0.6, "one of several": 0.5, "cut off": 0.4,
}  # fmt: skip
"""How sure it is that such a rank is at the root, our own choices: the kernel tells of the first two; that one which
left was meant to come, its group alone; who never came may have been about to; who is late may wait for what nobody
sees; and whom NCCL does not reach may be well, where the network is not, the more so where it is half of all."""

THE_WORLD = "#0"
"""The name of the world's process group: torch numbers them, and the numbers of others differ from rank to rank."""

CIRCLE = "{} wait for one another, a deadlock: each has yet to come to what another is in"
OF_THE_WORLD = "a collective of the world that C++ made, as DDP's"
"""The text for a collective of which only the Flight Recorder tells."""


class Standing(NamedTuple):
    """Where a rank stands, since how many seconds, and who has yet to come there: columns, of dumps ranks. `number` is
    the collective's, in its lane or, where torch told of it, in its group; a message's is that in its pair."""

    rank: int
    operation: str  # for people: "all_reduce of dp:0-3", "recv of pp:0-3 from rank 1"
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
        self.roots = self.awaited - self.standings.keys()  # who is awaited and stands in nothing
        self.longest = by_length[-1] if by_length else None
        ordered = sorted(distinct.values(), key=lambda each: each.seconds)
        self.longest_for = {rank: each for each in ordered for rank in each.awaited}

    @property
    def circle(self) -> frozenset[int]:
        return ranks_in_cycles({rank: each.awaited for rank, each in self.standings.items()})

    def wait_for(self, rank: int) -> Standing | None:
        """The longest wait for this rank; where there is none, as it stands in the collective itself, the longest of
        all."""
        return self.longest_for.get(rank, self.longest)


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
        self._columns = timings.column_of
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


def has_left(state: RankState) -> bool:
    """Whether the rank's process ended with status 0, and it is known how far it had come."""
    return state.state == "finished" and state.end is not None and state.beat is not None


def silence(beat: BeatRow, step_seconds: float | None = 0.0) -> float:
    """The seconds without a sign of life, and without finishing a step, after which a rank is silent."""
    return SILENT_BEATS * beat.interval_seconds + least_seconds(step_seconds)


def is_silent(state: RankState) -> bool:
    return state.beat is not None and state.beat.age_seconds > silence(state.beat)


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


def circle_note(ranks: Collection[int]) -> Note:
    """The note on ranks each of which has yet to come to what another is in."""
    return Note("deadlock", CIRCLE.format(ranks_text(ranks)), tuple(sorted(ranks)[:MAX_NAMED_RANKS]))


class _Lane(NamedTuple):
    """What ranks count together: an operation of a group, or the messages of one rank to another in any group."""

    op: str
    group: str = ""
    source: int = ANY_RANK
    target: int = ANY_RANK

    @classmethod
    def of(cls, rank: int, it: LaneProgress | InFlight) -> _Lane:
        """The lane that `it` is of, which the rank reports."""
        if it.op not in MESSAGES:
            return cls(it.op, it.group)
        return cls("send", "", rank, it.peer) if it.op == "send" else cls("send", "", it.peer, rank)

    @property
    def text(self) -> str:
        return f"{self.op} of {self.group}" if self.group else f"send from rank {self.source} to rank {self.target}"


class Departure(NamedTuple):
    """A rank (its column) that left, the first collective that it never came to, for people, and the columns of those
    that went on to that one or a later one."""

    column: int
    missed: str
    waiting: frozenset[int]


class Arrivals:
    """How far each rank (its column) has come in each lane."""

    def __init__(self, timings: JobTimings) -> None:
        self._columns = timings.column_of
        self._ranks = [*self._columns]
        self._states = timings.states
        self._members = Members(timings)
        self._entered: dict[_Lane, dict[int, int]] = {}
        self._done: dict[tuple[_Lane, int], int] = {}
        self._missing: dict[tuple[_Lane, int], frozenset[int]] = {}  # cached: all ranks that wait there ask for it
        self._longest: dict[tuple[_Lane, int], float] = {}  # how long a rank has been in it, in seconds
        for column, state in enumerate(timings.states):
            for row in state.beat.lanes if state.beat else ():
                lane = self._count(column, row, row.entered)
                self._done[lane, column] = row.done + self._done.get((lane, column), 0)
            if state.in_flight:
                place = self._count(column, state.in_flight, state.in_flight.seq), state.in_flight.seq
                self._longest[place] = max(state.in_flight.seconds, self._longest.get(place, 0.0))
        self.point_to_point = any(lane.op == "send" for lane in self._entered)

    def _count(self, column: int, it: LaneProgress | InFlight, count: int) -> _Lane:
        lane = _Lane.of(self._ranks[column], it)
        entered = self._entered.setdefault(lane, {})
        entered[column] = max(entered.get(column, 0), count)
        return lane

    def standing(self, column: int) -> Standing | None:
        """Where the rank waits; None where it does not. The messages of a batch are waited for together, and the live
        word is the last: if the partner has come to that, another in flight whose partner has not."""
        state, flight = self._states[column], self._states[column].in_flight
        if state.state != "running" or flight is None or flight.seconds < WAITING_SECONDS:
            return None
        rows = state.beat.lanes if state.beat and flight.op in MESSAGES else ()
        batch = (
            InFlight(row.op, row.group, row.entered, flight.seconds, row.peer)
            for row in rows
            if row.op in MESSAGES and row.entered > row.done
        )
        at = next((each for each in (flight, *batch) if self._awaited(column, each)), flight)
        return Standing(column, flight_text(at), at.group, at.seq, at.seconds, self._awaited(column, at))

    def _awaited(self, column: int, flight: InFlight) -> frozenset[int]:
        """The ranks that live, or left with status 0, and had not come to `flight`, which the rank is in, when a rank
        was in it already: members of the group, or the partner, that have entered fewer of the lane."""
        place = lane, number = _Lane.of(self._ranks[column], flight), flight.seq
        if place not in self._missing:
            entered, begin = self._entered[lane], self._longest.get(place, flight.seconds)
            behind = (member for member in self._members_of(lane) if entered.get(member, 0) < number)
            self._missing[place] = frozenset(
                member for member in behind if self._counts_since(member, begin) and self._is_sure(member, lane, begin)
            )
        found = self._missing[place]
        return found - {column} if column in found else found

    def _members_of(self, lane: _Lane) -> Set[int]:
        if lane.op == "send":
            return {self._columns[rank] for rank in (lane.source, lane.target) if rank in self._columns}
        return self._entered[lane].keys() | self._members.of(lane.group)

    def _counts_since(self, column: int, begin_seconds: float) -> bool:
        """Whether the rank lives, and its counts are newer than a wait that began so many seconds ago; or it left, and
        they are its last."""
        state = self._states[column]
        is_read = state.beat is not None and was_read_since(state, state.beat.age_seconds, begin_seconds)
        return has_left(state) or (state.state == "running" and is_read)

    def _is_sure(self, column: int, lane: _Lane, begin_seconds: float) -> bool:
        """Whether the rank's count of a lane is of what others count there: not where a message of it may be from any
        rank, where its rank file has no room for more lanes, and where more were done there than were begun here."""
        entered, beat = self._entered[lane].get(column, 0), self._states[column].beat
        if not entered and beat is not None and len(beat.lanes) >= LANE_COUNT:
            return False
        if lane.op != "send":
            return True
        anybody = (lane._replace(source=ANY_RANK), lane._replace(target=ANY_RANK))
        if any(column in self._entered.get(each, {}) for each in anybody) or ANY_RANK in lane:
            return False
        # A beat from before the wait, after which nothing has come, is one of a rank that stands still.
        stands = beat is not None and beat.age_seconds > begin_seconds
        return stands or max(self._done.get((lane, other), 0) for other in self._members_of(lane)) <= entered

    def departures(self, among: Set[int]) -> tuple[Departure, ...]:
        """The ranks that left with status 0 while ranks of `among` went on to what these never came to, in the order of
        their ends. How many of each lane ranks had entered counts, and not when they left: ranks that end one after the
        other have entered equally many, and so have those of DDP's join()."""
        found = []
        for column, state in enumerate(self._states):
            missed = [*self._missed(column, among)] if has_left(state) else []
            if missed and state.end:
                waiting = frozenset().union(*(each.waiting for each in missed))
                found.append((state.end.at_seconds, missed[0]._replace(waiting=waiting)))
        return tuple(departure for _, departure in sorted(found, key=lambda each: each[0]))

    def _missed(self, column: int, among: Set[int]) -> Iterator[Departure]:
        for lane, entered in self._entered.items():
            own = entered.get(column, 0)
            waiting = frozenset(other for other, count in entered.items() if count > own and other in among)
            if waiting and column in self._members_of(lane) and self._is_sure(column, lane, math.inf):
                yield Departure(column, f"{lane.text}, number {own + 1}", waiting)
        waiting = frozenset(other for other in among if self._went_on_in_the_world(other, column))
        if waiting:
            yield Departure(column, OF_THE_WORLD, waiting)

    def _went_on_in_the_world(self, column: int, left: int) -> bool:
        """Whether a rank stands in a collective of the world that C++ made, which only torch's Flight Recorder tells
        of, and had come as far as the other, which had entered no collective of the world in which this one is not."""
        state = self._states[column]
        went_on = stands_in(in_the_world(state)) and next_step(self._states[left]) <= next_step(state)
        lanes = (each for lane, each in self._entered.items() if len(self._members_of(lane)) == len(self._states))
        return went_on and all(entered.get(left, 0) <= entered.get(column, 0) for entered in lanes)


def was_read_since(state: RankState, age_seconds: float, begin_seconds: float) -> bool:
    """Whether a reading of the rank, `age_seconds` old when its agent was asked, is newer than a wait that began
    `begin_seconds` ago. Where it is not, the rank may have come since; not so where none of its threads runs."""
    return state.stopped or is_silent(state) or age_seconds + state.asked_seconds_ago <= begin_seconds


def find_waits(timings: JobTimings, step_seconds: float | None, stopped: frozenset[int]) -> dict[int, Standing]:
    """All waits, by column, once the job stands still: first what the hook reports, and for ranks that are in none of
    its collectives what torch reports. `step_seconds`: how long the job's steps usually take, None where that is not
    known. `stopped`: the columns of living processes that the kernel calls so."""
    least = WAITING_SECONDS if stopped else least_seconds(step_seconds)
    if not any(_still_seconds(state) >= least for state in timings.states):
        return {}
    arrivals = Arrivals(timings)
    running = (column for column in range(len(timings.states)) if column not in stopped)
    found = {column: each for column in running if (each := arrivals.standing(column))}
    if arrivals.point_to_point:  # the Flight Recorder may count them with the rest
        return found
    return _waits_in_the_world(timings, found, least, stopped) | found


def flight_text(flight: InFlight) -> str:
    """The operation that a rank is in, for people: `all_reduce of dp:0-3`, `recv of pp:0-3 from rank 1`."""
    if flight.op not in MESSAGES or flight.peer == ANY_RANK:
        return f"{flight.op} of {flight.group}"
    return f"{flight.op} of {flight.group} {'to' if flight.op == 'send' else 'from'} rank {flight.peer}"


def place_text(at: RankState | LastBeat, step: int | str) -> str:
    """Where a rank stands, or stood last: `in step 7, in backward`, `in step 7, in all_reduce of dp:0-3, number 63, for
    86 s`."""
    flight = at.in_flight
    if not flight:
        return f"in step {step}, in {at.phase}" if at.phase else f"in step {step}"
    lasted = f", for {seconds_text(flight.seconds)}" if flight.seconds >= WAITING_SECONDS else ""
    return f"in step {step}, in {flight_text(flight)}, number {flight.seq}{lasted}"


def least_seconds(step_seconds: float | None) -> float:
    """The shortest time in a collective, in seconds, after which a job stands still."""
    return STANDSTILL_SECONDS if step_seconds is None else max(WAITING_SECONDS, WAITING_STEPS * step_seconds)


def _still_seconds(state: RankState) -> float:
    """For how long the rank has been in a collective, or its process group has launched none."""
    told = [group.seconds for group in state.beat.groups] if state.beat else []
    return max([*told, state.in_flight.seconds if state.in_flight else 0.0])


def _waits_in_the_world(
    timings: JobTimings, waits: Mapping[int, Standing], least: float, stopped: frozenset[int]
) -> dict[int, Standing]:
    """The waits in collectives that are called from C++, beside `waits`. The ranks that are furthest wait where all of
    them had stood still when torch was asked and others have not arrived, or where their own collective is not done.
    How long ago torch was asked counts for nothing: the ranks may have moved since."""
    states = timings.states
    running = (column for column, state in enumerate(states) if state.state == "running")
    torch = {column: group for column in running if (group := in_the_world(states[column]))}
    newest = max((group.enqueued for group in torch.values()), default=-1)
    front = {column: group for column, group in torch.items() if group.enqueued == newest and column not in stopped}
    if any(group.seconds < least for group in front.values()):
        return {}
    crossed = {column: each.group for each in waits.values() for column in each.awaited - waits.keys()}
    if any(each.awaited for each in waits.values()):  # who came and called something else waits for these in turn
        front = {column: own for column, own in front.items() if column in crossed and stands_in(own)}
        awaited = frozenset(waits)
    else:
        begin = max((_asked(states[column]) + own.seconds for column, own in front.items()), default=0.0)
        behind = (column for column, own in torch.items() if own.enqueued < newest)
        awaited = frozenset(each for each in behind if was_read_since(states[each], _asked(states[each]), begin))
    return {
        column: Standing(column, OF_THE_WORLD, crossed.get(column, THE_WORLD), newest, own.seconds, awaited)
        for column, own in front.items()
        if awaited or stands_in(own)
    }


def in_the_world(state: RankState) -> GroupProgress | None:
    """The world's progress as torch reported it; None where it is not known when that was."""
    if state.beat is None or state.beat.groups_age_seconds is None:
        return None
    return next((group for group in state.beat.groups if group.name == THE_WORLD), None)


def stands_in(group: GroupProgress | None) -> bool:
    """Whether the rank's last collective of the group, as far as torch told of it, is not done."""
    return group is not None and 0 <= group.completed < group.enqueued


def _asked(state: RankState) -> float:
    """The seconds since torch was asked."""
    return state.beat.groups_age_seconds or 0.0 if state.beat else 0.0


def behind_devices(timings: JobTimings, graph: WaitGraph) -> list[tuple[Standing, str]]:
    """The ranks whose GPUs are behind those of all others of a group, with what those have done: begun, or completed.
    Hosts run ahead of their GPUs: a rank that waits for its GPU to complete a collective has entered later ones, too,
    so that nobody lacks it. But who still waits for one that every other member has completed, and waits for the next,
    has a GPU that has stopped: it gave the others its part, and does not come to the end itself. So has one that never
    began the next, where every other GPU did.

    Of groups of which every member that their name spans is seen to wait so."""
    members = Members(timings)
    lanes = grouped(graph.standings.values(), lambda each: (each.operation, each.group))
    found = []
    for (operation, group), waits in lanes.items():
        alone = _alone({each.rank: each.number for each in waits})
        is_whole = members.of(group) <= {each.rank for each in waits} and group != THE_WORLD
        if alone is not None and is_whole and not operation.startswith(MESSAGES):
            found.append((graph.standings[alone], "completed"))
    return found or _not_begun(timings, graph, members)


def _not_begun(timings: JobTimings, graph: WaitGraph, members: Members) -> list[tuple[Standing, str]]:
    """The rank whose GPU alone has not begun the world's collective in which all others' stand, though all hosts have
    launched it; by torch's Flight Recorder. FSDP has two of them begun at once, of two streams. None where a rank may
    stand in a collective of another group, or in a message: whom it waits for may be elsewhere."""
    world = {column: group for column in graph.standings if (group := in_the_world(timings.states[column]))}
    lanes = [lane for state in timings.states if state.beat for lane in state.beat.lanes if lane.entered > lane.done]
    is_elsewhere = any(
        op in MESSAGES or len(members.of(group)) < len(timings.states)
        for op, group in {(lane.op, lane.group) for lane in lanes}
    )
    alone = _alone({column: group.started for column, group in world.items()})
    if alone is None or is_elsewhere or len(world) < max(len(timings.states), timings.world_size):
        return []
    own, newest = world[alone], max(group.started for group in world.values())
    launched = min(group.enqueued for group in world.values()) >= newest
    if own.started < 0 or not launched or any(group.completed != own.started for group in world.values()):
        return []
    name = graph.standings[alone].group
    return [(Standing(alone, OF_THE_WORLD, name, own.started + 1, own.seconds, frozenset()), "begun")]


def _alone(numbers: Mapping[int, int]) -> int | None:
    """The rank that alone has come less far than all others, where these are several: of two either may be the one that
    is wrong about what is complete."""
    ordered = sorted(numbers, key=numbers.__getitem__)
    is_alone = len(ordered) > 2 and numbers[ordered[0]] < numbers[ordered[1]]
    return ordered[0] if is_alone else None
