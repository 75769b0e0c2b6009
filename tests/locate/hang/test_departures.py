"""Ranks that left with status 0 while others went on, and their look-alikes: the pure part, all numbers chosen."""

from typing import Any

import pytest
from support.timings import of_states

from laggard.locate.describe import sentence
from laggard.locate.hang.hangs import hung_ranks
from laggard.locate.job_timings import RankState
from laggard.locate.verdict import locate
from laggard.model import Location, RankEnd, Verdict
from laggard.rankfile.layout import LANE_COUNT
from laggard.wire.ranks import BeatRow, GroupProgress, InFlight, LaneProgress

NOW = 1_800_000_000.0
WORLD = "dp:0-2"

Counts = dict[tuple[str, str], int]


def rank(
    state: str, count: int, *, step: int = 39, after: float = 0.0, more: Counts | None = None, **how: Any
) -> RankState:
    """A rank that had entered so many all_reduces of the world. `more`: and of other lanes. `inside`: it is in the last
    one for so many seconds. `torch`: enqueued and completed collectives of the world, standing still for 30 s."""
    inside, torch = how.pop("inside", None), how.pop("torch", None)
    lanes = {("all_reduce", WORLD): count, **(more or {})}
    rows = tuple(LaneProgress(op, group, entered, entered - bool(inside)) for (op, group), entered in lanes.items())
    groups = (GroupProgress("#0", torch[0], -1, torch[1], 30.0),) if torch else ()
    flight = InFlight("all_reduce", WORLD, count, inside) if inside else None
    end = None if state == "running" else RankEnd(NOW + after, 0.01, **how)
    return RankState(state, step, "backward", flight, beat=BeatRow(0.1, 1.0, "on", rows, groups, 0.1), end=end)


def left(count: int = 40, **how: Any) -> RankState:
    return rank("finished", count, exit_code=0, **how)


def victim(count: int = 41, **how: Any) -> RankState:
    """Of gloo's error, a second later."""
    how = {"exit_code": 1, "exception": "RuntimeError", "others_failed": True, "after": 1.0, **how}
    return rank("died", count, **how)


def judge(*states: RankState) -> Location:
    return locate(of_states(states, live=True))


def dead(location: Location) -> list[tuple[int, ...]]:
    assert all(culprit.kind == "dead" for culprit in location.culprits)
    return [culprit.ranks for culprit in location.culprits]


def test_who_left_before_the_others_could_go_on_is_named_and_not_its_victims() -> None:
    location = judge(victim(after=1.1), left(), victim())
    assert dead(location) == [(1,)] and location.verdict is Verdict.FAIL
    (culprit,) = location.culprits
    assert sentence(location) == "Rank 1 on n0 left first: exit status 0."
    assert culprit.since_step == 40 and culprit.victims == (0, 2) and culprit.end and culprit.end.exit_code == 0
    said = (
        f"it left at step 40, while ranks 0 and 2 went on to all_reduce of {WORLD}, number 41, to which it never came"
    )
    assert culprit.evidence == (said,)
    assert culprit.advice.startswith("find why its program ended before the others'")
    assert {note.ranks for note in location.notes if note.kind == "rank_died"} == {(0,), (2,)}


@pytest.mark.parametrize(
    "others",
    [
        [victim(signal="SIGTERM", exception="", others_failed=False)] * 2,  # by the launcher, as after NCCL's silence
        [victim(signal="SIGKILL", exception="", others_failed=False, inside=30.0)] * 2,
        [victim(), rank("running", 41, inside=5.0)],
        [victim(40, torch=(45, 44)), victim(40, torch=(45, 44))],  # what C++ made: the hooks count it after the step
    ],
)
def test_however_the_others_end_who_left_explains_it(others: list[RankState]) -> None:
    assert dead(judge(left(), *others)) == [(0,)]


