"""Ranks that called different collectives of one process group: while they hang, and from how they died."""

import math
from collections.abc import Sequence

import pytest
from support.collective_rows import Row, collectives
from support.rows import rows
from support.timings import job, of_states

from laggard.locate.collectives import ProcessGroup
from laggard.locate.hang.hangs import HUNG_LATE_SECONDS, hung_ranks
from laggard.locate.job_timings import JobTimings, RankState
from laggard.locate.partial_verdict import PartialVerdict
from laggard.locate.verdict import locate
from laggard.model import RankEnd, Verdict
from laggard.wire.ranks import BeatRow, GroupProgress, InFlight, LaneProgress

NOW = 1_800_000_000.0
LONG = HUNG_LATE_SECONDS + 60.0


def rank(
    inside: tuple[str, str, int] | None = None,
    torch: tuple[int, int] = (45, 45),
    *,
    state: str = "running",
    end: RankEnd | None = None,
    seconds: float = LONG,
) -> RankState:
    """A rank that entered 40 all_reduces. `inside`: operation, group and number of the collective it is in. `torch`:
    how many collectives of the world were enqueued and completed, by the Flight Recorder."""
    entered = {("all_reduce", "dp:0-2"): 40}
    if inside:
        entered[inside[:2]] = inside[2]
    lanes = tuple(
        LaneProgress(op, group, count, count - (inside is not None and inside[:2] == (op, group)))
        for (op, group), count in entered.items()
    )
    groups = (GroupProgress("#0", torch[0], -1, torch[1], seconds),)
    flight = InFlight(*inside, seconds) if inside else None
    return RankState(state, 39, "backward", flight, beat=BeatRow(0.1, 1.0, "on", lanes, groups, 0.1), end=end)


def hang(*states: RankState) -> PartialVerdict:
    return hung_ranks(of_states(states, live=True), 0.1)


BARRIER = ("barrier", "dp:0-2", 1)
BY_CPP = rank(torch=(46, 45))
"""It stands in DDP's all_reduce, of which no hook tells."""


def test_a_barrier_on_one_rank_is_told_and_nobody_hangs_for_it() -> None:
    found = hang(rank(BARRIER, (46, 45)), BY_CPP, BY_CPP)
    assert not found.culprits and found.notes[0].kind == "mismatch" and found.notes[0].ranks == (0,)
    said = "rank 0 called barrier of dp:0-2, number 1, where ranks 1-2 called a collective of the world that C++ made"
    assert found.notes[0].text.startswith(said)
    assert locate(of_states((rank(BARRIER, (46, 45)), BY_CPP, BY_CPP), live=True)).verdict is Verdict.FAIL


def test_different_calls_of_one_group_are_no_mere_deadlock() -> None:
    later = rank(("all_reduce", "world:0-2", 41))
    found = hang(rank(("barrier", "world:0-2", 1)), later, later)
    assert not found.culprits and found.notes[0].kind == "mismatch" and found.notes[0].ranks == (0,)
    assert "where ranks 1-2 called all_reduce of world:0-2, number 41" in found.notes[0].text


def test_two_groups_in_another_order_are_a_deadlock() -> None:
    found = hang(rank(("all_reduce", "dp:0-2", 41)), rank(("all_reduce", "world:0-2#3", 1)))
    assert found.notes[0].kind == "deadlock" and not found.culprits


def test_a_deadlock_is_told_although_others_are_not_there_either() -> None:
    """Ranks 0 and 2 wait in C++ for the other two, where no hook tells: they are late, and not what it hangs on."""
    elsewhere = rank()
    found = hang(elsewhere, rank(("all_reduce", "world:0-3", 1)), elsewhere, rank(("all_gather", "dp:1-3/2", 285)))
    assert found.notes[0].kind == "deadlock" and found.notes[0].ranks == (1, 3) and not found.culprits


@pytest.mark.parametrize(
    "late",
    [
        rank(torch=(45, 45)),  # it computes
        rank(torch=(45, 44)),  # it stands in the collective before, for a rank that is elsewhere
    ],
)
def test_a_rank_that_has_not_come_as_far_is_late_and_called_nothing_else(late: RankState) -> None:
    found = hang(rank(BARRIER, (46, 45)), rank(BARRIER, (46, 45)), late)
    assert [culprit.ranks for culprit in found.culprits] == [(2,)]
    assert "mismatch" not in {note.kind for note in found.notes}


FAILED = RankEnd(NOW + 0.2, 0.0, exit_code=1, exception="RuntimeError", others_failed=True)


