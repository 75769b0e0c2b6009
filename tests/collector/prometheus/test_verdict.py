"""What is made of a Prometheus' answers: which job is meant, who is worth a second look, and who stands still."""

import numpy as np
import pytest

from laggard.collector.jobs.snapshot import unknown_location
from laggard.collector.prometheus import queries
from laggard.collector.prometheus.choice import MAX_WIDER, Few, few_ranks
from laggard.collector.prometheus.client import Labels, Series
from laggard.collector.prometheus.counters import (
    INTERVALS,
    MAX_CANDIDATES,
    MAX_UNSCREENED_RANKS,
    PEER_RANKS,
    Counters,
    screened,
)
from laggard.collector.prometheus.watch import snapshot_of
from laggard.model import JobKey

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


def test_a_job_of_which_nobody_tells_has_not_ended() -> None:
    """As after Prometheus itself was away: its incidents do not end, to begin again a minute later."""
    assert not snapshot_of(JobKey(1, "a"), unknown_location("ended", "no process of the job runs"), 1.0).running
    assert snapshot_of(JobKey(1, "a"), unknown_location("silent_ranks", "no longer scraped"), 1.0).running
    old = snapshot_of(JobKey(1, "a"), unknown_location("stale", "the newest sample is 70 s old"), 1.0)
    assert old.running and not old.told, "nobody tells of it, and it is not known to have ended"


NOW = 1_000_000.0
STEP_SECONDS = 0.25


class Scraped:
    """A store with samples of eight ranks at these times, whose steps take STEP seconds."""

    def __init__(self, times: np.ndarray) -> None:
        self.times = times

    def at(self, query: str, moment: float) -> Series:
        steps = (self.times - self.times[0]) // STEP_SECONDS
        seconds = queries.STEP_SECONDS in query
        labels = [Labels(rank=str(rank), group="dp") for rank in range(8)]
        values = np.tile(steps * STEP_SECONDS if seconds else steps, 8)
        return Series(labels, np.full(8, len(self.times)), np.tile(self.times, 8), values)


def few(times: np.ndarray) -> Few:
    found = few_ranks(Scraped(times), queries.Job("train"), NOW)  # type: ignore[arg-type]
    assert isinstance(found, Few)
    return found


def filled(times: np.ndarray, apart: float) -> int:
    """In how many of the intervals that a verdict compares there is a sample."""
    return int(np.count_nonzero(np.histogram(times, NOW - apart * np.arange(INTERVALS, -1, -1))[0]))


@pytest.mark.parametrize("interval", [1.0, 15.0])
def test_scrapes_that_come_in_time_are_an_interval_each(interval: float) -> None:
    found = few(NOW - 0.4 * interval - interval * np.arange(40)[::-1])
    assert (found.interval, found.apart) == (interval, interval) and found.step == pytest.approx(STEP_SECONDS)


def test_where_scrapes_come_late_moments_are_farther_apart() -> None:
    """As on a busy machine, where one in four of those each second is left out."""
    numbers = np.arange(60)[::-1]
    times = NOW - 0.4 - numbers[numbers % 4 != 2]
    assert filled(times, 1.0) < INTERVALS - 1
    found = few(times)
    assert (found.interval, found.apart) == (1.0, 2.0) and filled(times, found.apart) == INTERVALS
    assert found.apart <= MAX_WIDER * found.interval


def test_after_a_store_was_away_moments_are_no_farther_apart() -> None:
    """What it has from before does not make it sooner that there are samples enough."""
    times = NOW - np.concatenate((np.arange(30.0, 90.0)[::-1], np.arange(0.2, 4.0)[::-1]))
    assert few(times).apart == 1.0
