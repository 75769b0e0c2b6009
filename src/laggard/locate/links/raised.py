"""Which transfers take longer than they should, and since when. Pure.

Every question has one form: a quantity of a channel (its transfers of a step, or each message by itself) against
something (its equals, the fastest of them, its own past). The answer is how much longer each raised channel takes, and
which of the channels that would show it certainly do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.locate.job_timings import WARM_UP_STEPS, Floats
from laggard.locate.links.channels import PAIR_RATIO, Category, Channel, Ways
from laggard.locate.medians import (
    MAD_TO_SIGMA,
    deviation,
    distinct,
    last_axis_median,
    median,
    median_over_steps,
    middle,
    others_median,
    over_phases,
)
from laggard.locate.shares import FEW, HALF, MIN_COST, MOST
from laggard.locate.slow.noise import (
    NO_SPREAD,
    Noise,
    Where,
    blocks_of,
    chance_of_share,
    errors_beyond,
    joined_blocks,
    spread_of,
)
from laggard.locate.slow.steps import MIN_STEPS, SCRIPTS, Steps
from laggard.locate.slow.tested import ERRORS, MIN_PART, segment

TRANSFER_RATIO = 0.15
"""The least share of their usual time by which transfers are longer: networks are less even than GPUs, and other
traffic comes and goes. The ablation decides by it."""

HELD_UP_RATIO = 3.0
"""The ratio to the fastest of its equals from which on a channel is slow, and that of two groups of which only is known
how long they are blocked. Equal ways differ by as much as two, since more messages share some of them at a time. The
ablation decides by it."""

CHANNEL_COST_RATIO = MIN_COST / FEW
"""The least share of the step by which a single channel is longer: a step has a few transfers in a row."""


class Raised(NamedTuple):
    """How long the transfers of a channel take, and how long they should, in seconds a step; `excess` is the difference
    from step index `since` on. `margin`: how many times what is asked of it."""

    now: float
    usual: float
    excess: float
    margin: float
    since: int

    @property
    def ratio(self) -> float:
        return self.now / max(self.usual, 1e-9)


class Findings(NamedTuple):
    """The raised channels, by number, and those that are certainly `fast`, though they were compared as well. `equal`:
    those of which none of a category takes longer."""

    raised: Mapping[int, Raised]
    fast: frozenset[int]
    equal: frozenset[int] = frozenset()


class Question(NamedTuple):
    """What channels are compared with: all others that are equal, or the `fastest` of them. They are raised where they
    take `ratio` times as long; `of_few`, where there are fewer than FEW. `blocked`: what is compared is for
    how long groups are blocked at least."""

    ratio: float
    of_few: float
    fastest: bool = False
    blocked: bool = False


BY_EQUALS: Final = Question(1 + TRANSFER_RATIO, PAIR_RATIO)
BY_BLOCKED: Final = Question(PAIR_RATIO, HELD_UP_RATIO, blocked=True)
BY_FASTEST: Final = Question(HELD_UP_RATIO, math.inf, fastest=True)


class _Told(NamedTuple):
    """What a category tells: the channels that are raised, by place, and which are certainly `fast` [K]: less than half
    of the way to what raises them. `tells`: whether any takes longer."""

    channels: Sequence[int]
    raised: Mapping[int, Raised]
    fast: NDArray[np.bool_]
    tells: bool


def raised_among(ways: Ways, steps: Steps, question: Question) -> Findings:
    """The channels that are slower than equal ones, for any operation and size."""
    told, floor = [], CHANNEL_COST_RATIO * median(steps.duration)
    ahead = -np.nan_to_num(median_over_steps(steps.excess))
    for category in ways.categories:
        if len(category.channels) > 1:
            expected = _expected(category, question)
            # Who is ahead of the peers waits for them, in whatever stands behind a collective of them in a queue.
            lead = np.array([max(0.0, ahead[[*ways.channels[it].columns]].min()) for it in category.channels])
            raised = _slower(category, expected, steps, lead)
            usual, least = median_over_steps(expected.usual), median_over_steps(category.least)
            fast = median_over_steps(expected.most) < (1 + expected.ratio) / 2 * usual
            ratio = np.where(least - usual > floor, expected.ratio, max(expected.ratio, PAIR_RATIO))
            tells = bool(raised) or bool((least >= ratio * usual).any())
            told.append(_Told(category.channels, raised, fast, tells))
    found = _findings(told)
    return _without_ways_back(found, ways.channels) if question.fastest else found


def _findings(told: Sequence[_Told]) -> Findings:
    """Of a channel in several categories what costs most counts, and it is fast where it is so in each. Where all of a
    category take as long, nothing would show there: all go through the place, or wait for something else than bytes."""
    raised, fast, others = dict[int, Raised](), set[int](), set[int]()
    for category in (each for each in told if each.tells):
        for place, each in category.raised.items():
            number = category.channels[place]
            raised[number] = max(raised.get(number, each), each, key=lambda it: it.excess)
        for number, is_fast in zip(category.channels, category.fast, strict=True):
            (fast if is_fast else others).add(number)
    equal = {number for category in told if not category.tells for number in category.channels}
    return Findings(raised, frozenset(fast - others - raised.keys()), frozenset(equal - others - raised.keys()))


def _without_ways_back(found: Findings, channels: Sequence[Channel]) -> Findings:
    """The findings in which the way back of a raised one is not fast: behind a slow link messages come one by one, and
    pass."""
    ends = {frozenset(channels[number].columns) for number in found.raised}
    return found._replace(fast=frozenset(it for it in found.fast if frozenset(channels[it].columns) not in ends))


class _Expected(NamedTuple):
    """What channels take at most (`most` [S, K]), what they should take (`usual` [S, K]), and the `ratio` from which
    on they are raised. `others`: the places of those that tell what is usual."""

    most: Floats
    usual: Floats
    ratio: float
    others: NDArray[np.intp]


def _expected(category: Category, question: Question) -> _Expected:
    """Where all of a kind take longer than others, its schedule may make them wait, as that of a stage which sends and
    receives at once: so by HELD_UP_RATIO, or by PAIR_RATIO where all go through one machine, on top of what is asked,
    in one direction or in both. Below that they are compared with each other. For how long they are blocked is the
    schedule's alone."""
    most = category.least if question.blocked else category.most
    level, others = median_over_steps(most), np.arange(most.shape[1])
    if question.fastest:
        # In a row of FEW stages an adapter in the middle is an end of all pairs but one: so many are the fastest.
        others = np.argsort(level)[: max(1, len(others) // (FEW - 1))]
        usual = np.broadcast_to(last_axis_median(most[:, others])[:, None], most.shape)
    else:
        usual = others_median(most)
    for number in distinct(category.kinds).tolist() if category.kinds.any() else ():
        own, back = (np.flatnonzero(kinds == number) for kinds in (category.kinds, category.kinds_back))
        if len(own) < 2:
            continue
        least, both = (np.sort(level[those])[len(those) // 4] for those in (own, np.union1d(own, back)))
        shared = frozenset.intersection(*(category.machines[place] for place in own.tolist()))
        asked = math.inf if question.blocked else question.ratio * (PAIR_RATIO if shared else HELD_UP_RATIO)
        if not both >= asked * middle(median_over_steps(usual[:, own])):
            usual = np.where(category.kinds == number, np.maximum(usual, least), usual)
    ratio = question.ratio if len(level) >= FEW else question.of_few
    return _Expected(most, usual, ratio, others)


def _slower(category: Category, expected: _Expected, steps: Steps, lead: Floats) -> dict[int, Raised]:
    """The channels of a category, by place, that are slower than usual from some step on, by more than their ranks are
    ahead of their peers (`lead` [K], seconds). What has ended is told by other steps."""
    step, usual = median(steps.duration), expected.usual
    sure = np.maximum(category.least - usual, 0.0) + np.minimum(expected.most - usual, 0.0)
    excess = (sure - lead) / step
    level = median_over_steps(excess[-2 * MIN_STEPS :])
    found = {}
    for place in np.flatnonzero(level > CHANNEL_COST_RATIO).tolist():
        known = np.flatnonzero(np.isfinite(excess[:, place]))
        part = segment(excess[known, place], level[place])
        if part.end - part.begin < MIN_PART or part.end <= len(known) - MIN_STEPS:
            continue
        begin = int(known[part.begin]) if part.begin else 0
        now, due, longer = (median(series[begin:, place]) for series in (category.least, usual, excess))
        alike = np.flatnonzero(category.kinds == category.kinds[place])
        others = alike if len(alike) > FEW else expected.others
        levels = median_over_steps(excess[begin:, others[others != place]])
        spread = spread_of(levels - np.nanmedian(levels), True) if len(levels) > 1 else NO_SPREAD
        chance = _chance(excess[:, place], np.arange(len(excess)) >= begin, spread) * len(category.channels) / ERRORS
        if chance <= 1 and longer >= max(CHANNEL_COST_RATIO, (expected.ratio - 1) * due / step):
            found[place] = Raised(now, due, longer * step, 2 - math.log10(max(chance, 1e-99)), begin)
    return found


def _chance(series: Floats, active: NDArray[np.bool_], spread: Floats) -> float:
    """How likely noise makes a series [S] that is usually 0, in step times, as much longer in the steps that are
    `active` [S]. `spread`: that of equal channels."""
    before, now = (series[those & np.isfinite(series), None] for those in (~active, active))
    if not len(now):  # nothing of it is known
        return 1.0
    noise = Noise(joined_blocks([blocks_of(before), blocks_of(now)]), Where(len(now), len(before)), spread)
    return noise.chances(median(now), median(before) if len(before) else 0.0).ever


# When did the steps become longer, or which of them are, by time that no rank's own work explains?
#
# A slow link may be in all transfers of its kind: then no equal one tells, and only its other steps do. The steps must
# be longer, and no rank's own time by half as much: a longer sequence, a slower GPU or a pause is no slow link.

MIN_COST_AT_TIMES = 0.03
"""The least share of the time that what comes again and again costs, and what is told without a place. Processes
without a GPU that a quota stopped for moments had three in a hundred steps, at 1 % of the time. The ablation decides by
it: at DOUBTED_COST two links that are slow at times are missed."""

HIT_SIGMAS = 10.0
"""Deviations of the lower half of the steps from which on a step is hit; that half tells as long as no more than MOST
are. Of normal data it has its median 0.67 standard deviations below all, and its deviation is 0.47 of theirs: it is
four of theirs. The ablation decides by it."""

MIN_EPISODES = 3
"""The number of times from which on what comes and goes is a habit of the network, wherever in it. The ablation decides
by it."""


class Change(NamedTuple):
    """The steps [S] that are longer (`active`). `cost`: the share of the time that this takes, from the first of them
    on if it `lasts`, of all steps otherwise. `known`: whether it was shorter before, or came again and again; else, as
    after a warm-up, one thing alone is accused."""

    active: NDArray[np.bool_]
    cost: float
    lasts: bool
    known: bool = True


def changes(steps: Steps) -> Iterator[Change]:
    """The steps that are longer by what is no rank's own time: from one to another, and again and again."""
    own = over_phases(steps.phases)
    yield from _between_two_steps(steps, own)
    yield from _again_and_again(steps, own)


def _between_two_steps(steps: Steps, own: Floats) -> Iterator[Change]:
    """From a step at which they become longer to one at which they are shorter again, or to the end; or, where none
    became longer, from the first step to one at which they are shorter. None where chance explains it, or some rank's
    own time by half."""
    place, since = np.arange(len(steps.duration)), change_point(steps.duration) or 0
    until = since + (change_point(-steps.duration[since:]) or len(place))
    if not since and until > place[-1]:
        return
    before = (place < since) | (place >= until)
    excess = steps.duration - median(steps.duration[before])
    level = median(excess[~before])
    begin = max(segment(excess, level).begin, MIN_STEPS) if since else 0  # ranks alone tell it less exactly
    active, lasts = (place >= begin) & (place < until), until > place[-1]
    rise = median_over_steps(own[active]) - median_over_steps(own[~active])
    is_own = np.nan_to_num(rise).max(initial=0.0) > HALF * median(excess[active])
    if not is_own and _chance(excess / median(steps.duration), active, NO_SPREAD) <= ERRORS:
        cost = excess[active].sum() / steps.duration[begin if lasts else 0 :].sum()
        if cost >= MIN_COST:
            yield Change(active, float(cost), lasts, since > 0)


def _again_and_again(steps: Steps, own: Floats) -> Iterator[Change]:
    """More than once, or for MIN_STEPS, by what no rank's own longer time explains in each step."""
    longest = np.nan_to_num(own - median_over_steps(own)).max(axis=1, initial=0.0)
    lower = np.sort(steps.duration - longest)[: max(1, len(longest) // 2)]
    excess = steps.duration - longest - median(lower)
    floor = MIN_COST * middle(steps.duration)
    hit = excess > max(floor, HIT_SIGMAS * MAD_TO_SIGMA * deviation(lower))
    for step in np.flatnonzero(np.nan_to_num(over_phases(steps.phases[:, :, SCRIPTS])).max(axis=1) > floor).tolist():
        hit[step : step + 1 + WARM_UP_STEPS] = False
    episodes = int(hit[0]) + int((hit[1:] & ~hit[:-1]).sum())
    if (episodes > 1 or hit.sum() >= MIN_STEPS) and hit.mean() <= MOST:
        cost = float(excess[hit].sum() / steps.duration.sum())
        if cost >= MIN_COST_AT_TIMES:
            yield Change(hit, cost, False, episodes >= MIN_EPISODES)


def change_point(series: Floats) -> int | None:
    """The index about which a series [S] becomes higher; None where chance explains it. At each step that has
    MIN_STEPS before it and from it on, the two parts are compared by their ranks (Mann and Whitney's U, less its mean,
    in its standard deviations), and the largest counts (Hawkins and Deng, Journal of Quality Technology 42, 2010). It
    only finds the step: by how much the steps became longer has a test of its own."""
    count = len(series)
    if count < 2 * MIN_STEPS:
        return None
    ordered = np.sort(series)
    rank = (np.searchsorted(ordered, series) + np.searchsorted(ordered, series, "right") + 1) / 2  # equal ones share it
    before = np.arange(1, count)
    above = before * (count + 1) / 2 - np.cumsum(rank)[:-1]
    apart = (above / np.sqrt(before * (count - before) * (count + 1) / 12))[MIN_STEPS - 1 : count - MIN_STEPS]
    return MIN_STEPS + int(apart.argmax()) if apart.max() > errors_beyond(2 * ERRORS / count, count) else None


def raised_in(ways: Ways, steps: Steps, change: Change) -> Findings:
    """The channels that take longer in the steps of the change than in the others, for any operation and size."""
    told = []
    floor = CHANNEL_COST_RATIO * middle(steps.duration)
    for category in ways.categories:
        usual = median_over_steps(category.least[~change.active])
        longer = np.nanmax(np.where(change.active[:, None], category.least - usual, -np.inf), axis=0, initial=-np.inf)
        tried = {it: _longer_in(category.least[:, it], floor, change) for it in np.flatnonzero(longer > floor)}
        raised = {int(place): each for place, each in tried.items() if each is not None}
        fast = median_over_steps(category.most[change.active]) < (1 + TRANSFER_RATIO / 2) * usual
        told.append(_Told(category.channels, raised, fast, bool(raised)))
    return _findings(told)


def _longer_in(series: Floats, floor: float, change: Change) -> Raised | None:
    """Longer in many more of the steps of the change than of the others, which chance does not explain."""
    before, after = (series[those & np.isfinite(series)] for those in (~change.active, change.active))
    usual = median(before)
    least = max(floor, TRANSFER_RATIO * usual)
    hit, others = after > usual + least, before > usual + least
    if not hit.any() or hit.mean() - others.mean() < HALF:
        return None
    if chance_of_share(int(hit.sum()), len(hit), int(hit.sum() + others.sum()), len(hit) + len(others)) > ERRORS:
        return None
    now = median(after[hit])
    return Raised(now, usual, (now - usual) * float(hit.mean()), (now - usual) / least, int(change.active.argmax()))
