"""Hung ranks from the states of a job's ranks: the pure part, with every number chosen."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.timings import of_states

from laggard.locate.hang.hangs import HUNG_LATE_SECONDS, HUNG_SILENT_SECONDS, NOTHING_FOUND, PartialVerdict, hung_ranks
from laggard.locate.hang.wait_graph import OF_THE_WORLD
from laggard.locate.job_timings import JobTimings, RankState
from laggard.wire.ranks import BeatRow, GroupProgress, InFlight, LaneProgress

STEP = 0.1


def state(
    entered: dict[str, int],
    inside: tuple[str, float] | None = None,
    age: float = 0.5,
    torch: tuple[int, int, float] | None = None,
    asked: float | None = 0.5,
    **changes: Any,
) -> RankState:
    """A rank that entered so many all_reduces of each group, and is inside the last of one for so many seconds.
    `torch`: enqueued, completed, and for how many seconds these had stood still when torch was asked, `asked` seconds
    ago, of the world."""
    lanes = tuple(LaneProgress("all_reduce", group, count, count - bool(inside)) for group, count in entered.items())
    groups = (GroupProgress("#0", torch[0], -1, torch[1], torch[2]),) if torch else ()
    flight = InFlight("all_reduce", inside[0], entered[inside[0]], inside[1]) if inside else None
    values = {"phase": "backward", "stopped": False, "state": "running", **changes}
    beat = BeatRow(age, 1.0, "on" if torch else "absent", lanes, groups, asked)
    return RankState(values["state"], 7, values["phase"], flight, values["stopped"], beat, values.get("agent", 0.0))


def find_hung(*states: RankState, step: float | None = STEP) -> PartialVerdict:
    return hung_ranks(of_states(states, 8), step)


def hung(found: PartialVerdict) -> list[tuple[int, ...]]:
    return [culprit.ranks for culprit in found.culprits]


def late(found: PartialVerdict) -> list[tuple[int, ...]]:
    return [note.ranks for note in found.notes if note.kind == "not_arrived"]


DP = "dp:0-3"


def test_a_rank_that_has_not_arrived_is_noted_at_once_and_called_hung_after_minutes() -> None:
    def waited(seconds: float, age: float = 0.5) -> PartialVerdict:
        peers = [state({DP: 9}, (DP, seconds)) for _ in range(3)]
        return find_hung(*peers, state({DP: 8}, age=age))

    assert waited(0.5) == NOTHING_FOUND
    found = waited(2.0)
    assert late(found) == [(3,)] and not found.culprits
    assert [note.ranks for note in found.notes if note.kind == "waiting"] == [(0, 1, 2)]
    assert "others have waited for it for 2.00 s in all_reduce of dp:0-3, number 9" in found.notes[0].text
    assert hung(waited(HUNG_LATE_SECONDS - 1)) == [] and hung(waited(HUNG_LATE_SECONDS + 1)) == [(3,)]
    assert hung(waited(HUNG_SILENT_SECONDS + 1)) == [] and hung(waited(HUNG_SILENT_SECONDS + 1, age=90)) == [(3,)]
    assert waited(HUNG_LATE_SECONDS + 1).culprits[0].victims == (0, 1, 2)


def test_a_stopped_rank_is_hung_as_soon_as_somebody_waits() -> None:
    peers = [state({DP: 9}, (DP, 1.1)) for _ in range(3)]
    for stopped in (state({DP: 8}, stopped=True), state({DP: 9}, (DP, 1.2), stopped=True)):
        found = find_hung(*peers, stopped)
        assert hung(found) == [(3,)] and found.culprits[0].confidence == 0.9
        assert "its process is stopped, by a signal or a debugger" in found.culprits[0].evidence
    alone = find_hung(*[state({DP: 9})] * 3, state({DP: 8}, stopped=True))
    assert hung(alone) == [] and [note.kind for note in alone.notes] == ["stopped"]
    assert "its process is stopped, by a signal or a debugger, and may go on" in alone.notes[0].text
    for_long = find_hung(*[state({DP: 9})] * 3, state({DP: 8}, stopped=True, age=11.0))
    assert hung(for_long) == [(3,)] and "may go on" not in for_long.notes[0].text


def test_a_job_whose_processes_are_all_stopped_is_suspended() -> None:
    found = find_hung(*[state({DP: 9}, (DP, 60.0), stopped=True)] * 4)
    assert not found.culprits and [note.kind for note in found.notes] == ["suspended"]


def test_a_victim_that_is_late_elsewhere_is_not_blamed() -> None:
    """2 and 3 wait for 0 in their stage's group; 1 waits for 0 in its own: 0 alone is at the root."""
    one, two = "tp:0-1", "dp:0-2/2"
    found = find_hung(
        state({one: 4, two: 6}),
        state({one: 5}, (one, 200.0)),
        state({two: 7, "tp:2-3": 2}, (two, 200.0)),
        state({"tp:2-3": 3}, ("tp:2-3", 190.0)),
    )
    assert hung(found) == [(0,)] and late(found) == [(0,)]


