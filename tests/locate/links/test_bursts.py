"""Links that let a burst of messages through and hold up what follows, as a token bucket does."""

from __future__ import annotations

import numpy as np
import pytest
from support.collective_rows import Row, collectives
from support.timings import job

from laggard.locate.collectives import ProcessGroup
from laggard.locate.job_timings import JobTimings
from laggard.locate.verdict import locate
from laggard.model import Culprit, Verdict

STEPS = 60
PAIRS, MESSAGES, SECONDS, HELD_UP, BURST = 8, 6, 0.002, 0.016, 2
"""Of each step; a message takes SECONDS, and HELD_UP where BURST others went the same way before it."""


def pipeline(limited: frozenset[tuple[int, int]] = frozenset(), apart: float = 0.02, dense: int = 0) -> JobTimings:
    """Pairs of neighbouring machines, on clocks up to 1000 s apart, that send to each other `apart` seconds one after
    the other; the first `dense` pairs send all messages of a step at once, so that each waits for the one before it.
    From the first to the second of each of `limited` there is a token bucket."""
    generator = np.random.default_rng(0)
    offset = generator.uniform(-1000, 1000, 2 * PAIRS)
    rows: list[Row] = []
    for step, pair, back in np.ndindex(STEPS, PAIRS, 2):
        source, target = (2 * pair + back, 2 * pair + 1 - back)
        over = 0.0
        for number in range(MESSAGES):
            sent = 10.0 * step + 0.4 * back + (0.0 if pair < dense else apart * number)
            posted = max(over, 10.0 * step - 0.01)
            held_up = (source, target) in limited and number >= BURST
            over = max(sent, over) + (HELD_UP if held_up else SECONDS) * generator.normal(1, 0.02)
            for rank, peer, op, begin, waited in (
                (source, target, "send", sent, over - sent),
                (target, source, "recv", posted, over - posted),
            ):
                times = begin + offset[rank], over + offset[rank], waited
                rows.append(Row(rank, step + 2, 0, op, MESSAGES * step + number, *times, peer=peer))
    return job(2 * PAIRS, STEPS, per_node=1, collectives=collectives(rows, [ProcessGroup("pp", "pp", ())]))


def culprits(timings: JobTimings) -> list[Culprit]:
    return [each for each in locate(timings).culprits if each.kind == "slow_link"]


@pytest.mark.parametrize("ways", [[(4, 5)], [(5, 4)], [(4, 5), (5, 4)]])
@pytest.mark.parametrize("dense", [0, 2, 8])
def test_the_limited_link_is_named(ways: list[tuple[int, int]], dense: int) -> None:
    (culprit,) = culprits(pipeline(frozenset(ways), dense=dense))
    assert set(culprit.ranks) <= {4, 5} and (culprit.recoverable_ratio or 0.0) > 0.03


@pytest.mark.parametrize("dense", [0, 1, 4, 7, 8])
def test_messages_that_wait_for_those_before_them_accuse_nobody(dense: int) -> None:
    location = locate(pipeline(dense=dense))
    assert location.verdict is Verdict.OK and location.culprits == ()
