"""How far apart the moments are at which a verdict reads counters, by when samples came. Prometheus is a stand-in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from laggard.collector.prometheus import queries
from laggard.collector.prometheus.choice import MAX_WIDER, Few, few_ranks
from laggard.collector.prometheus.client import Labels, Series
from laggard.collector.prometheus.counters import INTERVALS

NOW = 1_000_000.0
STEP = 0.25


class Scraped:
    """A store with samples of eight ranks at these times, whose steps take STEP seconds."""

    def __init__(self, times: np.ndarray) -> None:
        self.times = times

    def at(self, query: str, moment: float) -> Iterator[Series]:
        steps = (self.times - self.times[0]) // STEP
        seconds = queries.STEP_SECONDS in query
        labels = [Labels(rank=str(rank), group="dp") for rank in range(8)]
        values = np.tile(steps * STEP if seconds else steps, 8)
        yield Series(labels, np.full(8, len(self.times)), np.tile(self.times, 8), values)


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
    assert (found.interval, found.apart) == (interval, interval) and found.step == pytest.approx(STEP)


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
