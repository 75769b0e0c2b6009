"""Finds who waits now, in what, for how long, and for whom. Pure.

A rank waits when it has been inside a collective, a send or a receive for longer than steps take. It waits for the
members of the group that have entered fewer collectives of that lane, or for its partner in the pair. The thresholds
are our own choices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from laggard.kit.majority import grouped
from laggard.kit.words import ranks_text, seconds_text
from laggard.locate.hang.attendance import Members
from laggard.locate.job_timings import JobTimings, RankState
from laggard.model import MAX_NAMED_RANKS, Note
from laggard.rankfile.layout import LANE_COUNT
from laggard.wire.ranks import GroupProgress, InFlight

SILENT_BEATS = 3.0
"""The number of missed beats, and a second more, after which a rank counts as silent: its process runs, but none of its
threads does. Our own choice."""
HUNG_STOPPED_SECONDS = 2.0
"""The time for which a rank must have been stopped to be called hung even where no other is known to wait for it. A
debugger that takes a stack stops a process for less."""


def is_alive(state: RankState) -> bool:
    return state.state == "running"


def has_left(state: RankState) -> bool:
    """Whether the rank's process ended with status 0, and it is known how far it had come."""
    return state.state == "finished" and state.end is not None and state.beat is not None


def is_silent(state: RankState) -> bool:
    return state.beat is not None and silent_seconds(state) > SILENT_BEATS * state.beat.interval_seconds + 1.0


def stopped_for_long(state: RankState) -> bool:
    return state.stopped and silent_seconds(state) > HUNG_STOPPED_SECONDS


def was_read_since(state: RankState, age_seconds: float, begin_seconds: float) -> bool:
    """Whether a reading of the rank, `age_seconds` old when its agent was asked, is newer than a wait that began
    `begin_seconds` ago. Where it is not, the rank may have come since; not so where none of its threads runs."""
    return state.stopped or is_silent(state) or age_seconds + state.asked_seconds_ago <= begin_seconds


def silent_seconds(state: RankState) -> float:
    """Seconds since the rank's last sign of life; 0.0 where it never gave one."""
    return state.beat.age_seconds if state.beat else 0.0


# Matches sends with receives: whether the partner of a send or receive has come to it. Pure.
#
# Both sides count what they send to and receive from each other, each direction by itself, whatever the process group:
# the nth send of A to B is the nth receive of B from A. No partner is reported missing where the two counts cannot be
# of the same messages: a rank was restarted, or hooked after its first messages, or receives from any rank.

COUNTERPART = {"send": "recv", "recv": "send"}
"""The operation of the partner when a rank sends, and when it receives."""

ANY_RANK = -1
"""The peer of a receive from any rank, of a group that was made by hand, and where an agent reports
none."""


class _Count(NamedTuple):
    entered: int
    done: int


def partner_is_missing(flight: InFlight, rank: int, waiter: RankState, partner: RankState) -> bool | None:
    """Whether `partner`, the state of rank `flight.peer`, has not come to the send or receive `flight` that `waiter`,
    the state of rank `rank`, is in. None where that is not known."""
    op = COUNTERPART[flight.op]
    theirs = _count(partner, op, rank)
    if partner.beat is None or theirs is None:
        return None
    if theirs.entered >= flight.seq:
        return False
    if not (has_left(partner) or was_read_since(partner, partner.beat.age_seconds, flight.seconds)):
        return None
    if partner.beat.age_seconds > flight.seconds:  # from before the wait, and nothing has come since: it stands still
        return True
    ours = _count(waiter, flight.op, flight.peer)
    return True if ours and ours.done <= theirs.entered else None  # else more were done here than were begun there


def others_in_flight(flight: InFlight, waiter: RankState) -> Iterator[InFlight]:
    """The sends and receives beside `flight` that `waiter` has entered and that are not done. Those of a batch are
    waited for together, and `flight` is only the last of them; on a device it is the last that was launched."""
    for lane in waiter.beat.lanes if waiter.beat else ():
        known = lane.op in COUNTERPART and lane.peer != ANY_RANK
        if known and lane.entered > lane.done and (lane.op, lane.peer) != (flight.op, flight.peer):
            yield InFlight(lane.op, lane.group, lane.entered, flight.seconds, lane.peer)


def _count(state: RankState, op: str, peer: int) -> _Count | None:
    """The number of messages that a rank has sent to or received from `peer`. None where its counts cannot answer that:
    what it received from any rank may be from `peer`, and a rank file has no room for the lanes of very many peers."""
    reported = state.beat.lanes if state.beat else ()
    lanes = [lane for lane in reported if lane.op == op and lane.peer in (peer, ANY_RANK)]
    flight = state.in_flight if state.in_flight and state.in_flight.op == op else None
    if any(lane.peer == ANY_RANK for lane in lanes) or (flight and flight.peer == ANY_RANK):
        return None
    if len(lanes) > 1 or (not lanes and len(reported) >= LANE_COUNT):
        return None
    entered = max([flight.seq if flight and flight.peer == peer else 0, *(lane.entered for lane in lanes)])
    return _Count(entered, sum(lane.done for lane in lanes))


