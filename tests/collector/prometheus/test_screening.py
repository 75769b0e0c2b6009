"""Which ranks of a large job are looked at closely."""

from __future__ import annotations

import numpy as np

from laggard.collector.prometheus.counters import Counters
from laggard.collector.prometheus.suspects import MAX_CANDIDATES, MAX_UNSCREENED_RANKS, PEER_RANKS, screened

RANKS = 16_384
STEP = 0.2


def counters(busy: np.ndarray, ranks: int = RANKS) -> Counters:
    """Of ranks, eight on a machine, that are `busy` [2, R] seconds a step in two intervals of 100 steps."""
    grown = np.concatenate((np.zeros((1, ranks)), np.cumsum(100 * busy, axis=0)))
    steps = np.array([[0.0], [100.0], [200.0]]) * np.ones((1, ranks))
    few = steps[:, :4]
    machines = tuple(f"n{rank // 8}" for rank in range(ranks))
    return Counters(np.arange(ranks), machines, steps, grown, 0 * grown, None, few * STEP, few)


def noisy(ranks: int = RANKS, deviation: float = 0.0005) -> np.ndarray:
    return 0.15 + deviation * np.random.default_rng(0).standard_normal((2, ranks))


def test_a_rank_that_stands_out_comes_with_its_machine_and_with_others() -> None:
    busy = noisy()
    busy[1, 9001] += 0.03 * STEP
    found = screened(counters(busy))
    assert set(range(9000, 9008)) <= set(found) and PEER_RANKS <= len(found) < PEER_RANKS + 32
    assert found == sorted(set(found))


def test_all_of_a_small_job() -> None:
    assert screened(counters(noisy(MAX_UNSCREENED_RANKS), MAX_UNSCREENED_RANKS)) == list(range(MAX_UNSCREENED_RANKS))


def test_where_all_differ_the_slowest_are_looked_at() -> None:
    busy = noisy(deviation=0.05)
    found = screened(counters(busy))
    assert int(busy.max(axis=0).argmax()) in found and len(found) <= 2 * MAX_CANDIDATES + PEER_RANKS + 1


def test_ranks_without_counters_are_passed_over() -> None:
    busy = noisy()
    busy[:, 5] = np.nan
    busy[1, 100] += 0.01
    assert 100 in screened(counters(busy))
    assert len(screened(counters(np.nan * busy))) >= PEER_RANKS
