"""Finds ranks of a process group that called different operations, or one operation with different sizes. Pure.

A group's collectives match by their order, so that none of these can finish. Calls are compared by their numbers, where
these count all collectives of a group, as in dumps; else by what ranks called in the step that none of them finished:
what they called before did match. Only ranks each of which called something that the other did not have taken different
ways: one that called less may be late, and times tell the order of what C++ called only roughly. Of ranks that stand
still, or died standing, rows tell what they stood in.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from laggard.kit.constants import OPS
from laggard.kit.majority import grouped
from laggard.kit.words import ranks_text
from laggard.locate.collectives import Collectives
from laggard.locate.hang.wait_graph import MESSAGES, OF_THE_WORLD, Standing, flight_text, in_the_world, stands_in
from laggard.locate.job_timings import JobTimings, RankState
from laggard.locate.partial_verdict import NOTHING_FOUND, PartialVerdict
from laggard.model import MAX_NAMED_RANKS, Culprit, Note

MISMATCH_TO_DO = "find where these ranks take another way: by a condition on the rank, its data or an exception"
SAME_SIZE = frozenset(OPS.index(op) for op in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"))
"""Operations in which the larger of input and output has one size on all ranks. The root of a gather has more than the
others, and an all_to_all as much as each likes."""

_MAX_NOTES = 16


class DifferentCalls(NamedTuple):
    """`few`: the ranks that called what fewer called; empty where as many called something else. `text`: who called
    what."""

    few: tuple[int, ...]
    ranks: tuple[int, ...]
    text: str

    @classmethod
    def of(cls, calls: Mapping[str, Sequence[int]], what: str) -> DifferentCalls:
        """`calls`: the ranks that made each, for people. `what`: does not match."""
        *fewer, (most, last) = sorted(calls.items(), key=lambda item: (len(item[1]), sorted(item[1])))
        called = ", ".join(f"{ranks_text(ranks)} called {call}" for call, ranks in fewer[:4])
        text = f"{called}, where {ranks_text(last)} called {most}: {what} do not match, and none of them can finish"
        few = tuple(sorted(itertools.chain(*(ranks for _, ranks in fewer))))
        return cls(few if len(few) < len(last) else (), tuple(sorted((*few, *last))), text)

    def note(self, to_do: str = f"; what to do: {MISMATCH_TO_DO}") -> Note:
        return Note("mismatch", f"{self.text}{to_do}", ranks=(self.few or self.ranks)[:MAX_NAMED_RANKS])

    def verdict(self, culprits: Iterable[Culprit], notes: Iterable[Note]) -> PartialVerdict:
        """With these, of which those that called what fewer called get what to do."""
        told = tuple(structs.replace(it, advice=MISMATCH_TO_DO) if it.ranks == self.few else it for it in culprits)
        return PartialVerdict(told, (self.note("") if any(it.advice for it in told) else self.note(), *notes))


class _Call(NamedTuple):
    """A call of a rank: the operation's place in OPS, and its bytes, -1 where they are not known or need not be equal.
    `name`: the operation for people, with the number and the group as this rank has them."""

    op: int
    size: int
    name: str

    @property
    def kind(self) -> tuple[int, int]:
        return self[:2]


def mismatched_collectives(timings: JobTimings) -> PartialVerdict:
    """A note about the first such collective of each group that somebody has not finished, of a source that numbers all
    collectives of a group together."""
    collectives = timings.collectives
    if collectives is None or not collectives.numbered_by_group:
        return NOTHING_FOUND
    found: dict[int, Note] = {}
    for group, rows in _unfinished_numbers(collectives):
        calls = {int(timings.ranks[collectives.column[row]]): _call(collectives, row) for row in rows.tolist()}
        sized = {rank: call for rank, call in calls.items() if call.size >= 0}
        one_operation = len({call.op for call in calls.values()}) == 1
        differing = sized if one_operation else calls  # sizes are compared as far as they are known
        if group not in found and len({call.kind for call in differing.values()}) > 1:
            found[group] = _different(differing).note()
    return PartialVerdict(notes=tuple(found.values())[:_MAX_NOTES])


def _unfinished_numbers(collectives: Collectives) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """The records of each number of a group that not all finished, in order."""
    usable = np.flatnonzero((collectives.peer < 0) & (collectives.op >= 0) & (collectives.seq >= 0))
    order = usable[np.lexsort((collectives.seq[usable], collectives.group[usable]))]
    group, seq = collectives.group[order], collectives.seq[order]
    for rows in np.split(order, np.flatnonzero((group[1:] != group[:-1]) | (seq[1:] != seq[:-1])) + 1):
        if len(rows) > 1 and not np.isfinite(collectives.end[rows]).all():
            yield int(collectives.group[rows[0]]), rows


def different_calls(timings: JobTimings) -> DifferentCalls | None:
    """The first different calls that any group of a recording has in the step that no rank finished. None where there
    are none, or no step is known."""
    collectives = timings.collectives
    if collectives is None or collectives.numbered_by_group or timings.live:
        return None
    found = (_first_difference(calls) for calls in _last_calls(timings, collectives).values())
    return next(filter(None, found), None)


def _first_difference(calls: Mapping[int, Sequence[_Call]]) -> DifferentCalls | None:
    """The first call of each rank that not all made, where two ranks each made one that the other did not."""
    kinds = {rank: {call.kind for call in own} for rank, own in calls.items()}
    common = set.intersection(*kinds.values())
    odd = {rank: [call for call in own if call.kind not in common] for rank, own in calls.items()}
    first = {rank: own[0] for rank, own in odd.items() if own}
    ways = sorted((kinds[rank] for rank in first), key=len)
    if any(less - more for less, more in itertools.pairwise(ways)):  # else each has called what those before it called
        return _different(first)
    return None


def _last_calls(timings: JobTimings, collectives: Collectives) -> dict[str, dict[int, list[_Call]]]:
    """The calls of each rank in the step that it did not finish, in its order, by process group and rank. One process
    group may have several names, one for each role."""
    last = np.array([-1 if state.step is None else state.step for state in timings.states], np.int64)
    known = (collectives.op >= 0) & (collectives.seq >= 0) & (collectives.peer < 0)
    known &= np.isfinite(collectives.end) | (collectives.size > 0) | ~np.isin(collectives.op, tuple(SAME_SIZE))
    # Who finished less did not come as far, or was killed and its last calls are lost.
    known &= (last == last.max(initial=-1))[collectives.column]
    if timings.step_starts is not None and len(timings.steps):  # an asynchronous call that was made before a step ended
        ends = timings.step_starts + timings.step_seconds
        known &= collectives.start >= np.where(np.isfinite(ends), ends, -np.inf).max(axis=0)[collectives.column]
    rows = np.flatnonzero(known & (collectives.step > last[collectives.column]))  # is written last, unfinished
    found: dict[str, dict[int, list[_Call]]] = {}
    for row in rows[np.argsort(collectives.start[rows], kind="stable")].tolist():
        members = collectives.groups[collectives.group[row]].name.partition(":")[2]
        rank = int(timings.ranks[collectives.column[row]])
        found.setdefault(members, {}).setdefault(rank, []).append(_call(collectives, row))
    return found


def _call(collectives: Collectives, row: int) -> _Call:
    op, number = int(collectives.op[row]), int(collectives.seq[row])
    number += not collectives.numbered_by_group  # torch's count begins with 1
    name = f"{OPS[op]} number {number} of {collectives.groups[collectives.group[row]].name}"
    return _Call(op, int(collectives.size[row]) if op in SAME_SIZE else -1, name)


def _different(calls: Mapping[int, _Call]) -> DifferentCalls:
    """`calls`: that of each rank."""
    by_kind = grouped(sorted(calls), lambda rank: calls[rank].kind)
    texts = {}
    for (_, size), ranks in by_kind.items():
        texts[calls[ranks[0]].name + (f" of {size:,} bytes" if size >= 0 else "")] = ranks
    return DifferentCalls.of(texts, "the sizes" if len({op for op, _ in by_kind}) == 1 else "the operations")


def standing_differently(timings: JobTimings, standings: Sequence[Standing]) -> Note | None:
    """The note on ranks that wait for one another in different collectives of one process group; None where they stand
    in several groups, or send and receive."""
    calls = grouped(standings, lambda each: f"{each.operation}, number {each.number}")
    groups = {each.group.partition(":")[2] for each in standings}  # its role is another's word for it
    messages = any(each.operation.startswith(MESSAGES) for each in standings)
    if len(groups) != 1 or len(calls) < 2 or messages:
        return None
    by_call = {call: [int(timings.ranks[each.rank]) for each in same] for call, same in calls.items()}
    return DifferentCalls.of(by_call, "these").note()


def beside_abort(timings: JobTimings, column: int) -> DifferentCalls | None:
    """What ranks stood in when gloo aborted this one (SIGABRT) in a collective: it aborts either side of calls that do
    not match. The same of one of whose end nothing is known, where others stood in something else. None of others."""
    flight, end = timings.states[column].in_flight, timings.states[column].end
    if flight is None or end is None or end.cause or end.exit_code or end.exception:
        return None
    stood = grouped(zip(timings.ranks.tolist(), map(_stood_in, timings.states), strict=True), lambda each: each[1])
    calls = {call: [rank for rank, _ in same] for call, same in stood.items() if call}
    if len(calls) > 1 and end.signal in ("", "SIGABRT"):
        found = DifferentCalls.of(calls, "these")
        return found._replace(text=f"{found.text}; gloo aborts a rank (SIGABRT) for it")
    text = f"gloo aborts a rank (SIGABRT) in {flight_text(flight)} where the calls of ranks do not match"
    return DifferentCalls((), tuple(timings.ranks.tolist()), text) if end.signal == "SIGABRT" else None


def _stood_in(state: RankState) -> str:
    """The collective that the rank was in last, for people: by its hook, else by torch's Flight Recorder. Empty: not
    known."""
    return flight_text(state.in_flight) if state.in_flight else OF_THE_WORLD if stands_in(in_the_world(state)) else ""