class Arrivals:
    """The number of collectives of each lane (op and group) that each rank has entered. Ranks are given by their
    column."""

    def __init__(self, timings: JobTimings) -> None:
        self._ranks = timings.ranks
        self._columns = {int(rank): column for column, rank in enumerate(timings.ranks)}
        self._states = timings.states
        self._members = Members(timings)
        self._entered: dict[tuple[str, str], dict[int, int]] = {}
        self._missing: dict[tuple[str, str, int], frozenset[int]] = {}  # cached: all ranks that wait there ask for it
        self._longest: dict[tuple[str, str, int], float] = {}  # how long a rank has been in it, in seconds
        self.point_to_point = False
        """True where any rank has sent or received."""
        for column, state in enumerate(timings.states):
            for lane in state.beat.lanes if state.beat else ():
                self._count(lane.op, lane.group, column, lane.entered)
                self.point_to_point |= lane.op in COUNTERPART
            if state.in_flight:
                flight = state.in_flight
                place = flight.op, flight.group, flight.seq
                self._count(flight.op, flight.group, column, flight.seq)
                self._longest[place] = max(flight.seconds, self._longest.get(place, 0.0))

    def _count(self, op: str, group: str, column: int, count: int) -> None:
        if op not in COUNTERPART:  # sends and receives are counted by pair, in point_to_point
            entered = self._entered.setdefault((op, group), {})
            entered[column] = max(entered.get(column, 0), count)

    def stuck_in(self, column: int, flight: InFlight) -> InFlight:
        """The collective or message that the rank waits in, where its live word is `flight`: if the partner has come to
        that, another send or receive in flight whose partner has not."""
        if flight.op not in COUNTERPART or self._partner_is_missing(column, flight) is not False:
            return flight
        others = others_in_flight(flight, self._states[column])
        return next((other for other in others if self._partner_is_missing(column, other)), flight)

    def not_arrived(self, column: int, flight: InFlight) -> frozenset[int]:
        """The ranks that live, or left with status 0, and had not come to `flight`, which the rank is in, when a rank
        was in it already: members of the group that have entered fewer collectives of the lane, or the partner that
        has entered fewer sends or receives of the pair."""
        if flight.op in COUNTERPART:
            missing = self._partner_is_missing(column, flight)
            return frozenset((self._columns[flight.peer],) if missing else ())
        place = flight.op, flight.group, flight.seq
        if place not in self._missing:
            self._missing[place] = self._missing_members(*place)
        missing_members = self._missing[place]
        return missing_members - {column} if column in missing_members else missing_members

    def _partner_is_missing(self, column: int, flight: InFlight) -> bool | None:
        partner = self._columns.get(flight.peer)
        if partner is None or partner == column or not _may_be_awaited(self._states[partner]):
            return None
        rank, waiter = int(self._ranks[column]), self._states[column]
        return partner_is_missing(flight, rank, waiter, self._states[partner])

    def _missing_members(self, op: str, group: str, number: int) -> frozenset[int]:
        entered = self._entered.get((op, group), {})
        members = set(entered) | self._members.of(group)
        behind = (column for column in members if entered.get(column, 0) < number)
        begin = self._longest.get((op, group, number), 0.0)
        return frozenset(column for column in behind if self._counts_since(column, begin))

    def _counts_since(self, column: int, begin_seconds: float) -> bool:
        """Whether the rank lives, and its counts are newer than a wait that began so many seconds ago; or it left, and
        they are its last."""
        state = self._states[column]
        if has_left(state):
            return True
        return is_alive(state) and bool(state.beat and was_read_since(state, state.beat.age_seconds, begin_seconds))


def _may_be_awaited(state: RankState) -> bool:
    return is_alive(state) or has_left(state)


WAITING_SECONDS = 1.0
"""The time for which a rank must have been in a collective, besides WAITING_STEPS of the job's usual steps, to count as
waiting."""
WAITING_STEPS = 2.0
WAITING_BESIDE_STOPPED_SECONDS = 0.5
"""The time for which a rank must have been in a collective where a process of the job is stopped: there is no doubt
what the wait is for."""
WAITING_IN_TURN_SECONDS = 0.5
"""The time for which a rank must have been in a collective, for a rank that others wait for: along a pipeline each
began to wait later than the one before it."""
WAITING_UNTIMED_SECONDS = 20.0
"""The time for which a rank must have been in a collective while no step is known: the first steps load data and
compile."""

