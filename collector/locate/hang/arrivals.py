"""Who has not come to the collective, send or receive that a rank is in. Pure."""

from __future__ import annotations

import re

from laggard.collector.locate.hang.liveness import lives
from laggard.collector.locate.hang.point_to_point import OTHER_SIDE, others_under_way, partner_is_missing
from laggard.collector.locate.job_timings import Evidence
from laggard.wire import InFlight

_SPAN = re.compile(r"[a-z]+:(\d+)-(\d+)(?:/(\d+))?(?:#.*)?")


class Arrivals:
    """How many collectives of each lane each rank has entered, by op and group. Ranks go by their column."""

    def __init__(self, evidence: Evidence) -> None:
        self._ranks = evidence.ranks
        self._columns = {int(rank): column for column, rank in enumerate(evidence.ranks)}
        self._states = evidence.states
        self._entered: dict[tuple[str, str], dict[int, int]] = {}
        self._late: dict[tuple[str, str, int], frozenset[int]] = {}  # asked for by as many as wait there
        self.point_to_point = False
        for column, state in enumerate(evidence.states):
            for lane in state.beat.lanes if state.beat else ():
                self._note(lane.op, lane.group, column, lane.entered)
                self.point_to_point |= lane.op in OTHER_SIDE
            if state.in_flight:
                self._note(state.in_flight.op, state.in_flight.group, column, state.in_flight.seq)

    def _note(self, op: str, group: str, column: int, count: int) -> None:
        if op not in OTHER_SIDE:  # those are counted by pair, and asked for by few
            entered = self._entered.setdefault((op, group), {})
            entered[column] = max(entered.get(column, 0), count)

    def stuck_in(self, column: int, flight: InFlight) -> InFlight:
        """What the rank waits in, told that it is in `flight`: where the partner has come to that, another send or
        receive under way whose partner has not."""
        if flight.op not in OTHER_SIDE or self._partner_is_missing(column, flight) is not False:
            return flight
        others = others_under_way(flight, self._states[column])
        return next((each for each in others if self._partner_is_missing(column, each)), flight)

    def behind(self, column: int, flight: InFlight) -> frozenset[int]:
        """The living ranks that have not come to what this one is in: members of the group that have entered fewer
        collectives of the lane, or the partner that has entered fewer sends or receives of the pair."""
        if flight.op in OTHER_SIDE:
            missing = self._partner_is_missing(column, flight)
            return frozenset((self._columns[flight.peer],) if missing else ())
        asked = flight.op, flight.group, flight.seq
        if asked not in self._late:
            self._late[asked] = self._missing_members(*asked)
        late = self._late[asked]
        return late - {column} if column in late else late

    def _partner_is_missing(self, column: int, flight: InFlight) -> bool | None:
        partner = self._columns.get(flight.peer)
        if partner is None or partner == column or not lives(self._states[partner]):
            return None
        rank, waiter = int(self._ranks[column]), self._states[column]
        return partner_is_missing(flight, rank, waiter, self._states[partner])

    def _missing_members(self, op: str, group: str, number: int) -> frozenset[int]:
        entered = self._entered.get((op, group), {})
        members = set(entered) | self._declared(group)
        late = (column for column in members if entered.get(column, 0) < number)
        return frozenset(column for column in late if lives(self._states[column]) and self._states[column].beat)

    def _declared(self, group: str) -> set[int]:
        """The members that the group's name spans: a rank may hang before its first collective there."""
        found = _SPAN.fullmatch(group)
        if not found:
            return set()
        first, last, stride = int(found[1]), int(found[2]), int(found[3] or 1)
        return {
            column for rank, column in self._columns.items() if first <= rank <= last and not (rank - first) % stride
        }
