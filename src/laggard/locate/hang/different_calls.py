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
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.constants import OPS
from laggard.locate.collectives import Collectives
from laggard.locate.hang.mismatched import SAME_SIZE
from laggard.locate.hang.same_group import MISMATCH_TO_DO
from laggard.locate.hang.waits import MADE_BY_CPP, THE_WORLD, flight_text
from laggard.locate.job_timings import JobTimings
from laggard.model import MAX_NAMED_RANKS, Note
from laggard.text.words import ranks_text

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