THE_WORLD = "#0"
"""The name of the world's process group: torch numbers them. Other groups' numbers differ from rank to rank and are not
compared."""

_OF_THE_WORLD = "a collective of the world"
MADE_BY_CPP = f"{_OF_THE_WORLD} that C++ made, as DDP's"
"""The text for a collective of which only the Flight Recorder tells."""


class Wait(NamedTuple):
    """One rank's wait. `number` is the collective's, in its lane or, where torch reported it, in its group; a send's or
    receive's is its number in its pair and direction. Ranks are given by their column."""

    column: int
    operation: str  # for people: "all_reduce of dp:0-3", "recv of pp:0-3 from rank 1"
    awaited: str  # what the others have not arrived at: the same, or "send of pp:0-3 to rank 0"
    group: str
    number: int
    seconds: float
    not_arrived: frozenset[int]  # the columns that have not


def find_waits(timings: JobTimings, step_seconds: float | None, stopped: frozenset[int]) -> dict[int, Wait]:
    """All waits, by column: first what the hook reports, and for ranks that are in none of its collectives what torch
    reports. `step_seconds`: how long the job's steps usually take, None where that is not known. `stopped`: the columns
    of living processes that the kernel calls so."""
    least = least_seconds(step_seconds)
    least = min(least, WAITING_BESIDE_STOPPED_SECONDS) if stopped else least
    if not any(_stands_still(state, least) for state in timings.states):
        return {}
    arrivals = Arrivals(timings)
    columns = (column for column in range(len(timings.states)) if column not in stopped)
    found = (_wait(timings, arrivals, column, least) for column in columns)
    waits = {wait.column: wait for wait in found if wait}
    if not any(wait.not_arrived for wait in waits.values()) and not arrivals.point_to_point:
        return {**_waits_by_flight_recorder(timings, least, stopped), **waits}
    return {**waits, **_waits_in_turn(timings, arrivals, waits, stopped)}


def flight_text(flight: InFlight) -> str:
    """The operation that a rank is in, for people: `all_reduce of dp:0-3`, `recv of pp:0-3 from rank 1`."""
    return _operation_text(flight.op, flight.group, flight.peer)


def _operation_text(op: str, group: str, peer: int) -> str:
    if op not in COUNTERPART or peer == ANY_RANK:
        return f"{op} of {group}"
    return f"{op} of {group} {'to' if op == 'send' else 'from'} rank {peer}"


def least_seconds(step_seconds: float | None) -> float:
    """The shortest time in a collective, in seconds, that counts as a wait."""
    if step_seconds is None:
        return WAITING_UNTIMED_SECONDS
    return max(WAITING_SECONDS, WAITING_STEPS * step_seconds)


def _stands_still(state: RankState, least: float) -> bool:
    if state.in_flight and state.in_flight.seconds >= least:
        return True
    groups = state.beat.groups if state.beat is not None else ()
    return bool(groups) and any(group.seconds >= least for group in groups)


def _wait(timings: JobTimings, arrivals: Arrivals, column: int, least: float) -> Wait | None:
    state = timings.states[column]
    flight = state.in_flight
    if not is_alive(state) or flight is None or flight.seconds < least:
        return None
    flight = arrivals.stuck_in(column, flight)
    operation = awaited = flight_text(flight)
    if flight.op in COUNTERPART:
        awaited = _operation_text(COUNTERPART[flight.op], flight.group, int(timings.ranks[column]))
    not_arrived = arrivals.not_arrived(column, flight)
    return Wait(column, operation, awaited, flight.group, flight.seq, flight.seconds, not_arrived)


def _waits_in_turn(
    timings: JobTimings, arrivals: Arrivals, waits: Mapping[int, Wait], stopped: frozenset[int]
) -> dict[int, Wait]:
    """The waits, too short so far to be in `waits`, of ranks that others wait for and that wait for others in turn."""
    found: dict[int, Wait] = {}
    newest = list(waits.values())
    while newest:
        awaited = {column for wait in newest for column in wait.not_arrived} - waits.keys() - found.keys() - stopped
        own = (_wait(timings, arrivals, column, WAITING_IN_TURN_SECONDS) for column in sorted(awaited))
        newest = [wait for wait in own if wait and wait.not_arrived]
        found.update((wait.column, wait) for wait in newest)
    return found


