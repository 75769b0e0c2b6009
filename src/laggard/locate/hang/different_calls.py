"""Finds the first collective of a job's last step at which the ranks of a group called different operations, or one
operation with different sizes, in recordings whose numbers count each operation by itself. Pure.

Calls are compared by their order in the step that no rank finished: what ranks called in the steps before did match.
Only calls that stand side by side count, because a rank that has called less may be late, and only ranks each of which
called something that the other did not, because times tell the order of collectives that C++ made only roughly.

Where a rank's last calls are lost, because gloo aborted it, the others' own habit tells: a rank that called in this
step what it had called in no step before, or not as often, called it alone.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import OPS
from laggard.kit.majority import grouped
from laggard.kit.words import ranks_text
from laggard.locate.collectives import Collectives
from laggard.locate.hang.attendance import Members
from laggard.locate.hang.waits import COUNTERPART, MADE_BY_CPP, THE_WORLD, Wait, flight_text, in_the_world, is_alive
from laggard.locate.job_timings import JobTimings, RankState
from laggard.locate.partial_verdict import NOTHING_FOUND, PartialVerdict
from laggard.model import MAX_NAMED_RANKS, Note

# Finds ranks that wait in different collectives of one process group, which can never finish. Pure.
#
# A process group's collectives match by their order. Ranks that stand in different ones of the same group, or in its
# nth collective by their hooks and by torch's Flight Recorder, took different ways through the program.

MISMATCH_TO_DO = (
    "find where the program of these ranks takes another way (a condition on the rank, on its data or on an exception)"
)


def standing_beside(timings: JobTimings, waits: Mapping[int, Wait], least: float) -> dict[int, frozenset[int]]:
    """The ranks for which each rank (its column) waits in a collective of the world, although they stand in the world's
    collective of the same number or a later one, which C++ made: they came, and called something else."""
    members = Members(timings)
    if any(lane.op in COUNTERPART for state in timings.states if state.beat for lane in state.beat.lanes):
        return {}  # the Flight Recorder may count them with the rest
    found = {}
    for column, wait in waits.items():
        own = in_the_world(timings.states[column])
        if own is None or len(members.of(wait.group)) < len(timings.states) or "#" in wait.group:
            continue
        beside = (
            other for other in wait.not_arrived if _stands_in_same_group(timings.states[other], own.enqueued, least)
        )
        if others := frozenset(beside):
            found[column] = others
    return found


def _stands_in_same_group(state: RankState, number: int, least: float) -> bool:
    group = in_the_world(state)
    return (
        is_alive(state)
        and group is not None
        and state.in_flight is None
        and 0 <= group.completed < group.enqueued
        and group.enqueued >= number
        and group.seconds >= least
    )


def beside_note(timings: JobTimings, waits: Mapping[int, Wait], beside: Mapping[int, frozenset[int]]) -> Note:
    """The note on ranks that wait in what others, who stand in something else, did not call."""
    calls: dict[str, set[int]] = {}
    groups = {waits[column].group for column in beside}
    for column, wait in waits.items():
        if wait.group in groups:
            calls.setdefault(f"{wait.operation}, number {wait.number}", set()).add(column)
    calls[MADE_BY_CPP] = {other for others in beside.values() for other in others}
    return _note_same_group(timings, calls)


def mismatch_of(timings: JobTimings, waits: Mapping[int, Wait], columns: frozenset[int]) -> Note | None:
    """The note for ranks that wait for one another in different collectives of one process group; None where they
    stand in several groups, or send and receive."""
    calls: dict[str, set[int]] = {}
    for column in columns:
        calls.setdefault(f"{waits[column].operation}, number {waits[column].number}", set()).add(column)
    groups = {waits[column].group.partition(":")[2] for column in columns}  # its role is another's word for it
    messages = any(waits[column].operation.startswith(tuple(COUNTERPART)) for column in columns)
    return None if len(groups) != 1 or len(calls) < 2 or messages else _note_same_group(timings, calls)


def _note_same_group(timings: JobTimings, calls: Mapping[str, set[int]]) -> Note:
    """The note on who called what; the smaller part comes first, as the one that is more likely wrong."""
    *few, (most, last) = sorted(calls.items(), key=lambda item: (len(item[1]), item[0]))
    called = ", ".join(f"{_ranks(timings, columns)} called {call}" for call, columns in few[:4])
    text = (
        f"{called}, where {_ranks(timings, last)} called {most}: these do not match, and none of them can finish; "
        f"what to do: {MISMATCH_TO_DO}"
    )
    ranks = sorted(int(timings.ranks[column]) for _, columns in few for column in columns)
    return Note("mismatch", text, ranks=tuple(ranks[:MAX_NAMED_RANKS]))


def _ranks(timings: JobTimings, columns: set[int]) -> str:
    return ranks_text(int(timings.ranks[column]) for column in columns)


# Finds collectives in which the ranks of a group called different operations, or with different sizes. Pure.
#
# It takes records whose number counts all collectives of a group: there the nth call of one rank is the nth of all.

MAX_NOTES = 16

SAME_SIZE = frozenset(OPS.index(op) for op in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"))
"""Operations in which the larger of input and output has one size on all ranks. The root of a gather has more than the
others, and an all_to_all as much as each likes."""


class _MismatchedCall(NamedTuple):
    """A call of a rank: the operation's place in OPS and its bytes, -1 where these need not be equal."""

    op: int
    size: int


