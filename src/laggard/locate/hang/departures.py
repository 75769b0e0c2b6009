"""Finds ranks that left with status 0 while others went on to collectives that these ranks have to come to. Pure.

Such a rank left early: by an early stop, uneven data or sys.exit. The others cannot finish the collective. With gloo
they fail in it, and their errors come later than the end that caused them; with NCCL they wait. What counts is how many
collectives of each lane a rank had entered when it left, and not when it left: ranks that end one after the other have
entered equally many, and so have those of DDP's join().
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from laggard.kit.majority import grouped
from laggard.kit.words import ranks_text, seconds_text
from laggard.locate.hang.attendance import Members
from laggard.locate.hang.different_calls import aborted_call
from laggard.locate.hang.waits import ANY_RANK, COUNTERPART, THE_WORLD, flight_text, has_left
from laggard.locate.job_timings import JobTimings, LastBeat, RankState
from laggard.model import MAX_NAMED_RANKS, Culprit, Note
from laggard.rankfile.layout import LANE_COUNT
from laggard.wire.ranks import BeatRow, InFlight
from laggard.wire.words import end_text, time_text

CONFIDENCE = 0.9
"""The confidence that a rank which left is the culprit. Only its group says that it was meant to come: a program may
have asked for its end. Our own choice."""

_OF_THE_WORLD = "a collective of the world"


class Departure(NamedTuple):
    """A rank (its column) that left, the first collective that it never came to, for people, and the columns of those
    that went on to that one or a later one. `members`: how many ranks the collective has, as far as they are seen."""

    column: int
    awaited: str
    waiting: frozenset[int]
    members: int


class _Place(NamedTuple):
    """The place where a rank stood: its last beat, and the collective that it was in."""

    beat: BeatRow | None
    in_flight: InFlight | None
    step: int


class Departures:
    """The ranks of a job that left with status 0, compared with those that did not."""

    def __init__(self, timings: JobTimings) -> None:
        self._timings = timings
        self._places = [_place(timings, column) for column in range(len(timings.states))]
        self.left = frozenset(column for column, state in enumerate(timings.states) if has_left(state))
        self._entered: dict[tuple[str, str], dict[int, int]] = {}
        self._named = Members(timings)
        self._columns_of: dict[str, set[int]] = {}
        for column, place in enumerate(self._places if self.left else ()):
            for op, group, count in _counts(place):
                entered = self._entered.setdefault((op, group), {})
                entered[column] = max(entered.get(column, 0), count)
                self._columns_of.setdefault(group, set()).add(column)

    def early(self, among: Set[int]) -> tuple[Departure, ...]:
        """Those that left while ranks of `among` went on to what they never came to; in the order of their ends."""
        found = []
        for column in self.left:
            missed = [*self._missed(column, among)]
            if missed:
                waiting = frozenset().union(*(each.waiting for each in missed))
                found.append(missed[0]._replace(waiting=waiting))
        return tuple(sorted(found, key=lambda each: self._left_at(each.column)))

    def _missed(self, column: int, among: Set[int]) -> Iterator[Departure]:
        for (op, group), entered in self._entered.items():
            if column not in entered and self._may_lack_lanes(column):
                continue
            members = self._members(group)
            own = entered.get(column, 0)
            waiting = frozenset(other for other, count in entered.items() if other in among and count > own)
            if column in members and waiting:
                yield Departure(column, f"{op} of {group}, number {own + 1}", waiting, len(members))
        for other in sorted(among - self.left):
            awaited = self._missed_message(other, column)
            if awaited:
                yield Departure(column, awaited, frozenset((other,)), 2)
        waiting = frozenset(other for other in among if self._went_on_in_the_world(other, column))
        if waiting:
            yield Departure(column, _OF_THE_WORLD, waiting, len(self._places))

    def _missed_message(self, column: int, left: int) -> str:
        """The send or receive to which the rank that left never came, of the last that another began; for people, empty
        where there is none. What the rank received from any rank may have been the other's."""
        rank, gone = int(self._timings.ranks[column]), int(self._timings.ranks[left])
        of_left, place = self._places[left].beat, self._places[column]
        for lane in place.beat.lanes if place.beat and of_left else ():
            if lane.op not in COUNTERPART or lane.peer != gone:
                continue
            op = COUNTERPART[lane.op]
            lanes = [it for it in of_left.lanes if it.op == op] if of_left else []
            own = max((it.entered for it in lanes if it.peer == rank), default=0)
            unsure = any(it.peer == ANY_RANK for it in lanes) or (not own and self._may_lack_lanes(left))
            if own < lane.entered and not unsure:
                return f"{op} of {lane.group} {'to' if op == 'send' else 'from'} rank {rank}, number {own + 1}"
        return ""

    def _may_lack_lanes(self, column: int) -> bool:
        """Whether the rank may have had more lanes than a rank file has room for."""
        beat = self._places[column].beat
        return beat is not None and len(beat.lanes) >= LANE_COUNT

    def _members(self, group: str) -> set[int]:
        """The members of the group, as far as its name and the counts tell them."""
        return self._columns_of[group] | self._named.of(group)

    def _went_on_in_the_world(self, column: int, left: int) -> bool:
        """Whether a rank stands in a collective of the world that C++ made, which only torch's Flight Recorder tells
        of, and to which the other did not come: that had entered no more than this one had finished."""
        place, other = self._places[column], self._places[left]
        groups = place.beat.groups if place.beat else ()
        stands = any(group.name == THE_WORLD and 0 <= group.completed < group.enqueued for group in groups)
        if not stands or column in self.left or other.step > place.step:
            return False
        counts = {(op, group): count for op, group, count in _counts(place)}
        own = {(op, group): count for op, group, count in _counts(other)}
        everybody = set(range(len(self._places)))
        lanes = [lane for lane in own if self._members(lane[1]) == everybody]
        return bool(lanes) and all(own[lane] <= counts.get(lane, 0) for lane in lanes)

    def _left_at(self, column: int) -> float:
        end = self._timings.states[column].end
        return end.at_seconds if end else float("inf")