def _waits_by_flight_recorder(timings: JobTimings, least: float, stopped: frozenset[int]) -> dict[int, Wait]:
    """The waits in collectives that are called from C++, as DDP's are: the hook sees none of them in flight, but
    torch's Flight Recorder counts them. The ranks that are furthest wait where all of them had stood still when torch
    was asked and others have not arrived, or where their own collective is not done. How long ago torch was asked
    counts for nothing: the ranks may have moved since."""
    members = {
        column: group
        for column, state in enumerate(timings.states)
        if is_alive(state) and (group := in_the_world(state)) is not None
    }
    newest = max((group.enqueued for group in members.values()), default=-1)
    furthest = {column: group for column, group in members.items() if group.enqueued == newest}
    running = {column: group for column, group in furthest.items() if column not in stopped}
    if any(group.seconds < least for group in running.values()):
        return {}
    begin = max((_stood_still_since(timings.states[column]) for column in running), default=0.0)
    behind = (column for column in members if column not in furthest)
    states = timings.states
    not_arrived = frozenset(
        column for column in behind if was_read_since(states[column], _asked(states[column]), begin)
    )
    return {
        column: Wait(column, _OF_THE_WORLD, _OF_THE_WORLD, THE_WORLD, newest, group.seconds, not_arrived)
        for column, group in running.items()
        if not_arrived or 0 <= group.completed < group.enqueued
    }


def in_the_world(state: RankState) -> GroupProgress | None:
    """The world's progress as torch reported it; None where it is not known when that was."""
    if state.beat is None or state.beat.groups_age_seconds is None:
        return None
    return next((group for group in state.beat.groups if group.name == THE_WORLD), None)


def _asked(state: RankState) -> float:
    """The seconds since torch was asked."""
    return state.beat.groups_age_seconds or 0.0 if state.beat else 0.0


def _stood_still_since(state: RankState) -> float:
    """The seconds since the world's numbers were first seen as they were when torch was asked last."""
    group = in_the_world(state)
    return _asked(state) + (group.seconds if group else 0.0)


_MAX_NOTES = 32


def suspended_note(ranks: int) -> Note:
    """The note on a job of `ranks` processes, all of which are stopped."""
    who = "its process is" if ranks == 1 else f"all {ranks} processes are"
    return Note("suspended", f"the job is suspended: {who} stopped")


def deadlock_note(timings: JobTimings, columns: Iterable[int]) -> Note:
    return circle_note([int(timings.ranks[column]) for column in sorted(columns)])


def circle_note(ranks: Sequence[int]) -> Note:
    """The note on ranks each of which has yet to come to what another is in."""
    text = f"{ranks_text(ranks)} wait for one another, a deadlock: each has yet to come to what another is in"
    return Note("deadlock", text, tuple(ranks[:MAX_NAMED_RANKS]))


def root_note(timings: JobTimings, root: int, wait: Wait | None) -> Note:
    """Names the rank that others wait for. `root`: its column. `wait`: the longest wait for it, None where there is
    none."""
    rank, node = int(timings.ranks[root]), timings.nodes[root]
    who = f"rank {rank}" + (f" on {node}" if node else "")
    state = timings.states[root]
    condition = "is stopped" if state.stopped else "is silent" if is_silent(state) else None
    if wait is None:
        brief = state.stopped and not stopped_for_long(state)
        how = "was stopped just now, and may go on" if brief else condition or "stands still"
        return Note("stopped", f"{who} {how}", (rank,), node)
    late = f"has not arrived at {wait.awaited}, number {wait.number}" if root in wait.not_arrived else None
    where = _where(state)
    text = f"{who} {' and '.join(filter(None, (condition, late))) or 'stands still'}"
    text += f"; it is {where}, and others have waited for {seconds_text(wait.seconds)}" if late and where else ""
    return Note("not_arrived", text, (rank,), node)


def _where(state: RankState) -> str:
    """The step and phase in which a rank stands that others wait for: `in forward of step 40`. Empty where it is in a
    collective, which is told by itself, or nothing tells its phase."""
    step = 0 if state.step is None else state.step + 1
    return f"in {state.phase} of step {step}" if state.phase and not state.in_flight else ""


def waiting_notes(timings: JobTimings, waits: Mapping[int, Wait], remark: str = "") -> Iterable[Note]:
    """One note for each collective, send or receive that ranks wait in; beyond _MAX_NOTES one note for all the rest.
    `remark` is added to each text."""
    by_operation = grouped(waits.values(), lambda wait: (wait.operation, wait.number))
    operations = list(by_operation.items())
    for (operation, number), same in operations[:_MAX_NOTES]:
        yield _waiting_note(timings, same, f"{operation}, number {number}, for", remark)
    rest = [wait for _, same in operations[_MAX_NOTES:] for wait in same]
    if rest:
        yield _waiting_note(timings, rest, "others, for up to", remark)


def _waiting_note(timings: JobTimings, waits: Sequence[Wait], where: str, remark: str) -> Note:
    ranks = tuple(int(timings.ranks[wait.column]) for wait in waits)
    longest = max(wait.seconds for wait in waits)
    verb = "waits" if len(ranks) == 1 else "wait"
    text = f"{ranks_text(ranks)} {verb} in {where} {seconds_text(longest)}{remark}"
    return Note("waiting", text, ranks[:MAX_NAMED_RANKS])