@pytest.mark.parametrize(
    "others",
    [
        [rank("running", 41, inside=5.0)] * 2,
        [rank("running", 40, torch=(45, 44))] * 2,  # as with NCCL: no error, they wait for ever
    ],
)
def test_others_that_hang_wait_for_who_left(others: list[RankState]) -> None:
    found = hung_ranks(of_states((others[0], left(), others[1]), live=True), 0.1)
    assert [(culprit.kind, culprit.ranks) for culprit in found.culprits] == [("dead", (1,))]
    assert {note.ranks for note in found.notes if note.kind == "waiting"} == {(0, 2)}


SUBGROUP: Counts = {("all_reduce", "tp:0-1"): 9}
OTHER: Counts = {("all_reduce", "tp:0-1"): 10}


@pytest.mark.parametrize(
    ("states", "named"),
    [
        ((left(), left(after=3.0), left(after=9.0)), []),  # they end one after the other
        ((left(), left(60, step=59), left(50, step=49)), []),  # uneven, as with join(), or by design
        ((left(), left(), rank("running", 40)), []),  # one goes on after the training: it saves
        ((left(), left(), rank("died", 40, exit_code=1, exception="OSError")), [(2,)]),
        ((victim(40), left(), victim(40)), [(0,), (2,)]),  # it had come to all that the others came to
        ((victim(more=SUBGROUP), victim(more=OTHER), left(41)), [(0,), (1,)]),  # a group that it is not in
        ((victim(), left(after=1.5), victim()), [(0,), (2,)]),  # it left after they died
        ((victim(), left(), rank("died", 40, exit_code=1, exception="ValueError")), [(2,)]),
        ((victim(), left(), victim(signal="SIGKILL", cause="out_of_memory", others_failed=False)), [(2,)]),
        ((rank("running", 40), left(), rank("running", 40)), []),  # nobody waits yet
    ],
)
def test_who_ended_well_is_not_named_where_nobody_misses_it(
    states: tuple[RankState, ...], named: list[tuple[int, ...]]
) -> None:
    assert dead(judge(*states)) == named


def test_a_rank_that_was_never_in_a_group_is_not_missed_there() -> None:
    states = (victim(more=OTHER, after=1.0), victim(more=OTHER, after=1.0), left(41))
    assert (2,) not in dead(judge(*states))


def test_a_rank_whose_lanes_had_no_room_in_its_file_is_not_missed() -> None:
    full: Counts = {("all_reduce", f"tp:{number}"): 1 for number in range(LANE_COUNT - 1)}
    others = (victim(more=OTHER, after=1.0), left(41, more=full))
    assert (1,) not in dead(judge(*others))


def test_one_that_calls_more_than_all_that_have_ended_is_told_of_its_call() -> None:
    """A barrier on rank 0 alone, after the training."""
    alone = victim(40, more={("barrier", WORLD): 1}, step=39)
    location = judge(alone, left(), left())
    assert dead(location) == [(0,)]
    (note,) = [note for note in location.notes if note.kind == "mismatch"]
    assert note.ranks == (0,)
    assert f"rank 0 called barrier of {WORLD}, number 1, which ranks 1-2 did not: they have ended" in note.text
    waits = rank("running", 40, more={("barrier", WORLD): 1})._replace(in_flight=InFlight("barrier", WORLD, 1, 9.0))
    found = hung_ranks(of_states((waits, left(), left()), live=True), 0.1)
    assert not found.culprits and found.notes[0].kind == "mismatch"


def test_a_receive_from_a_rank_that_left_is_explained_by_it() -> None:
    pair = LaneProgress("recv", "pp:0-1", 8, 7, 1), LaneProgress("send", "pp:0-1", 7, 7, 0)
    first, second = victim(), left(41)
    first = first._replace(beat=with_lane(first, pair[0]))
    second = second._replace(beat=with_lane(second, pair[1]))
    location = judge(first, second)
    assert dead(location) == [(1,)]
    assert any("went on to send from rank 1 to rank 0, number 8" in line for line in location.culprits[0].evidence)


def with_lane(state: RankState, lane: LaneProgress) -> BeatRow:
    assert state.beat
    return BeatRow(0.1, 1.0, "on", (*state.beat.lanes, lane), ())
