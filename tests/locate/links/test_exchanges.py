"""A way between two machines that is slow in exchanges: it holds up the members on these two, and no other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pytest
from support.collective_rows import Row, collectives, of, only
from support.timings import job
from support.trained_groups import ACROSS, PER_NODE, RANKS, STEPS

from laggard.kit.constants import PHASES
from laggard.locate.collectives import ProcessGroup
from laggard.locate.job_timings import JobTimings
from laggard.locate.verdict import locate
from laggard.model import Culprit

FAST, SLOW, A_STEP = 0.0005, 0.01, 2
NOBODY: frozenset[int] = frozenset()


def exchanging(
    held_up: frozenset[int],
    late: frozenset[int] = NOBODY,
    early: frozenset[int] = NOBODY,
    one_by_one: Mapping[int, float] = MappingProxyType({}),
    more_work: int = -1,
) -> JobTimings:
    """A job with two exchanges across its machines in each step. The members on the machines `held_up` are done later,
    and those of `one_by_one` by so many seconds; those on `late` ones come later by as much, after more work, as the
    rank `more_work` does, and those on `early` ones sooner, after less."""
    generator = np.random.default_rng(1)
    offset = generator.uniform(-1000, 1000, RANKS)
    timings = job(RANKS, STEPS, per_node=PER_NODE, seed=1)
    lag = np.array([SLOW * ((rank // PER_NODE in late) - (rank // PER_NODE in early)) for rank in range(RANKS)])
    lag[more_work:][:1] += SLOW * (more_work >= 0)
    timings.phase_seconds[:, :, PHASES.index("forward")] += A_STEP * lag
    timings.waited_seconds[:] += A_STEP * (lag.max() - lag)
    longest = max(one_by_one.values(), default=SLOW * bool(held_up))
    timings.step_seconds[:] += A_STEP * (lag.max() + longest)
    timings.waited_seconds[:] += A_STEP * longest
    rows: list[Row] = []
    for step in timings.steps.tolist():
        for turn in range(A_STEP):
            for number, members in enumerate(ACROSS):
                arrival = 10.0 * step + turn + generator.uniform(0, 0.004, len(members)) + lag[list(members)]
                for place, rank in enumerate(members):
                    over = arrival.max() + FAST + SLOW * (rank // PER_NODE in held_up) + one_by_one.get(rank, 0.0)
                    times = arrival[place] + offset[rank], over + offset[rank]
                    rows.append(Row(rank, step, number, "all_to_all", A_STEP * step + turn, *times))
    groups = [ProcessGroup(f"ep:{number}", "ep", members) for number, members in enumerate(ACROSS)]
    return dataclasses.replace(timings, collectives=collectives(rows, groups))


def links(timings: JobTimings) -> list[Culprit]:
    return [culprit for culprit in locate(timings).culprits if culprit.kind == "slow_link"]


def test_the_way_between_the_two_machines_is_named() -> None:
    (culprit,) = links(exchanging(frozenset((1, 3))))
    assert culprit.link == ({"node": "n1"}, {"node": "n3"})
    assert culprit.recoverable_ratio is None and culprit.confidence <= 0.5
    assert any(line.startswith("exchanges (all_to_all) take ranks 4-7 and 12-15 21 ms") for line in culprit.evidence)


@pytest.mark.parametrize(
    "timings",
    [
        pytest.param(exchanging(NOBODY), id="even"),
        pytest.param(exchanging(frozenset(range(4))), id="all are held up: an adapter, or the network"),
        pytest.param(exchanging(NOBODY, late=frozenset((0, 2))), id="the others wait for two slow machines"),
        pytest.param(exchanging(NOBODY, early=frozenset((1, 3))), id="two machines have less to do, and wait"),
    ],
)
def test_what_only_waits_for_others_is_no_slow_way(timings: JobTimings) -> None:
    assert not links(timings)


RING = ACROSS[1]
BEHIND_IT = dict.fromkeys(RING, SLOW) | {RING[2]: 3 * SLOW}
"""All members of a ring are held up by the slow adapter of one, and that one the most."""


def test_of_a_slow_ring_the_adapter_is_named_that_exchanges_hold_up_the_most() -> None:
    (culprit,) = links(exchanging(NOBODY, one_by_one=BEHIND_IT))
    assert culprit.ranks == (RING[2],) and culprit.node == f"n{RING[2] // PER_NODE}"
    assert any("exchanges hold up rank" in line for line in culprit.evidence)


@pytest.mark.parametrize(
    "timings",
    [
        pytest.param(exchanging(NOBODY, one_by_one=dict.fromkeys(RING, SLOW)), id="all are held up alike"),
        pytest.param(exchanging(NOBODY, one_by_one=BEHIND_IT | {RING[0]: 3 * SLOW}), id="two are held up the most"),
        pytest.param(exchanging(NOBODY, one_by_one=BEHIND_IT, more_work=RING[2]), id="it has more to do: hot experts"),
    ],
)
def test_a_slow_ring_stays_whole_where_exchanges_do_not_tell(timings: JobTimings) -> None:
    assert [culprit.ranks for culprit in links(timings)] == [RING]


def test_few_exchanges_tell_nothing() -> None:
    timings = exchanging(frozenset((1, 3)))
    assert not links(only(timings, np.isin(of(timings).step, timings.steps[:20])))
