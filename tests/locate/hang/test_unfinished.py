"""Hangs in a recording: who never came, who came and never finished, and who only waits, through groups and pairs."""

import dataclasses
from collections.abc import Iterable

import numpy as np
import pytest
from support.collective_rows import Row, changed, collectives, of
from support.timings import job

from laggard.locate.collectives import ProcessGroup
from laggard.locate.job_timings import JobTimings, RankState
from laggard.locate.verdict import locate
from laggard.model import Location, Verdict
from laggard.wire.ranks import InFlight

RANKS, PER_NODE, STEPS = 16, 4, 20
WORLD = ProcessGroup("world:0-15", "world", tuple(range(RANKS)))
TENSOR = [ProcessGroup(f"tp:{node}", "tp", tuple(range(4 * node, 4 * node + 4))) for node in range(4)]
GROUPS = (WORLD, *TENSOR)
LAST = STEPS + 2  # the step in which it hangs

Entry = tuple[int, int, str, int, int, bool]  # rank, group, op, seq, peer, finished


def recorded(last: Iterable[Entry]) -> JobTimings:
    """Twenty steps in which all went well, on clocks far apart, and what was entered in the one after them."""
    offset = np.random.default_rng(0).uniform(-1000, 1000, RANKS)

    def row(step: int, rank: int, group: int, op: str, seq: int, peer: int, finished: bool) -> Row:
        start = 10.0 * step + group + offset[rank]
        return Row(rank, step, group, op, seq, start, start + 0.02 if finished else np.nan, peer=peer)

    rows = []
    for step in range(STEPS):
        for number, group in enumerate(GROUPS):
            rows += [row(step + 2, rank, number, "all_reduce", step, -1, True) for rank in group.ranks]
    rows += [row(LAST, *entry) for entry in last]
    return job(RANKS, STEPS, per_node=PER_NODE, collectives=collectives(rows, GROUPS))


def entered(ranks: Iterable[int], group: int, finished: bool = False) -> list[Entry]:
    return [(rank, group, "all_reduce", STEPS, -1, finished) for rank in ranks]


def hung(location: Location) -> list[tuple[int, ...]]:
    assert location.verdict is Verdict.FAIL and {culprit.kind for culprit in location.culprits} == {"hung"}
    return [culprit.ranks for culprit in location.culprits]


def test_who_never_came_is_named_and_those_that_wait_are_its_victims() -> None:
    location = locate(recorded(entered((rank for rank in range(RANKS) if rank != 6), 0)))
    assert hung(location) == [(6,)]
    (culprit,) = location.culprits
    assert culprit.since_step == LAST and culprit.victims == tuple(rank for rank in range(RANKS) if rank != 6)
    where = "all_reduce number 20 of world:0-15"
    assert culprit.evidence == (f"never came to {where}, in which ranks 0-5 and 7-15 stayed",)


def test_a_hang_is_found_where_no_collective_tells_its_step() -> None:
    """What rank 0 began in the first step and never waited for is no hang."""
    others = (rank for rank in range(RANKS) if rank != 6)
    timings = recorded(entered(others, 0))
    end = of(timings).end.copy()
    end[0] = np.nan
    assert hung(locate(changed(timings, step=np.full(len(end), -1), end=end))) == [(6,)]


def test_what_nobody_waits_for_is_no_hang_where_later_ones_were_finished() -> None:
    """DDP's join() begins an all_reduce of its own in each step, whose end nobody waits for. The job was killed, and
    rank 6's recording ends three steps before the others'."""
    last: list[Entry] = []
    for late in range(4):
        ranks = [rank for rank in range(RANKS) if rank != 6 or late == 0]
        last += [(rank, 0, "all_reduce", STEPS + 2 * late, -1, False) for rank in ranks]
        last += [(rank, 0, "all_reduce", STEPS + 2 * late + 1, -1, True) for rank in ranks]
    location = locate(recorded(last))
    assert not location.culprits, location.culprits


def test_to_what_another_finished_all_came_whatever_is_recorded_of_them() -> None:
    """The recording of rank 6 ends in an all_reduce that others finished, as they did the next."""
    others = [rank for rank in range(RANKS) if rank != 6]
    later = [(rank, 0, "all_reduce", STEPS + 1, -1, True) for rank in others]
    location = locate(recorded([*entered(others, 0, finished=True), *entered([6], 0), *later]))
    assert location.culprits == (), location.culprits


def test_who_never_came_is_named_beside_what_nobody_waits_for() -> None:
    others = [rank for rank in range(RANKS) if rank != 6]
    unwaited = entered(range(RANKS), 0)
    after = [(rank, 0, "all_reduce", STEPS + 1, -1, True) for rank in range(RANKS)]
    stuck = [(rank, 0, "all_reduce", STEPS + 2, -1, False) for rank in others]
    location = locate(recorded(unwaited + after + stuck))
    assert hung(location) == [(6,)]
    assert location.culprits[0].evidence[0].startswith("never came to all_reduce number 22 of")