def few(found: tuple[Departure, ...]) -> bool:
    """Whether those that left are no more than those whom their collective still has: else it is these that went on to
    one collective more than the others."""
    return bool(found) and 2 * len(found) <= max(each.members for each in found)


def left_culprit(timings: JobTimings, departure: Departure, others_ended: float = float("inf")) -> Culprit:
    """The rank that left, as the one that the others cannot go on without. `others_ended`: when the first of them did,
    in Unix time."""
    column = departure.column
    state, node = timings.states[column], timings.nodes[column]
    step = 0 if state.step is None else state.step + 1
    waiting = sorted(int(timings.ranks[each]) for each in departure.waiting)
    evidence = [
        f"it left at step {step}, while {ranks_text(waiting)} went on to {departure.awaited}, to which it never came"
    ]
    if state.end and state.end.at_seconds > 0.0:
        evidence.insert(0, f"it ended at {time_text(state.end)} by its node's clock")
        if others_ended < float("inf"):
            after = seconds_text(max(0.0, others_ended - state.end.at_seconds))
            evidence.append(f"the first of the others ended {after} later")
    return Culprit(
        kind="dead",
        ranks=(int(timings.ranks[column]),),
        node=node,
        gpu=timings.gpus[column],
        since_step=step,
        confidence=CONFIDENCE,
        evidence=tuple(evidence),
        victims=tuple(int(rank) for rank in timings.ranks[_others(timings, column)])[:MAX_NAMED_RANKS],
        end=state.end,
    )


def _others(timings: JobTimings, column: int) -> list[int]:
    """The columns of the ranks that did not end with status 0 themselves."""
    return [other for other, state in enumerate(timings.states) if other != column and state.state != "finished"]


def extra_note(timings: JobTimings, found: tuple[Departure, ...]) -> Note:
    """The note on ranks that called a collective which most others, that have ended, did not call."""
    waiting = sorted(int(timings.ranks[column]) for column in frozenset().union(*(each.waiting for each in found)))
    left = ranks_text(int(timings.ranks[each.column]) for each in found)
    text = (
        f"{ranks_text(waiting)} called {found[0].awaited}, which {left} did not: they have ended, with exit status 0; "
        "what to do: find where the program calls a collective on some of its ranks alone"
    )
    return Note("mismatch", text, ranks=tuple(waiting[:MAX_NAMED_RANKS]))


def _place(timings: JobTimings, column: int) -> _Place:
    state = timings.states[column]
    last = timings.last_beats[column] if timings.last_beats else None
    step = -1 if state.step is None else state.step
    if last is not None:
        return _Place(last.beat, last.in_flight or state.in_flight, step)
    return _Place(state.beat, state.in_flight, step)