def test_a_rank_that_never_came_to_the_group_is_a_member_by_its_name() -> None:
    peers = [state({DP: 1}, (DP, 300.0)) for _ in range(3)]
    assert late(find_hung(*peers, state({}))) == [(3,)]
    assert late(find_hung(*peers, state({}), state({}))) == [(3,)]  # 4 is no member of dp:0-3


def test_where_all_have_arrived_nobody_is_blamed_unless_one_is_silent() -> None:
    arrived = [state({DP: 9}, (DP, 300.0)) for _ in range(4)]
    found = find_hung(*arrived)
    assert not found.culprits and "nobody is known to be missing" in found.notes[0].text
    assert hung(find_hung(*arrived[:3], state({DP: 9}, (DP, 300.0), age=290.0))) == [(3,)]


def test_long_steps_make_long_waits_ordinary() -> None:
    def waited(seconds: float, step: float | None) -> PartialVerdict:
        return find_hung(*[state({DP: 9}, (DP, seconds))] * 3, state({DP: 8}), step=step)

    assert waited(15.0, 10.0) == NOTHING_FOUND != waited(25.0, 10.0)
    assert waited(15.0, None) == NOTHING_FOUND != waited(25.0, None)
    assert hung(waited(190.0, 10.0)) == [] and hung(waited(201.0, 10.0)) == [(3,)]


def test_the_flight_recorder_reports_collectives_that_the_hook_does_not_see() -> None:
    waiting, missing = state({}, torch=(12, 11, 200.0)), state({}, torch=(11, 11, 200.0))
    found = find_hung(waiting, waiting, missing)
    assert hung(found) == [(2,)] and OF_THE_WORLD in found.notes[0].text
    assert find_hung(waiting, waiting, state({}, torch=(12, 11, 0.2))) == NOTHING_FOUND  # one has just moved
    idle = state({}, torch=(12, 12, 500.0))
    assert find_hung(idle, idle) == NOTHING_FOUND
    with_sends = state({}, torch=(11, 11, 200.0))
    lanes = (LaneProgress("send", "pp:0-1", 3, 3),)
    assert with_sends.beat is not None
    with_sends = with_sends._replace(beat=BeatRow(0.5, 1.0, "on", lanes, with_sends.beat.groups, 0.5))
    assert find_hung(waiting, waiting, with_sends) == NOTHING_FOUND  # gloo counts them with the collectives


def test_nothing_is_inferred_from_the_age_of_what_torch_was_not_asked() -> None:
    """A calm job's ranks were asked at different times, some of them long ago: their numbers differ, and none waits."""
    just_moved, asked_long_ago = (
        state({}, torch=(336, 335, 0.0), asked=0.1),
        state({}, torch=(250, 250, 0.0), asked=9.5),
    )
    assert find_hung(just_moved, asked_long_ago, asked_long_ago) == NOTHING_FOUND
    assert find_hung(state({}, torch=(336, 335, 0.0), asked=9.5), asked_long_ago) == NOTHING_FOUND
    older = state({}, torch=(336, 335, 200.0), asked=None)  # of an agent or trainer that does not tell
    assert find_hung(older, older, state({}, torch=(12, 12, 200.0), asked=None)) == NOTHING_FOUND