def mismatched_collectives(timings: JobTimings) -> PartialVerdict:
    """A note about the first such collective of each group that somebody has not finished."""
    collectives = timings.collectives
    if collectives is None or not collectives.numbered_by_group:
        return NOTHING_FOUND
    notes = []
    for group, seq, calls in _first_mismatches(collectives):
        columns = grouped(calls, calls.__getitem__)
        by_call = {call: timings.ranks[own].tolist() for call, own in columns.items()}
        notes.append(_note(collectives.groups[group].name, seq, by_call))
    return PartialVerdict(notes=tuple(notes[:MAX_NOTES]))


def _first_mismatches(collectives: Collectives) -> Iterator[tuple[int, int, Mapping[int, _MismatchedCall]]]:
    """The group, the number, and what each rank (column) called, of the first mismatch of each group."""
    usable = np.flatnonzero((collectives.peer < 0) & (collectives.op >= 0) & (collectives.seq >= 0))
    order = usable[np.lexsort((collectives.seq[usable], collectives.group[usable]))]
    group, seq = collectives.group[order], collectives.seq[order]
    bounds = np.flatnonzero((group[1:] != group[:-1]) | (seq[1:] != seq[:-1])) + 1
    told: set[int] = set()
    for rows in np.split(order, bounds):
        if len(rows) < 2 or int(collectives.group[rows[0]]) in told or np.isfinite(collectives.end[rows]).all():
            continue
        calls = _calls(collectives, rows.tolist())
        if _differ_mismatched(list(calls.values())):
            told.add(int(collectives.group[rows[0]]))
            yield int(collectives.group[rows[0]]), int(collectives.seq[rows[0]]), calls


def _calls(collectives: Collectives, rows: Sequence[int]) -> dict[int, _MismatchedCall]:
    calls = {}
    for row in rows:
        op = int(collectives.op[row])
        size = int(collectives.size[row]) if op in SAME_SIZE else -1
        calls[int(collectives.column[row])] = _MismatchedCall(op, size)
    if len({call.op for call in calls.values()}) == 1:  # then the sizes are compared, as far as they are known
        calls = {column: call for column, call in calls.items() if call.size >= 0}
    return calls


def _differ_mismatched(calls: Sequence[_MismatchedCall]) -> bool:
    """Whether the operations differ or, as far as they are known, the sizes."""
    return len({call.op for call in calls}) > 1 or len({call.size for call in calls if call.size >= 0}) > 1


