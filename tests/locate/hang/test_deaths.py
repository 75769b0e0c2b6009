"""Who died first, from how the ranks' processes ended: the pure part, with every number chosen."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.collective_rows import Row, collectives
from support.rows import rows
from support.steps import StepRow, step_table
from support.timings import of_states

from laggard.kit.constants import PHASES
from laggard.locate.collectives import ProcessGroup
from laggard.locate.hang.deaths import dead_ranks
from laggard.locate.job_timings import JobTimings, LastBeat, RankInfo, RankState, build_timings
from laggard.locate.partial_verdict import PartialVerdict
from laggard.model import RankEnd
from laggard.wire.ranks import BeatRow, InFlight, LaneProgress

NOW = 1_800_000_000.0
RUNNING = RankState("running", 7, "backward", InFlight("all_reduce", "dp:0-3", 9, 1.0))


def died(after: float = 0.0, uncertain: float = 0.05, inside: bool = False, **how: Any) -> RankState:
    """A rank that died so many seconds after NOW."""
    flight = InFlight("all_reduce", "dp:0-3", 9, 1.0) if inside else None
    return RankState("died", 7, "backward", flight, end=RankEnd(NOW + after, uncertain, **how))


def judge(*states: RankState, nodes: tuple[str, ...] = (), world: int = 0) -> PartialVerdict:
    return dead_ranks(of_states(states, world, nodes))


def first(found: PartialVerdict) -> list[int]:
    assert all(culprit.kind == "dead" for culprit in found.culprits)
    return [rank for culprit in found.culprits for rank in culprit.ranks]


KILLED = died(signal="SIGKILL")
PEER_GONE = died(-0.02, 0.0, exit_code=1, exception="RuntimeError", others_failed=True)
ENDED_BY_LAUNCHER = died(0.3, signal="SIGTERM")
INTERRUPTED = died(exit_code=1, exception="KeyboardInterrupt")
FAILED = died(exit_code=1, exception="ValueError")
GONE = RankState("died", 7, None, None)
NAMED = {
    "running": RUNNING, "killed": KILLED, "peer_gone": PEER_GONE, "ended_by_launcher": ENDED_BY_LAUNCHER,
    "interrupted": INTERRUPTED, "failed": FAILED, "gone": GONE, "gone_later": GONE._replace(alive_at=NOW + 30.0),
}  # fmt: skip
Told = str | dict[str, Any]


def state_of(told: Told) -> RankState:
    """By its name, or a rank that died so."""
    return NAMED[told] if isinstance(told, str) else died(**told)


@rows("locate/who_died_first")
def test_who_died_first(states: tuple[Told, ...], expected: tuple[int, ...]) -> None:
    made = [state_of(each) for each in states]
    found = judge(*made)
    assert first(found) == list(expected)
    told = [rank for note in found.notes for rank in note.ranks]
    assert sorted(told) == [rank for rank, state in enumerate(made) if state.state == "died"]


def test_clocks_of_two_nodes_are_not_trusted_to_the_millisecond() -> None:
    deaths = KILLED, died(0.3, signal="SIGKILL"), RUNNING
    assert first(judge(*deaths, nodes=("n0", "n0", "n0"))) == [0]
    both = judge(*deaths, nodes=("n0", "n1", "n0"))
    assert first(both) == [0, 1]
    assert any("each may have been the first" in line for line in both.culprits[0].evidence)
    assert both.culprits[0].confidence < judge(*deaths).culprits[0].confidence


def test_a_machine_that_goes_down_is_one_culprit_with_its_ranks() -> None:
    nodes = ("n0", "n0", "n1", "n1")
    for ends in ((KILLED, died(0.4, signal="SIGKILL")), (died(uncertain=1.0), died(0.3, uncertain=1.0))):
        found = judge(RUNNING, PEER_GONE, *ends, nodes=nodes)
        (culprit,) = found.culprits
        assert (culprit.kind, culprit.ranks, culprit.node) == ("dead", (2, 3), "n1"), ends
        assert culprit.evidence[0] == "all 2 ranks of the machine died in the same way at the same time"
        assert culprit.victims == (0, 1) and culprit.confidence == 0.95
    gone = RankState("died", 7, "backward", None)
    assert [each.ranks for each in judge(RUNNING, RUNNING, gone, gone, nodes=nodes).culprits] == [(2, 3)]


def test_ranks_of_a_machine_that_die_one_by_one_or_in_their_own_ways_are_no_machine_that_goes_down() -> None:
    nodes = ("n0", "n0", "n1", "n1")
    assert first(judge(RUNNING, RUNNING, KILLED, RUNNING, nodes=nodes)) == [2], "its other rank lives"
    alone = judge(RUNNING, RUNNING, KILLED, died(0.2, exit_code=1, exception="ValueError"), nodes=nodes)
    assert [each.ranks for each in alone.culprits] == [(2,)]
    later = judge(RUNNING, RUNNING, KILLED, died(30.0, signal="SIGKILL"), nodes=nodes)
    assert [each.ranks for each in later.culprits] == [(2,)]
    failed = died(exit_code=1, exception="ValueError")
    several = judge(RUNNING, failed, failed, failed, nodes=nodes)
    assert [each.ranks for each in several.culprits] == [(1,), (2, 3)], "one of all still runs"


@rows("locate/jobs_that_were_ended")
def test_a_job_that_was_ended_as_a_whole_has_no_culprit(states: tuple[Told, ...]) -> None:
    found = judge(*map(state_of, states))
    assert not found.culprits and found.notes[-1].kind == "ended"


def test_the_kernels_word_makes_a_culprit_of_one_among_many_that_were_killed() -> None:
    starved = died(
        0.02, signal="SIGKILL", cause="out_of_memory", kernel="Memory cgroup out of memory: Killed process 7"
    )
    found = judge(starved, starved)
    assert first(found) == [0, 1] and any("Killed process 7" in line for line in found.culprits[0].evidence)


STARVED = died(0.02, signal="SIGKILL", cause="out_of_memory", kernel="Memory cgroup out of memory: Killed process 7")


@pytest.mark.parametrize("nodes", [("n0", "n0", "n0"), ("n0", "n1", "n1")])
def test_who_was_killed_after_another_ran_out_of_memory_is_no_culprit(nodes: tuple[str, ...]) -> None:
    """The launcher kills the siblings at once: their clocks cannot tell who was first, the kernel's word can."""
    found = judge(STARVED, KILLED, died(0.04, signal="SIGKILL"), nodes=nodes)
    assert first(found) == [0] and found.culprits[0].end == STARVED.end
    (of_sibling,) = [note.text for note in found.notes if note.ranks == (1,)]
    assert "SIGKILL" in of_sibling and "memory" not in of_sibling
    by_itself = died(0.0, 0.0, exit_code=1, exception="ValueError")
    assert sorted(first(judge(STARVED, by_itself, RUNNING))) == [0, 1], "what a rank says of itself counts too"