def test_through_nested_groups_the_one_at_the_root_is_named() -> None:
    """Rank 6 never came to its tensor group; its mates there never came to the world's collective."""
    last = entered((4, 5, 7), 2) + entered((*range(4), *range(8, 16)), 0)
    assert hung(locate(recorded(last))) == [(6,)]


def test_who_came_and_never_finished_what_the_others_did_is_named() -> None:
    """Rank 6's device stays in the collective of the tensor group; the others wait for it in the next one."""
    last = [*entered((4, 5, 7), 2, finished=True), *entered((6,), 2)]
    location = locate(recorded(last + entered((rank for rank in range(RANKS) if rank != 6), 0)))
    assert hung(location) == [(6,)]
    assert location.culprits[0].phase == "collective"
    assert location.culprits[0].evidence[0] == (
        "came to all_reduce number 20 of tp:1, which ranks 4-5 and 7 finished, and never finished it"
    )


def test_through_a_pipeline_the_stage_that_sends_nothing_is_named() -> None:
    """12 waits to receive from 8, that from 4, and that from 0, which sends nothing; the others wait in the world's."""
    receives: list[Entry] = [(rank, 0, "recv", 0, rank - 4, False) for rank in (12, 8, 4)]
    others = [rank for rank in range(RANKS) if rank not in (0, 4, 8, 12)]
    assert hung(locate(recorded(receives + entered(others, 0)))) == [(0,)]


def test_a_machine_of_which_no_rank_came_is_one_culprit() -> None:
    location = locate(recorded(entered((rank for rank in range(RANKS) if not 8 <= rank < 12), 0)))
    assert hung(location) == [(8, 9, 10, 11)] and location.culprits[0].node == "n2"


def test_where_all_came_and_nobody_finished_those_are_named_together() -> None:
    last = entered((4, 5, 6, 7), 2) + entered((*range(4), *range(8, 16)), 0)
    location = locate(recorded(last))
    assert hung(location) == [(4, 5, 6, 7)]
    assert location.culprits[0].confidence <= 0.5 and location.culprits[0].group == "tp:1"


def test_a_job_that_ended_within_a_collective_of_all_is_not_called_healthy() -> None:
    location = locate(recorded(entered(range(RANKS), 0)))
    assert location.verdict is Verdict.UNKNOWN and location.culprits == ()
    assert [note.kind for note in location.notes] == ["unfinished"]


def test_ranks_that_wait_for_each_other_are_a_deadlock() -> None:
    location = locate(recorded([(0, 0, "recv", 0, 1, False), (1, 0, "recv", 0, 0, False)]))
    assert location.verdict is Verdict.FAIL and [note.kind for note in location.notes] == ["deadlock"]


@pytest.mark.parametrize("step", [3, STEPS + 1])
def test_what_a_rank_left_unfinished_and_went_on_from_is_no_hang(step: int) -> None:
    timings = recorded([])
    whole = of(timings)
    alone = (whole.step == step) & (whole.group == 0) & (whole.column == 5)
    assert locate(changed(timings, end=np.where(alone, np.nan, whole.end))).culprits == ()


def test_who_left_is_named_and_not_those_that_were_ended_while_they_waited_for_it() -> None:
    """Rank 6 has left; the launcher ended the others, of which some were a step behind."""
    timings = recorded(entered((rank for rank in range(RANKS) if rank != 6), 0))
    states = [
        RankState("finished", LAST - 1, None, None)
        if rank == 6
        else RankState("died", LAST - 1 - rank % 2, None, InFlight("all_reduce", WORLD.name, STEPS + 1, 0.0))
        for rank in range(RANKS)
    ]
    assert hung(locate(dataclasses.replace(timings, states=tuple(states)))) == [(6,)]


@pytest.mark.parametrize("killed", [False, True])
def test_steps_that_go_back_to_a_checkpoint_are_no_hang(killed: bool) -> None:
    """All ranks load the checkpoint of step 8 after their last step, in the same processes, and go on to step 12. Then
    they end, or are killed in the next all_reduce of all."""
    timings = recorded([])
    whole = of(timings)
    again = whole.seq >= 16  # the last four of each group
    step = np.where(again, whole.step - 10, whole.step)
    end = np.where(again & (whole.seq == STEPS - 1) & (whole.group == 0) & killed, np.nan, whole.end)
    state = RankState("died" if killed else "finished", int(step[again].max()) - killed, None, None)
    rewound = dataclasses.replace(changed(timings, step=step, end=end), states=(state,) * RANKS)
    location = locate(rewound)
    assert location.culprits == () and not {note.kind for note in location.notes} & {"deadlock", "mismatch", "hang"}