def _note(group: str, seq: int, by_call: Mapping[_MismatchedCall, Sequence[int]]) -> Note:
    """The note on who called what; the smaller part comes first, as the one that is more likely wrong."""
    counts = Counter({call: len(ranks) for call, ranks in by_call.items()})
    *few, (most, _) = sorted(counts.items(), key=lambda item: (item[1], item[0]))
    sizes_alone = len({call.op for call in by_call}) == 1
    called = [f"{ranks_text(by_call[call])} called {_text(call)}" for call, _ in few[:4]]
    ranks = sorted(rank for call, _ in few for rank in by_call[call])
    text = (
        f"{', '.join(called)} where {ranks_text(by_call[most])} called {_text(most)}, as collective number {seq} of "
        f"{group}: the {'sizes' if sizes_alone else 'operations'} do not match, and it cannot finish; what to do: "
        f"{MISMATCH_TO_DO}"
    )
    return Note("mismatch", text, ranks=tuple(ranks[:MAX_NAMED_RANKS]))


def _text(call: _MismatchedCall) -> str:
    return OPS[call.op] + (f" of {call.size:,} bytes" if call.size >= 0 else "")


HABIT_STEPS = 16
"""The number of steps before the last that tell what a rank calls in a step."""

MIN_HABIT_STEPS = 4
"""The least number of steps that make a habit; there is none either where not all of them had the same calls."""

MAX_COMPARED = 64
"""The most ranks that each called something else, of which pairs are compared."""


class _Call(NamedTuple):
    """A call of a rank: the operation's place in OPS, its bytes, -1 where these need not be equal, its number among the
    rank's calls of that operation, and the name of the group as this rank has it."""

    op: int
    size: int
    number: int
    group: str

    def text(self) -> str:
        size = f" of {self.size:,} bytes" if self.size >= 0 else ""
        return f"{OPS[self.op]} number {self.number} of {self.group}{size}"


class DifferentCalls(NamedTuple):
    """`few`: the ranks that called what fewer called; empty where as many called something else. `text`: who called
    what."""

    few: tuple[int, ...]
    ranks: tuple[int, ...]
    text: str

    def note(self) -> Note:
        ranks = self.few or self.ranks
        return Note("mismatch", f"{self.text}; what to do: {MISMATCH_TO_DO}", ranks=ranks[:MAX_NAMED_RANKS])


def different_calls(timings: JobTimings) -> DifferentCalls | None:
    """The first different calls that any group has. None where there are none, or no step is known."""
    collectives = timings.collectives
    if collectives is None or collectives.numbered_by_group or timings.live:
        return None
    last_calls = _last_calls(timings, collectives)
    found = (_first_difference(calls) for calls in last_calls.values() if _differ(calls))
    described = (_described(timings, calls) for calls in found if calls)
    return next(described, None) or _unusual(timings, collectives, last_calls)


def _unusual(
    timings: JobTimings, collectives: Collectives, last_calls: Mapping[str, Mapping[int, list[_Call]]]
) -> DifferentCalls | None:
    """The rank, if it is one alone of its group, whose last calls hold one that it had never made in a step before."""
    odd = {}
    for members, calls in last_calls.items():
        for column, each in calls.items():
            call = _beyond_habit(timings, collectives, members, column, each)
            if call is not None:
                odd[column] = call
    if len(odd) != 1 or len(timings.ranks) < 2:
        return None
    ((column, call),) = odd.items()
    rank = int(timings.ranks[column])
    text = f"rank {rank} called {call.text()} in its last step, as in none of its steps before"
    return DifferentCalls((rank,), tuple(int(each) for each in timings.ranks), f"{text}: the others did not")