def test_a_machine_of_which_one_rank_ran_out_of_memory_did_not_go_down() -> None:
    (culprit,) = judge(
        RUNNING, PEER_GONE, STARVED, died(0.4, signal="SIGKILL"), nodes=("n0", "n0", "n1", "n1")
    ).culprits
    assert culprit.ranks == (2,) and "all 2 ranks" not in culprit.evidence[0]


def test_where_only_victims_are_seen_the_first_may_be_one_that_is_not() -> None:
    silent = RankState("unknown", 7, None, None)
    for found in (judge(PEER_GONE, PEER_GONE, silent), judge(PEER_GONE, PEER_GONE, world=3)):
        assert not found.culprits and found.notes[0].kind == "first_unseen"
    assert first(judge(PEER_GONE, PEER_GONE)) == [0, 1], "all are seen: it began with one of these"
    apart = judge(PEER_GONE, PEER_GONE, nodes=("n0", "n1"))
    assert not apart.culprits and "look at what connects them" in apart.notes[0].text


def test_a_process_that_leaves_without_an_end_after_the_last_step_of_all_harmed_nobody() -> None:
    over, gone = RankState("finished", 7, None, None), RankState("died", 7, None, None)
    assert first(judge(over, over, gone)) == []
    assert first(judge(over, over, gone._replace(step=5))) == [2]
    assert first(judge(over, over, died(exit_code=1))) == [2]


ends = st.none() | st.builds(
    RankEnd,
    st.floats(NOW, NOW + 100),
    st.floats(0, 5),
    st.none() | st.integers(0, 255),
    st.sampled_from(("", "SIGKILL", "SIGTERM")),
    st.sampled_from(("", "ValueError")),
    st.booleans(),
    st.sampled_from(("", "out_of_memory")),
)
states = st.builds(
    RankState,
    st.sampled_from(("running", "died", "died", "finished", "unknown")),
    st.none() | st.integers(0, 9),
    st.just("backward"),
    st.none() | st.just(InFlight("all_reduce", "dp:0-3", 9, 1.0)),
    end=ends,
    doubted=st.just(False),
)


