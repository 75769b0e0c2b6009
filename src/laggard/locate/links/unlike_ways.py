"""Tells of equal channels of which some take longer, where that is too little to accuse a link. Pure.

Two ways of one kind may differ by design: one crosses a switch more. With a third equal one the slow one is told; with
two it is not, nor where most of many are slower than the fastest. Where the difference holds the job up, nobody can
call it healthy either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from laggard.locate.job_timings import JobTimings
from laggard.locate.links.channels import Channel
from laggard.locate.links.later_links import SLOW_TRANSFERS
from laggard.locate.links.link_culprits import channel_name, saved_share
from laggard.locate.links.slow_channels import MIN_CHANNELS, SlowChannel, longer_channels, slower_than_the_fastest
from laggard.locate.links.slow_links import SlowLinks
from laggard.locate.links.transfers import Category, Ways
from laggard.locate.medians import others_median
from laggard.locate.slow.steps import Steps
from laggard.model import MAX_NAMED_RANKS, Note
from laggard.text.words import seconds_text

UNLIKE_RATIO: Final = 1.25
"""The ratio of two equal channels' times from which on they are unlike."""

MIN_SAVED: Final = 0.03
"""The share of the step that would be saved if the slower took no longer than the other, from which on it is told."""


class _Unlike(NamedTuple):
    """A channel that takes longer than `equals`, in words."""

    slow: SlowChannel
    equals: str


def unlike_ways(timings: JobTimings, ways: Ways, steps: Steps, found: SlowLinks) -> tuple[Note, ...]:
    """The note that tells of them, or of several ways that are slow at once, as `found`; none where no such difference
    costs the job MIN_SAVED of its steps, as far as that is known."""
    if found.several_cost >= MIN_SAVED:
        told = "; ".join(each.evidence[0] for each in found.several)
        ranks = sorted({rank for each in found.several for rank in each.ranks})
        text = f"{told}: a switch that is slow, or longer ways by design"
        return (Note(SLOW_TRANSFERS, text, ranks=tuple(ranks[:MAX_NAMED_RANKS])),)
    channels, categories = ways
    unlike = dict(_of_two(timings, channels, categories, steps)) or {
        channel: _Unlike(slow, "the fastest third of its equals")
        for channel, slow in slower_than_the_fastest(categories, channels, steps, UNLIKE_RATIO).items()
    }
    if not unlike:
        return ()
    slower = {channel: each.slow for channel, each in unlike.items()}
    since = min(each.slowdown.since for each in slower.values())
    saved = saved_share(timings, steps, channels, slower, since)
    if saved is None or saved < MIN_SAVED:
        return ()
    told = "; ".join(
        f"{channel_name(channels[channel], timings)}: transfers take {seconds_text(each.slow.own)} a step,"
        f" {each.slow.ratio:.1f} times as long as those of {each.equals}"
        for channel, each in sorted(unlike.items(), key=lambda it: -it[1].slow.slowdown.excess)[:3]
    )
    text = f"{told}: a slow link, or a longer way by design; as fast as that, steps would take {100 * saved:.0f} % less"
    shared = set.intersection(*(set(channels[channel].columns) for channel in unlike))
    ranks = sorted(int(timings.ranks[column]) for column in shared)
    return (Note(SLOW_TRANSFERS, text, ranks=tuple(ranks[:MAX_NAMED_RANKS])),)


def _of_two(
    timings: JobTimings, channels: Sequence[Channel], categories: Sequence[Category], steps: Steps
) -> Iterator[tuple[int, _Unlike]]:
    """Of each two equal channels the one that takes longer; a channel comes again where it does so in several sizes,
    the most last."""
    found: list[tuple[int, _Unlike]] = []
    for category in categories:
        if not 1 < len(category.channels) < MIN_CHANNELS:
            continue
        equals = others_median(category.most)
        for channel, slow in longer_channels(category, category.least - equals, equals, steps, pair_ratio=UNLIKE_RATIO):
            other = next(each for each in category.channels if each != channel)
            found.append((channel, _Unlike(slow, f"{channel_name(channels[other], timings)}, its only equal")))
    yield from sorted(found, key=lambda it: it[1].slow.slowdown.excess)