def _beyond_habit(
    timings: JobTimings, collectives: Collectives, members: str, column: int, calls: Sequence[_Call]
) -> _Call | None:
    """The first of a rank's last calls that is none of those that it makes in each step, or one too many of them."""
    last = timings.states[column].step
    groups = [place for place, group in enumerate(collectives.groups) if group.name.partition(":")[2] == members]
    own = (collectives.column == column) & np.isin(collectives.group, groups) & (collectives.op >= 0)
    own &= collectives.peer < 0
    habits = [_counted(collectives, own & (collectives.step == step)) for step in _steps_before(last)]
    if len(habits) < MIN_HABIT_STEPS or not habits[0] or any(habit != habits[0] for habit in habits):
        return None
    left = habits[0].copy()
    for call in calls:
        if left[call[:2]] <= 0:
            return call
        left[call[:2]] -= 1
    return None


def _steps_before(last: int | None) -> range:
    """The last steps that were finished but the first two of all, in which much is done once."""
    return range(max(2, (last or 0) + 1 - HABIT_STEPS), (last or 0) + 1)


def _counted(collectives: Collectives, rows: NDArray[np.bool_]) -> Counter[tuple[int, int]]:
    ops = collectives.op[rows].tolist()
    sizes = (size if op in SAME_SIZE else -1 for op, size in zip(ops, collectives.size[rows].tolist(), strict=True))
    return Counter(zip(ops, sizes, strict=True))


def _last_calls(timings: JobTimings, collectives: Collectives) -> dict[str, dict[int, list[_Call]]]:
    """The calls of each rank in the step that it did not finish, in its order, by process group and column. One process
    group may have several names, one for each role."""
    last = np.array([-1 if state.step is None else state.step for state in timings.states], np.int64)
    known = (collectives.op >= 0) & (collectives.seq >= 0) & (collectives.peer < 0)
    known &= np.isfinite(collectives.end) | (collectives.size > 0) | ~np.isin(collectives.op, tuple(SAME_SIZE))
    # Who finished less did not come as far, or was killed and its last calls are lost.
    known &= (last == last.max(initial=-1))[collectives.column]
    known &= collectives.start >= _ends_of_last_steps(timings)[collectives.column]  # an asynchronous one that was made
    rows = np.flatnonzero(known & (collectives.step > last[collectives.column]))  # before is written last, unfinished
    found: dict[str, dict[int, list[_Call]]] = {}
    for row in rows[np.argsort(collectives.start[rows], kind="stable")].tolist():
        name = collectives.groups[collectives.group[row]].name
        op = int(collectives.op[row])
        size = int(collectives.size[row]) if op in SAME_SIZE else -1
        call = _Call(op, size, int(collectives.seq[row]) + 1, name)
        found.setdefault(name.partition(":")[2], {}).setdefault(int(collectives.column[row]), []).append(call)
    return found


def _ends_of_last_steps(timings: JobTimings) -> NDArray[np.float64]:
    """[R]: when each rank finished its last step, on the clock of its collectives; -inf where it finished none."""
    if timings.step_starts is None or not len(timings.steps):
        return np.full(len(timings.ranks), -np.inf)
    ends = timings.step_starts + timings.step_seconds
    last: NDArray[np.float64] = np.where(np.isfinite(ends), ends, -np.inf).max(axis=0)
    return last


def _differ(calls: Mapping[int, list[_Call]]) -> bool:
    """Whether two ranks each called something that the other did not call, or not as often."""
    counts = {frozenset(Counter(call[:2] for call in each).items()): each for each in calls.values()}
    distinct = [Counter(call[:2] for call in each) for each in counts.values()]
    return any(one - other and other - one for one, other in itertools.combinations(distinct[:MAX_COMPARED], 2))


def _first_difference(calls: Mapping[int, list[_Call]]) -> dict[int, _Call] | None:
    """The calls of the ranks at the first place at which two of them differ."""
    for place in range(max(map(len, calls.values()))):
        beside = {column: each[place] for column, each in calls.items() if place < len(each)}
        if len({call[:2] for call in beside.values()}) > 1:
            return beside
    return None


