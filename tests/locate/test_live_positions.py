"""Which ranks of a live job do the same work: from the facts of their rank files to the verdict."""

from typing import Any

import numpy as np
import pytest
from support.timings import job

from laggard.locate.job_timings import FIRST_PHASE, STEP_COLUMNS, WAITED, JobTimings, live_timings
from laggard.locate.positions import LiveLayout
from laggard.locate.verdict import locate
from laggard.model import Verdict
from laggard.rankfile.fact_names import GROUPS, member_runs
from laggard.wire.ranks import RankRow

RANKS, STAGES = 16, 4


def _groups(*groups: tuple[str, tuple[int, ...]]) -> dict[str, Any]:
    return {GROUPS: {f"{role}:{members[0]}-{members[-1]}": member_runs(members) for role, members in groups}}


def _pipeline_facts(rank: int) -> dict[str, Any]:
    """Of four stages with four replicas each: ranks 0 to 3 are the first stage."""
    stage, replica = divmod(rank, RANKS // STAGES)
    return _groups(
        ("dp", tuple(range(4 * stage, 4 * stage + 4))), ("pp", tuple(replica + 4 * each for each in range(STAGES)))
    )


def _rows(make: Any, facts: dict[int, dict[str, Any]], ranks: int = RANKS) -> dict[int, RankRow]:
    return {rank: make.rank_row(rank, ranks, facts=facts.get(rank, {})) for rank in range(ranks)}


def _live(made: JobTimings, rows: dict[int, RankRow]) -> JobTimings:
    tables = {}
    for rank in range(len(made.ranks)):
        table = np.zeros((len(made.steps), STEP_COLUMNS))
        begins = np.concatenate(([0.0], np.cumsum(made.step_seconds[:, rank])))
        table[:, 0], table[:, 1], table[:, 2] = made.steps, begins[:-1], begins[1:]
        table[:, WAITED], table[:, FIRST_PHASE:] = made.waited_seconds[:, rank], made.phase_seconds[:, rank]
        tables[rank] = table
    return live_timings("job", len(rows), tables, rows, {}, {})


LOAD = np.repeat((1.3, 1.0, 1.0, 1.0), 4)
"""By rank: the first stage has more layers."""


def test_a_live_pipeline_with_an_uneven_stage_has_no_culprit(make: Any) -> None:
    facts = {rank: _pipeline_facts(rank) for rank in range(RANKS)}
    assert locate(_live(job(RANKS, 40, load=LOAD, per_node=4), _rows(make, facts))).verdict is Verdict.OK
    undeclared = locate(_live(job(RANKS, 128, load=LOAD, per_node=4), _rows(make, {})))
    assert undeclared.culprits, "without the groups the stage looks slow, so that the test shows something"


def test_a_slow_rank_of_a_live_pipeline_is_named(make: Any) -> None:
    facts = {rank: _pipeline_facts(rank) for rank in range(RANKS)}
    found = locate(_live(job(RANKS, 40, [([6], 0.2)], load=LOAD, per_node=4), _rows(make, facts)))
    assert [culprit.ranks for culprit in found.culprits] == [(6,)]


def test_stages_that_nobody_declared_are_known_by_whom_they_exchange_with(make: Any) -> None:
    facts = {0: _groups(("pp", (0, 1))), 1: _groups(("pp", (0, 1)), ("pp", (1, 2))), 2: _groups(("pp", (1, 2)))}
    facts |= {3: _groups(("pp", (3, 4))), 4: _groups(("pp", (3, 4)), ("pp", (4, 5))), 5: _groups(("pp", (4, 5)))}
    positions = LiveLayout(_rows(make, facts, 6)).positions.positions
    assert positions is not None and positions.tolist() == [0, 1, 2, 0, 1, 2]


def test_replicas_alone_are_all_peers(make: Any) -> None:
    rows = _rows(make, {rank: _groups(("dp", tuple(range(8)))) for rank in range(8)}, 8)
    assert LiveLayout(rows).positions.positions is None and LiveLayout({}).positions.positions is None


@pytest.mark.parametrize(
    "value",
    [None, [], "pp", 7, {"pp": None}, {"pp:0-1": [5, 2, 1]}, {"pp:0-9": [0, 10**9, 1]}, {"pp:0-1": [[0, 1, 1]]},
     {str(number): [0, 2, 1] for number in range(1000)}],
)  # fmt: skip
def test_a_rank_that_lies_about_its_groups_changes_nothing(make: Any, value: Any) -> None:
    assert LiveLayout(_rows(make, {0: {GROUPS: value}}, 2)).positions.positions is None


def test_work_that_differs_by_the_place_in_groups_accuses_nobody_in_a_live_job(make: Any) -> None:
    """As context parallelism that gives the later part of a sequence more to do, in groups that say nothing of that."""
    made = job(RANKS, 80, [(range(1, RANKS, 2), 0.15)])
    facts = {rank: _groups(("other", (rank - rank % 2, rank - rank % 2 + 1))) for rank in range(RANKS)}
    location = locate(_live(made, _rows(make, facts)))
    assert location.culprits == () and [note.kind for note in location.notes] == ["uneven_work"]
    assert location.notes[0].ranks == tuple(range(1, RANKS, 2))
