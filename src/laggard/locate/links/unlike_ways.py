"""Tells of two equal channels of which one takes longer, where that is too little to accuse a link. Pure.

Two ways of one kind may differ by design: one crosses a switch more. With a third equal one the slow one is told; with
two it is not, and where the difference holds the job up nobody can call it healthy either.
"""

from __future__ import annotations

from typing import Final

from laggard.locate.collectives import Collectives
from laggard.locate.job_timings import JobTimings
from laggard.locate.links.later_links import SLOW_TRANSFERS
from laggard.locate.links.slow_links import (
    MIN_CHANNELS,
    SlowChannel,
    channel_name,
    longer_channels,
    saved_share,
    with_links,
)
from laggard.locate.links.transfers import channels_and_categories
from laggard.locate.slow.medians import others_median
from laggard.locate.slow.steps import Steps
from laggard.model import MAX_NAMED_RANKS, Note
from laggard.text.words import seconds_text

UNLIKE_RATIO: Final = 1.25
"""The ratio of two equal channels' times from which on they are unlike."""

MIN_SAVED: Final = 0.03
"""The share of the step that would be saved if the slower took no longer than the other, from which on it is told."""


def unlike_ways(timings: JobTimings, collectives: Collectives, steps: Steps) -> tuple[Note, ...]:
    """The note that tells of them; none where no such difference costs the job MIN_SAVED of its steps."""
    channels, categories = channels_and_categories(timings, collectives, steps.numbers)
    found: dict[int, tuple[SlowChannel, int]] = {}
    for category in with_links(categories, channels, timings):
        if not 1 < len(category.channels) < MIN_CHANNELS:
            continue
        equals = others_median(category.most)
        for channel, slow in longer_channels(category, category.least - equals, equals, steps, pair_ratio=UNLIKE_RATIO):
            if channel not in found or found[channel][0].slowdown.excess < slow.slowdown.excess:
                other = next(each for each in category.channels if each != channel)
                found[channel] = slow, other
    if not found:
        return ()
    slower = {channel: slow for channel, (slow, _) in found.items()}
    since = min(each.slowdown.since for each in slower.values())
    saved = saved_share(timings, steps, channels, slower, since)
    if saved is None or saved < MIN_SAVED:
        return ()
    told = "; ".join(
        f"{channel_name(channels[channel], timings)}: transfers take {seconds_text(slow.own)} a step, {slow.ratio:.1f}"
        f" times as long as those of {channel_name(channels[other], timings)}, its only equal"
        for channel, (slow, other) in sorted(found.items(), key=lambda it: -it[1][0].slowdown.excess)[:3]
    )
    text = f"{told}: a slow link, or a longer way by design; as fast as that, steps would take {100 * saved:.0f} % less"
    shared = set.intersection(*(set(channels[channel].columns) for channel in found))
    ranks = sorted(int(timings.ranks[column]) for column in shared)
    return (Note(SLOW_TRANSFERS, text, ranks=tuple(ranks[:MAX_NAMED_RANKS])),)