@given(st.lists(states, min_size=1, max_size=6))
def test_only_ranks_that_ended_are_named_and_nobody_where_nobody_died(ranks: list[RankState]) -> None:
    found = judge(*ranks)
    gone = {rank for rank, state in enumerate(ranks) if state.state == "died"}
    left = {rank for rank, state in enumerate(ranks) if state.state == "finished"}
    named = set(first(found))
    assert (named <= gone or named <= left) and bool(found.notes) == bool(gone) and bool(gone or not named)


def says(quiet: float, inside: bool) -> LastBeat:
    """Where a rank stood that had finished no step for `quiet` seconds."""
    flight = InFlight("all_reduce", "dp:0-3", 9, quiet) if inside else None
    lanes = (LaneProgress("all_reduce", "dp:0-3", 9 if inside else 8, 8),)
    return LastBeat(quiet, "backward", flight, BeatRow(0.0, min(max(1.0, quiet / 2), 5.0), "on", lanes, ()))


def judge_recorded(*beats: LastBeat) -> PartialVerdict:
    """Ranks that were all killed, of a job with steps of 0.25 s, judged by their own recordings."""
    states = []
    for beat in beats:
        flight = InFlight("all_reduce", "dp:0-3", 9, 0.0) if beat.in_flight else None
        states.append(RankState("died", 19, None, flight))
    return dead_ranks(dataclasses.replace(recorded(0.25, states), last_beats=beats))


def recorded(step_seconds: float, states: Sequence[RankState]) -> JobTimings:
    """What the recordings of ranks on one node hold: each has the steps until that of its state."""
    info, tables = {}, {}
    for rank, state in enumerate(states):
        info[rank] = RankInfo("n0", None, state)
        rows = [
            StepRow(step, step * step_seconds, (step + 1) * step_seconds, (0.002,) * len(PHASES), 0.0)
            for step in range((state.step or 0) + 1)
        ]
        tables[rank] = step_table(rows)
    return dataclasses.replace(build_timings("j", len(states), info, tables, {}), live=False)


def gone(step: int) -> RankState:
    """A rank whose recording has no end: `step` is the last that was written."""
    return RankState("died", step, None, None)


def test_a_job_none_of_whose_ranks_recorded_an_end_is_not_called_well() -> None:
    """A launcher that kills the others after one died, and one that cancels the job, leave the same."""
    found = dead_ranks(recorded(0.012, (gone(114), gone(119))))
    assert not found.culprits
    assert [note.kind for note in found.notes] == ["first_unseen", "ended"]


def test_who_was_killed_in_a_wait_is_named_and_not_the_rank_that_all_waited_for() -> None:
    """Rank 0 is late and lives: it and rank 2 say where they stand for 14 s after rank 1 said nothing more."""
    assert first(judge_recorded(says(18.0, False), says(3.4, True), says(18.0, True))) == [1]


def test_who_came_last_is_not_dead_for_it_where_all_were_killed_at_once() -> None:
    """Rank 0 was late when rank 1 was killed in the wait, and the launcher ended the others at once."""
    found = judge_recorded(says(3.4, False), says(3.4, True), says(3.4, True))
    assert not found.culprits and found.notes[0].kind == "first_unseen"
    assert "who died first is not recorded: the launcher's log names" in found.notes[0].text


def test_who_said_nothing_while_the_others_waited_is_named() -> None:
    assert first(judge_recorded(says(3.4, True), says(0.0, False), says(3.4, True))) == [1]


def judge_stuck(
    last: LastBeat, *others: RankState, step_seconds: float = 0.25, alive_at: float | None = None
) -> PartialVerdict:
    """Rank 1, of which no end is recorded and which stood at `last`, and the others, which have an end each."""
    states = (others[0], gone(19)._replace(alive_at=alive_at), *others[1:])
    beats = tuple(last if rank == 1 else None for rank in range(len(states)))
    return dead_ranks(dataclasses.replace(recorded(step_seconds, states), last_beats=beats))