@pytest.mark.parametrize("end", [RankEnd(NOW, 0.05, signal="SIGABRT"), RankEnd(NOW + 0.9, 1.0)])
def test_a_rank_that_gloo_aborts_is_told_of_with_what_it_called(end: RankEnd) -> None:
    """The last, where no status was seen: the others' errors say that one is gone, so it was before them."""
    gone = rank(("all_reduce", "dp:0-2", 41), state="died", end=end)
    others = [rank(torch=(46, 45), state="died", end=FAILED) for _ in range(2)]
    location = locate(of_states([others[0], gone, others[1]], live=True))
    (culprit,) = location.culprits
    assert culprit.ranks == (1,)
    said = "rank 1 called all_reduce of dp:0-2, where ranks 0 and 2 called a collective of the world that C++ made"
    assert [note.ranks for note in location.notes if note.text.startswith(said)] == [(1,)]


def recorded(last: Sequence[Sequence[tuple[str, int]]], dead: Sequence[int] = (), per_node: int = 3) -> JobTimings:
    """Recordings of ranks that called one all_reduce in each of twenty steps, and in the one after them what is in
    `last`: operation and bytes. They died in it, those in `dead` by SIGABRT and first."""
    group = ProcessGroup("world:0-2", "world", (0, 1, 2))
    rows = [(column, step + 2, "all_reduce", step, 1000, True) for step in range(20) for column in range(3)]
    for column, calls in enumerate(last):
        numbers = {"all_reduce": 20}
        for op, size in calls:
            rows.append((column, 22, op, numbers.get(op, 0), size, False))
            numbers[op] = numbers.get(op, 0) + 1
    made = []
    for place, (column, step, op, seq, size, finished) in enumerate(rows):
        start = 10.0 * step + 0.1 * place
        made.append(Row(column, step, 0, op, seq, start, start + 0.02 if finished else math.nan, size=size))
    aborted = RankEnd(NOW, 0.0, signal="SIGABRT")
    states = tuple(RankState("died", 21, None, None, end=aborted if each in dead else FAILED) for each in range(3))
    return job(3, 20, collectives=collectives(made, [group]), states=states, per_node=per_node)


GRADIENTS = ("all_reduce", 4096)


@pytest.mark.parametrize("per_node", [3, 1])
@rows("locate/mismatches")
def test_recordings_tell_who_called_something_else_and_that_one_is_named(
    odd: Sequence[tuple[str, int]], dead: Sequence[int], text: str, per_node: int
) -> None:
    """Whom gloo aborts is whose buffer is too small, and not who took another way."""
    location = locate(recorded([[GRADIENTS], odd, [GRADIENTS]], dead, per_node))
    (note,) = [note for note in location.notes if note.kind == "mismatch"]
    assert note.text.startswith(text) and note.ranks == (1,), note.text
    assert "where ranks 0 and 2 called all_reduce number 21 of world:0-2 of 4,096 bytes" in note.text
    (culprit,) = location.culprits
    assert culprit.ranks == (1,)
    assert culprit.advice.startswith("find where these ranks take another way") and "what to do" not in note.text


@pytest.mark.parametrize(
    "odd",
    [
        [],  # it died before it called anything
        [GRADIENTS],
        [GRADIENTS, ("all_reduce", 4)],  # it was further than the others
        [("all_reduce", 4), GRADIENTS],  # what C++ made has no exact time
    ],
)
def test_a_rank_that_called_less_or_the_same_in_another_order_called_nothing_else(odd: list[tuple[str, int]]) -> None:
    others = [[GRADIENTS, ("all_reduce", 4)]] if len(odd) > 1 else [[GRADIENTS]]
    location = locate(recorded([*others, odd, *others], [1]))
    assert "mismatch" not in {note.kind for note in location.notes}


@pytest.mark.parametrize("end", [FAILED, RankEnd(NOW + 0.1, 0.05, signal="SIGKILL")])
def test_where_two_ranks_stand_in_different_calls_neither_is_accused(end: RankEnd) -> None:
    """Gloo aborts either side, and mpirun kills the other at once."""
    aborted = rank(("all_reduce", "dp:0-1", 41), state="died", end=RankEnd(NOW, 0.05, signal="SIGABRT"))
    other = rank(torch=(46, 45), state="died", end=end)
    found = locate(of_states([aborted, other], live=True))
    assert found.culprits == () and found.verdict is Verdict.FAIL
    (note,) = [note for note in found.notes if note.kind == "mismatch"]
    assert note.ranks == (0, 1) and "gloo aborts a rank (SIGABRT)" in note.text


def test_of_several_the_few_took_another_way_whomever_gloo_aborts() -> None:
    aborted = rank(("all_reduce", "dp:0-2", 41), state="died", end=RankEnd(NOW, 0.05, signal="SIGABRT"))
    same = rank(("all_reduce", "dp:0-2", 41), state="died", end=FAILED)
    odd = rank(torch=(46, 45), state="died", end=FAILED)
    assert [culprit.ranks for culprit in locate(of_states([aborted, odd, same], live=True)).culprits] == [(1,)]