def _counts(place: _Place) -> Iterator[tuple[str, str, int]]:
    """The number of collectives of each operation and group that the rank had entered."""
    for lane in place.beat.lanes if place.beat else ():
        if lane.op not in COUNTERPART:
            yield lane.op, lane.group, lane.entered
    flight = place.in_flight
    if flight is not None and flight.op not in COUNTERPART:
        yield flight.op, flight.group, flight.seq


CLOCK_SKEW_SECONDS = 0.5
"""The largest difference that is assumed between the clocks of two nodes: chrony and NTP keep them far closer."""


class Death(NamedTuple):
    """A rank's death between `earliest` and `latest`, Unix time. `victim`: it died as ranks do whose peer is gone;
    `told`: its own exception or signal says so, and not its place alone. `stood`: where it stood for long before,
    of a rank that alone did not end when the others' collectives failed."""

    column: int
    node: str | None
    earliest: float
    latest: float
    victim: bool
    told: bool = False
    stood: LastBeat | None = None

    def may_precede(self, other: Death) -> bool:
        allowance = 0.0 if self.node == other.node else CLOCK_SKEW_SECONDS
        return self.earliest <= other.latest + allowance


_MIN_AFTER_SECONDS = 0.0005
"""The shortest time that is told of: less is 0 ms for people."""
MAX_NOTES = 32
WHO_TELLS = (
    "the launcher's log names the first that failed, the kernel's log who was out of memory, and with an agent on each "
    "node laggard tells it"
)


def death_culprit(
    timings: JobTimings,
    death: Death,
    first: Sequence[Death],
    deaths: Sequence[Death],
    of_machine: Sequence[Death],
) -> Culprit:
    """The rank of `death`; where its machine went down, all of the ranks `of_machine`."""
    state = timings.states[death.column]
    ranks = tuple(sorted(int(timings.ranks[each.column]) for each in of_machine))
    rivals = [each for each in first if each is death or each not in of_machine]
    last = death.stood or state
    flight = last.in_flight
    node = timings.nodes[death.column]
    return Culprit(
        kind="hung" if state.doubted or death.stood else "dead",
        silent=state.doubted and not death.stood,
        device_stopped=death.stood is not None and death.stood.in_flight is not None,
        ranks=ranks,
        node=node,
        gpu=timings.gpus[death.column] if len(ranks) == 1 else None,
        phase="collective" if flight else last.phase,
        group=flight.group if flight else None,
        since_step=_step_of_death(state),
        confidence=_confidence(death, rivals),
        evidence=_evidence(timings, death, first, deaths, of_machine),
        victims=_victims(timings, ranks),
        end=state.end,
    )


def _victims(timings: JobTimings, ranks: Sequence[int]) -> tuple[int, ...]:
    """All other ranks, without those that had ended well."""
    numbers = (
        int(rank) for rank, state in zip(timings.ranks, timings.states, strict=True) if state.state != "finished"
    )
    return tuple(rank for rank in numbers if rank not in ranks)[:MAX_NAMED_RANKS]


def _confidence(death: Death, first: Sequence[Death]) -> float:
    """Lower where several may have been the first, and where the rank died as victims do, or was not seen to be stuck.
    Our own choice."""
    return round((0.5 if death.victim else 0.7 if death.stood else 0.95) / math.sqrt(len(first)), 2)


def _evidence(
    timings: JobTimings,
    death: Death,
    first: Sequence[Death],
    deaths: Sequence[Death],
    of_machine: Sequence[Death],
) -> tuple[str, ...]:
    state = timings.states[death.column]
    lines = [f"it was {_place_death_texts(timings, state)}"]
    if death.stood:
        others = "the others' processes ended when their collectives failed, and this one did not"
        lines = [f"it stood {_stood_text(death.stood)}, as it said last; {others}"]
    first = [each for each in first if each is death or each not in of_machine]
    deaths = [each for each in deaths if each is death or each not in of_machine]
    if state.end:
        lines.insert(0, f"it ended at {time_text(state.end)} by its node's clock")
        if state.end.kernel:
            lines.append(f"the kernel: {state.end.kernel}")
    if len(of_machine) > 1:
        lines.insert(0, f"all {len(of_machine)} ranks of the machine died in the same way at the same time")
    if len(first) > 1:
        ranks = ranks_text(int(timings.ranks[each.column]) for each in first)
        lines.append(f"{ranks} ended too close together for their clocks: each may have been the first")
    later = [each for each in deaths if each not in first]
    if later and later[0].latest < float("inf"):
        after = later[0].latest - first[0].latest
        when = f", the next {seconds_text(after)} later" if _MIN_AFTER_SECONDS <= after < float("inf") else ""
        ranks = ranks_text(int(timings.ranks[each.column]) for each in later)
        lines.append(f"{ranks} ended after it{when}")
    aborted = aborted_call(timings, death.column)
    if aborted:
        lines.append(aborted)
    if death.victim:
        lines.append("ranks end so when another is gone: the cause may be elsewhere")
    return tuple(lines)