def test_a_rank_has_not_arrived_only_where_it_was_asked_since_the_wait_began() -> None:
    waiting = state({}, torch=(12, 11, 5.0), asked=0.5)
    for asked, expected in ((5.0, [(1,)]), (6.0, [])):
        found = find_hung(waiting, state({}, torch=(11, 11, 0.0), asked=asked))
        assert late(found) == expected, f"torch was asked {asked} s ago, the wait began 5.5 s ago"
        assert [note.ranks for note in found.notes if note.kind == "waiting"] == [(0,)]
    inside = state({DP: 9}, (DP, 2.0))
    for age, agent, expected in ((1.5, 0.0, [(1,)]), (2.5, 0.0, []), (1.5, 1.0, []), (4.5, 0.0, [(1,)])):
        found = find_hung(inside, state({DP: 8}, age=age, agent=agent))
        assert late(found) == expected, f"beat {age} s old, agent asked {agent} s before the last: a wait of 2 s"


def test_ranks_that_are_not_known_to_run_are_neither_blamed_nor_waiting() -> None:
    peers = [state({DP: 9}, (DP, 300.0)) for _ in range(3)]
    for other in ("unknown", "finished", "died"):
        assert hung(find_hung(*peers, state({DP: 8}, state=other))) == []
        assert find_hung(*[state({DP: 9}, (DP, 300.0), state=other)] * 4) == NOTHING_FOUND


@st.composite
def rank_states(draw: Callable[..., Any]) -> list[RankState]:
    """Ranks of two groups, anywhere in their collectives, some stopped or silent."""
    ranks = []
    for _ in range(draw(st.integers(1, 6))):
        entered = {group: draw(st.integers(1, 4)) for group in (DP, "tp:0-1")}
        inside = draw(st.none() | st.tuples(st.sampled_from((DP, "tp:0-1")), st.floats(0.0, 1000.0)))
        torch = draw(st.none() | st.tuples(st.integers(-1, 4), st.integers(-1, 4), st.floats(0.0, 1000.0)))
        asked = draw(st.none() | st.floats(0.0, 500.0))
        ranks.append(state(entered, inside, draw(st.floats(0.0, 500.0)), torch, asked, stopped=draw(st.booleans())))
    return ranks


@given(rank_states(), st.none() | st.floats(0.01, 100.0))
def test_a_running_rank_that_waits_is_never_called_hung_while_another_is_missing(
    ranks: list[RankState], step: float | None
) -> None:
    found = find_hung(*ranks, step=step)
    waiting = {rank for note in found.notes if note.kind == "waiting" for rank in note.ranks}
    stopped = {rank for rank, each in enumerate(ranks) if each.stopped}
    blamed = {rank for culprit in found.culprits for rank in culprit.ranks}
    silent = {rank for rank, each in enumerate(ranks) if each.beat and each.beat.age_seconds > 4.0}
    assert blamed <= stopped if stopped else not (blamed & waiting) or blamed <= silent
    assert not (waiting & stopped)
    assert all(not set(culprit.ranks) & set(culprit.victims) for culprit in found.culprits)
    assert len(blamed) < len(ranks) or len(ranks) == 1 or not waiting or blamed <= stopped


def test_a_hundred_thousand_calm_ranks_take_no_time() -> None:
    import time

    calm = state({DP: 9}, torch=(12, 12, 0.2))
    many = JobTimings(
        "j", 131072, np.zeros(0, np.int64), np.arange(131072), (None,) * 131072, (None,) * 131072,
        *(np.zeros((0, 131072)), np.zeros((0, 131072, 5)), np.zeros((0, 131072))), (calm,) * 131072, {},
    )  # fmt: skip
    began = time.process_time()
    assert hung_ranks(many, STEP) == NOTHING_FOUND
    assert time.process_time() - began < 60.0  # of CPU; what grows with the square of the ranks takes hours
