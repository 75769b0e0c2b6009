"""Finds who has not arrived at the collective, send or receive that a rank is in. Pure."""

from __future__ import annotations

from laggard.locate.hang.liveness import has_left, is_alive, was_read_since
from laggard.locate.hang.members import Members
from laggard.locate.hang.point_to_point import COUNTERPART, others_in_flight, partner_is_missing
from laggard.locate.job_timings import JobTimings, RankState
from laggard.wire.ranks import InFlight


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