def _stood_text(last: LastBeat) -> str:
    """Where a rank stood, for people: `in all_reduce of dp:0-3, number 63, for 86 s`, `in backward for 87 s`."""
    if last.in_flight:
        flight = last.in_flight
        return f"in {flight_text(flight)}, number {flight.seq}, for {seconds_text(flight.seconds)}"
    return f"in {last.phase} for {seconds_text(last.quiet_seconds)}" if last.phase else "outside of any phase"


def death_notes(timings: JobTimings, deaths: Sequence[Death], first: Sequence[Death]) -> tuple[Note, ...]:
    """A note for each kind of death, in their order: a thousand ranks that are killed at once are told of once."""
    alike = grouped(deaths, lambda death: _told(timings, death, first))
    return tuple(_note(timings, told, those) for told, those in list(alike.items())[:MAX_NOTES])


def _note(timings: JobTimings, told: str, deaths: Sequence[Death]) -> Note:
    ranks = tuple(sorted(int(timings.ranks[death.column]) for death in deaths))
    nodes = {death.node for death in deaths}
    node = nodes.pop() if len(nodes) == 1 else None
    where = f" on {node}" if node else f" on {len(nodes)} machines" if len(nodes) > 1 else ""
    return Note("rank_died", f"{ranks_text(ranks)}{where} {told}", ranks[:MAX_NAMED_RANKS], node)


def _told(timings: JobTimings, death: Death, first: Sequence[Death]) -> str:
    state = timings.states[death.column]
    if death.stood:
        return f"recorded no end, and stood {_stood_text(death.stood)}"
    if state.doubted:
        return f"recorded nothing more {_place_death_texts(timings, state)}, and no end: stopped or killed"
    after = death.latest - first[0].latest if death not in first and death.latest < float("inf") else 0.0
    when = f", {seconds_text(after)} after the first" if after >= _MIN_AFTER_SECONDS else ""
    return f"died {_place_death_texts(timings, state)}{when}: {end_text(state.end)}"


def ended_notes(timings: JobTimings, deaths: Sequence[Death]) -> tuple[Note, ...]:
    """The notes on a job that was ended as a whole. Where no rank has an end, one may have died of itself and the
    launcher have killed the others: a recording does not tell that from a job that was cancelled."""
    end = timings.states[deaths[0].column].end
    if any(timings.states[death.column].doubted for death in deaths):
        text = f"none of the {len(deaths)} recordings has an end: the job was killed, or it still runs"
        return (Note("ended", text),)
    how = f" by {end.signal}" if end and end.signal else ""
    ended = Note("ended", f"the job was ended: all {len(deaths)} processes were killed{how}")
    if timings.live or end is not None:
        return (ended,)
    return Note("first_unseen", f"no rank's end is recorded: {WHO_TELLS}"), ended


def _step_of_death(state: RankState) -> int:
    return 0 if state.step is None else state.step + 1


def _place_death_texts(timings: JobTimings, state: RankState) -> str:
    """The place where the rank died, for people: `in step 59, in all_reduce of dp:0-3`. A recording lacks the last
    tenth of a second of a process that did not end by itself."""
    ended_by_itself = state.end is not None and bool(state.end.exit_code or state.end.exception)
    or_later = "" if timings.live or ended_by_itself else " or later"
    step = f"in step {_step_of_death(state)}{or_later}"
    if state.in_flight:
        return f"{step}, in {state.in_flight.op} of {state.in_flight.group}"
    return f"{step}, in {state.phase}" if state.phase else step