@pytest.mark.parametrize(
    ("last", "stopped"),
    [
        pytest.param(says(87.0, inside=True), True, id="in a collective"),
        pytest.param(says(87.0, inside=False), False, id="in its own work"),
    ],
)
@pytest.mark.parametrize("alive_at", [None, NOW + 5.0])
def test_a_rank_that_stood_long_and_alone_did_not_end_with_the_others_hung(
    last: LastBeat, stopped: bool, alive_at: float | None
) -> None:
    """A process that waits in the driver of a GPU that has stopped ends by no error of its collectives: it is killed
    after the others gave up, and may have written until then."""
    found = judge_stuck(last, PEER_GONE, PEER_GONE, PEER_GONE, alive_at=alive_at)
    (culprit,) = found.culprits
    assert (culprit.kind, culprit.ranks, culprit.device_stopped) == ("hung", (1,), stopped)
    assert "it stood for 87 s before, until the others' collectives had failed" in culprit.evidence


@pytest.mark.parametrize(
    ("last", "other", "step_seconds"),
    [
        pytest.param(says(6.0, inside=True), PEER_GONE, 0.25, id="it was killed at once"),
        pytest.param(says(87.0, inside=True), PEER_GONE, 10.0, id="of steps so long that is no hang"),
        pytest.param(says(87.0, inside=True)._replace(in_flight=None, phase="checkpoint"), PEER_GONE, 0.25,
                     id="it may have worked alone"),
        pytest.param(says(87.0, inside=True), KILLED, 0.25, id="another was killed as well"),
    ],
)  # fmt: skip
def test_else_a_rank_without_an_end_died(last: LastBeat, other: RankState, step_seconds: float) -> None:
    found = judge_stuck(last, PEER_GONE, other, PEER_GONE, step_seconds=step_seconds)
    assert found.culprits and all(culprit.kind == "dead" for culprit in found.culprits)


def test_who_said_for_long_that_it_waited_outlived_the_one_whose_end_is_known() -> None:
    """Of the machine of the dead rank others tell its end; the recordings of all that waited have none."""
    killed = gone(19)._replace(end=RankEnd(NOW, 1.0, signal="SIGKILL"))
    states = (gone(19), killed, gone(19), gone(19))
    beats = tuple(None if rank == 1 else says(36.0, inside=True) for rank in range(4))
    nodes = ("n0", "n1", "n0", "n0")
    timings = dataclasses.replace(recorded(0.25, states), last_beats=beats, nodes=nodes)
    assert first(dead_ranks(timings)) == [1]
    early = tuple(None if rank == 1 else says(6.0, inside=True) for rank in range(4))
    assert set(first(dead_ranks(dataclasses.replace(timings, last_beats=early)))) == {0, 1, 2, 3}


def went_on(last: int, missed: bool, back: int = 0) -> PartialVerdict:
    """The recording of rank 1 stops in step 9, and those of the others in step 19, which end with status 0. They finish
    an all_reduce of all in each step until `last`; with `missed`, they never finish one after that. `back`: by so many
    steps the others went back after step 19, in the same processes, to a checkpoint that they loaded."""
    group = ProcessGroup("dp:0-3", "dp", (0, 1, 2, 3))
    rows = [
        Row(rank, step if step < 20 else step - back, 0, "all_reduce", step, float(step), step + 0.1)
        for rank in range(4)
        for step in range(10 if rank == 1 else last + 1)
    ]
    if missed:
        rows += [Row(rank, last + 1 - back, 0, "all_reduce", last + 1, last + 1.0, math.nan) for rank in (0, 2, 3)]
    over = RankState("finished", max(19, last) - back, None, None, end=RankEnd(NOW, 0.0, exit_code=0))
    timings = recorded(0.25, (over, gone(9), over, over))
    return dead_ranks(dataclasses.replace(timings, collectives=collectives(rows, [group])))


def test_a_rank_lived_as_long_as_others_finished_collectives_with_it() -> None:
    """Its recording stopped before it did, as at a full disk."""
    found = went_on(19, missed=False)
    assert not found.culprits
    assert [(note.kind, note.ranks) for note in found.notes] == [("lacks", (1,))]
    assert "stops in step 9, and others finished in step 19 with it" in found.notes[0].text


@pytest.mark.parametrize(("last", "missed"), [(19, True), (15, False), (15, True)])
def test_a_rank_that_others_missed_or_did_without_died(last: int, missed: bool) -> None:
    assert first(went_on(last, missed)) == [1]


def test_steps_that_go_back_to_a_checkpoint_are_no_sign_of_a_death() -> None:
    """The others go on to step 19, back to step 10, and end in step 14: rank 1 was with them all the time."""
    found = went_on(24, missed=False, back=10)
    assert not found.culprits and [(note.kind, note.ranks) for note in found.notes] == [("lacks", (1,))]
    assert first(went_on(24, missed=True, back=10)) == [1], "they missed it after that"
