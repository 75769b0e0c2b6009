"""A layout is made anew where ranks come, go, or tell of other groups, and only there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import structs

from laggard.collector.jobs.job import KeptLayout
from laggard.locate.positions import LiveLayout
from laggard.rankfile.fact_names import GROUPS, member_runs
from laggard.wire.ranks import RankRow


def _rows(make: Any, stages: Mapping[int, int], facts: Mapping[str, Any] | None = None) -> dict[int, RankRow]:
    """Ranks by the stage of a pipeline that each is in."""
    return {
        rank: make.rank_row(rank, 8, facts={**(facts or {}), GROUPS: _groups(stage)}) for rank, stage in stages.items()
    }


def _groups(stage: int) -> dict[str, Any]:
    """Stage and replica of a rank are where it is in groups of four."""
    return {"dp:x": member_runs(range(4 * stage, 4 * stage + 4)), "pp:x": member_runs(range(8))}


STAGES = {rank: rank // 4 for rank in range(8)}


def _is_as_made_anew(layout: LiveLayout, rows: Mapping[int, RankRow]) -> bool:
    kept, made = layout.positions, LiveLayout(rows).positions
    assert made.classes is not None and made.classes.max() > 0
    return [None if each is None else each.tolist() for each in kept] == [
        None if each is None else each.tolist() for each in made
    ]


def test_a_layout_is_kept_while_the_ranks_tell_the_same_groups(make: Any) -> None:
    kept = KeptLayout()
    first = kept.of(_rows(make, STAGES, {"busy_seconds": 1.0}))
    later = {rank: structs.replace(row, steps=99) for rank, row in _rows(make, STAGES, {"busy_seconds": 2.0}).items()}
    assert kept.of(later) is first and _is_as_made_anew(first, later)


@pytest.mark.parametrize("ranks", [range(7), range(9)])
def test_a_rank_that_comes_or_goes_changes_it(make: Any, ranks: range) -> None:
    kept = KeptLayout()
    first = kept.of(_rows(make, STAGES))
    rows = _rows(make, {rank: rank // 4 for rank in ranks if rank < 8})
    rows |= {8: make.rank_row(8, 9)} if 8 in ranks else {}
    assert kept.of(rows) is not first and _is_as_made_anew(kept.of(rows), rows)


@pytest.mark.parametrize(
    "groups",
    [
        {"pp:x": [0, 4, 1], "dp:x": [4, 4, 1]},
        {"dp:x": [0, 4, 1], "pp:x": [0, True, 1]},
        {"dp:x": [0, 4, 1], "pp:x": [0, 8.0, 1]},
        {"dp:x": [0, 4, 1]},
        {},
        "none",
    ],
)
def test_a_rank_that_tells_of_other_groups_changes_it(make: Any, groups: Any) -> None:
    rows, kept = _rows(make, STAGES), KeptLayout()
    first = kept.of(rows)
    changed = {**rows, 0: structs.replace(rows[0], facts={GROUPS: groups})}
    assert kept.of(changed) is not first and _is_as_made_anew(kept.of(changed), changed)
    assert _is_as_made_anew(kept.of(rows), rows)


def test_groups_that_are_nested_as_deeply_as_can_be_keep_nothing(make: Any) -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    rows = _rows(make, STAGES)
    rows[0] = structs.replace(rows[0], facts={GROUPS: {"pp:x": nested}})
    kept = KeptLayout()
    assert kept.of(rows) is not kept.of(rows)
