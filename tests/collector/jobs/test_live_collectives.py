"""A slow link of a live job: whose collectives are asked for, and the verdict from what the agents send."""

from typing import Any

import numpy as np
import pytest
from support.timings import job

from laggard.collector.jobs.live_collectives import MAX_RANKS, link_suspects, with_collectives
from laggard.locate.job_timings import JobTimings
from laggard.locate.verdict import locate
from laggard.model import Verdict
from laggard.rankfile.fact_names import GROUPS, member_runs
from laggard.wire.ranks import CollectiveLane, CollectiveRow, RankCollectives, RankRow

PER_NODE, STEPS = 4, 40
TRANSFER = {"tp": 0.004, "dp": 0.02}


def _groups(ranks: int) -> dict[str, tuple[int, ...]]:
    """Tensor groups within machines, data-parallel groups of four machines each."""
    tensor = {f"tp:{first}-{first + 3}": tuple(range(first, first + PER_NODE)) for first in range(0, ranks, PER_NODE)}
    data = {
        f"dp:{first + local}-{first + local + 12}/4": tuple(range(first + local, first + 16, PER_NODE))
        for first in range(0, ranks, 16)
        for local in range(PER_NODE)
    }
    return {**tensor, **data}


def _rows(make: Any, ranks: int, **changes: Any) -> dict[int, RankRow]:
    known = _groups(ranks)
    facts = {
        rank: {GROUPS: {name: member_runs(members) for name, members in known.items() if rank in members}}
        for rank in range(ranks)
    }
    return {rank: make.rank_row(rank, ranks, facts=facts[rank], **changes) for rank in range(ranks)}


def _sent(ranks: int, slow: str | None, steps: range, seed: int = 0) -> dict[int, RankCollectives]:
    """What the ranks' agents send, by clocks that have nothing in common. Transfers of the group `slow` take four times
    as long."""
    generator = np.random.default_rng(seed)
    rows: dict[int, list[CollectiveRow]] = {rank: [] for rank in range(ranks)}
    lanes: dict[int, list[CollectiveLane]] = {rank: [] for rank in range(ranks)}
    offset = generator.uniform(1, 1000, ranks)
    for name, members in _groups(ranks).items():
        role = name.partition(":")[0]
        for rank in members:
            lanes[rank].append(CollectiveLane("all_reduce", role, name, -1))
        for step in steps:
            took = TRANSFER[role] * (4.0 if name == slow else 1.0) * generator.normal(1, 0.02)
            came = 10.0 * step + generator.uniform(0, 0.02, len(members))
            for place, rank in enumerate(members):
                begin, end = came[place] + offset[rank], came.max() + took + offset[rank]
                rows[rank].append(CollectiveRow(step, len(lanes[rank]) - 1, step, begin, end, end - begin, 1 << 20))
    return {rank: RankCollectives(rank, tuple(lanes[rank]), tuple(rows[rank])) for rank in range(ranks)}


def _timings(ranks: int, **options: Any) -> JobTimings:
    return job(ranks, STEPS, per_node=PER_NODE, live=True, **options)


def test_a_slow_link_of_a_live_job_is_named(make: Any) -> None:
    rows, timings = _rows(make, 32), _timings(32)
    assert link_suspects(timings, rows) == tuple(range(32))
    found = locate(with_collectives(timings, _sent(32, "dp:1-13/4", range(20, 50)), rows))
    assert [(each.kind, each.group, each.ranks) for each in found.culprits] == [
        ("slow_link", "dp:1-13/4", (1, 5, 9, 13))
    ]
    assert found.culprits[0].advice.endswith(" -w n0,n1,n2,n3,n4,n5 -N6 --ntasks-per-node=1 laggard ring --pairs")
    healthy = locate(with_collectives(timings, _sent(32, None, range(20, 50)), rows))
    assert healthy.verdict is Verdict.OK and not healthy.culprits


def test_of_a_large_job_the_suspect_group_and_its_equals_are_asked(make: Any) -> None:
    ranks = 256
    rows, timings = _rows(make, ranks), _timings(ranks)
    slow = "dp:18-30/4"
    timings.waited_seconds[:, [18, 22, 26, 30]] += 0.06
    asked = link_suspects(timings, rows)
    assert {18, 22, 26, 30} <= set(asked) and 8 <= len(asked) <= MAX_RANKS
    sent = {rank: it for rank, it in _sent(ranks, slow, range(20, 50)).items() if rank in asked}
    found = locate(with_collectives(timings, sent, rows))
    assert [(each.kind, each.ranks) for each in found.culprits] == [("slow_link", (18, 22, 26, 30))]


def test_where_transfers_take_nothing_nobody_is_asked(make: Any) -> None:
    timings = _timings(32)
    timings.waited_seconds[:, 3] = 0.0
    assert link_suspects(timings, _rows(make, 32)) == ()
    assert link_suspects(job(32, STEPS, per_node=32, live=True), _rows(make, 32)) == (), "no network between machines"


@pytest.mark.parametrize("late", range(3))
def test_ranks_that_are_asked_at_different_moments_accuse_nobody(make: Any, late: int) -> None:
    """The ring of one reaches further than that of another: nobody is missing from a collective."""
    rows, sent = _rows(make, 32), _sent(32, None, range(20, 50))
    for rank in range(0, 32, 3):
        sent[rank] = RankCollectives(rank, sent[rank].lanes, tuple(it for it in sent[rank].rows if it.step < 44 + late))
    timings = with_collectives(_timings(32), sent, rows)
    assert timings.collectives is not None and timings.collectives.step.max() == 42 + late
    assert locate(timings).verdict is Verdict.OK


def test_what_is_not_of_the_job_or_too_little_is_no_collective(make: Any) -> None:
    rows, timings = _rows(make, 32), _timings(32)
    sent = _sent(32, None, range(20, 50))
    assert with_collectives(timings, {}, rows) is timings
    assert with_collectives(timings, {0: sent[0]}, rows) is timings
    assert with_collectives(timings, {900: sent[0], 901: sent[1]}, rows) is timings
    assert with_collectives(timings, {rank: RankCollectives(rank, (), ()) for rank in range(32)}, rows) is timings
