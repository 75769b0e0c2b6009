"""Who failed in the last round is asked early in the next, and not all of them at once."""

from __future__ import annotations

import pytest

from laggard.collector.scrape.connections import EARLY_SHARE, in_turn


@pytest.mark.parametrize(("failed", "others"), [(0, 0), (0, 9), (9, 0), (1, 5), (30, 4000), (2000, 2000), (9, 4)])
def test_everybody_is_asked_once_and_who_failed_early(failed: int, others: int) -> None:
    silent, answering = range(-failed, 0), range(others)
    order = list(in_turn(silent, answering))
    assert sorted(order) == [*silent, *answering]
    assert [each for each in order if each >= 0] == list(answering), "the others keep their order"
    places = [place for place, each in enumerate(order) if each < 0]
    if 2 <= failed <= EARLY_SHARE * others:
        assert places[-1] <= EARLY_SHARE * others + failed
        assert all(after - before > 1 for before, after in zip(places, places[1:], strict=False))