def _described(timings: JobTimings, calls: Mapping[int, _Call]) -> DifferentCalls:
    by_call: dict[tuple[int, int], list[int]] = {}
    shown: dict[tuple[int, int], _Call] = {}
    for column, call in calls.items():
        by_call.setdefault(call[:2], []).append(int(timings.ranks[column]))
        shown.setdefault(call[:2], call)
    *fewer, (most, _) = sorted(by_call.items(), key=lambda item: (len(item[1]), item[1]))
    few = sorted(rank for _, ranks in fewer for rank in ranks)
    texts = ", ".join(_called(by_call[key], shown[key]) for key, _ in fewer[:4])
    sizes = "sizes" if len({op for op, _ in by_call}) == 1 else "operations"
    text = f"{texts}, where {_called(by_call[most], shown[most])}: the {sizes} do not match, and it cannot finish"
    is_minority = len(few) < len(by_call[most])
    everybody = tuple(int(timings.ranks[column]) for column in calls)
    return DifferentCalls(tuple(few) if is_minority else (), everybody, text)


def _called(ranks: list[int], call: _Call) -> str:
    return f"{ranks_text(ranks)} called {call.text()}"


def beside_abort(timings: JobTimings, column: int) -> DifferentCalls | None:
    """The ranks that called something else, by where the ranks stood in when gloo aborted one of them (SIGABRT): it
    aborts either side. `few` is empty where as many stood in one as in the other, or where that is not known. None
    where the rank was not aborted in a collective."""
    state = timings.states[column]
    if state.in_flight is None or state.end is None or state.end.signal != "SIGABRT" or state.end.cause:
        return None
    stood: dict[str, list[int]] = {}
    for place, rank in enumerate(timings.ranks.tolist()):
        call = _stands_in(timings, place)
        if call:
            stood.setdefault(call, []).append(int(rank))
    *fewer, (_, most) = sorted(stood.items(), key=lambda item: len(item[1]))
    few = sorted(rank for _, ranks in fewer for rank in ranks)
    told = " and ".join(f"{ranks_text(ranks)} stood in {call}" for call, ranks in list(stood.items())[:4])
    aborted = f"rank {int(timings.ranks[column])} was aborted (SIGABRT) in a collective"
    text = f"{aborted}, as gloo does where calls do not match"
    everybody = tuple(int(rank) for rank in timings.ranks)
    return DifferentCalls(tuple(few) if len(few) < len(most) else (), everybody, f"{text}: {told}")


def aborted_call(timings: JobTimings, column: int) -> str:
    """A sentence for a rank that was aborted (SIGABRT) inside a collective: the call that it made where others called
    something else; where that is not known, that gloo aborts a rank for such a call. Empty of other ends, but of one of
    which nothing is known it says what is known to differ."""
    state = timings.states[column]
    end, flight = state.end, state.in_flight
    nothing_known = end is not None and not (end.signal or end.exit_code or end.exception)
    if end is None or flight is None or not (end.signal == "SIGABRT" or nothing_known):
        return ""
    others = [other for other, it in enumerate(timings.states) if other != column and it.state in ("died", "running")]
    other_calls: dict[str, list[int]] = {}
    for other in others:
        call = _stands_in(timings, other)
        if call and call != flight_text(flight):
            other_calls.setdefault(call, []).append(int(timings.ranks[other]))
    beside = " and ".join(f"{ranks_text(ranks)} were in {call}" for call, ranks in list(other_calls.items())[:4])
    if nothing_known and not beside:
        return ""
    called = f"it called {flight_text(flight)}, number {flight.seq}" + (f", where {beside}" if beside else "")
    return f"{called}: gloo aborts a rank whose call does not match the others', as of another operation or size"


def _stands_in(timings: JobTimings, column: int) -> str:
    """The collective that the rank was in last, for people: by its hook, else by torch's Flight Recorder. Empty: not
    known."""
    state = timings.states[column]
    if state.in_flight:
        return flight_text(state.in_flight)
    groups = state.beat.groups if state.beat else ()
    stands = any(group.name == THE_WORLD and 0 <= group.completed < group.enqueued for group in groups)
    return MADE_BY_CPP if stands else ""
