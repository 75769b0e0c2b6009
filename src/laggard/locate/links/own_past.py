"""When did the steps become longer, or which of them are, by time that no rank's own work explains? And which transfers
took longer then than they did otherwise? A channel is compared with its own past. Pure.

A slow link may be in all transfers of its kind: then no equal one tells, and only the time before does. What is asked
of a change is that

- it lasts to the end (a test of ranks finds the step), or comes again and again;
- the steps became longer, and no rank's own time did by half as much. So a longer sequence, a slower GPU or a pause is
  no slow link, and the script's evaluation is none;
- transfers of the same operation and size took longer, in the member that was blocked the least: it came last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import PHASES, SCRIPT_PHASES
from laggard.locate.job_timings import Floats
from laggard.locate.links.channels import Category
from laggard.locate.medians import MAD_TO_SIGMA, MEDIAN_ERROR, deviation, median, median_over_steps, middle
from laggard.locate.slow.significance import STANDARD_ERRORS, slowdown
from laggard.locate.slow.steps import MIN_STEPS, Steps
from laggard.locate.step_tables import over_phases

CHANGE_SIGMAS = 4.0
"""Standard deviations by which the ranks of the steps' lengths differ before and after a change. It only finds the
step: by how much the steps became longer has a test of its own."""

MIN_LONGER_RATIO = 0.005
"""The least share by which steps become longer: what a slow link of any other rule has to cost."""

OWN_SHARE = 0.5
"""The largest part of the longer steps by which any rank's own time may have grown. Where it grew more, its work
did."""

CHANNEL_RISE_RATIO = 0.0025
"""The least share of the step by which transfers through one channel take longer."""

TRANSFER_RISE_RATIO = 0.15
"""The least share of their own time by which transfers take longer: other traffic comes and goes."""

CALM_SHARE = 0.25
"""The part of its equals' rise below which a channel has not risen."""

STEADY_SHARE = 0.25
"""The part of the time of transfers that rose from which on others, of another kind, tell that the network as a whole
is as it was: short ones are bound by latency."""

SIZE_SHARE = 0.25
"""The part of the time by which bytes that rose became slower, from which on others count that would have become as
much slower: a ring sends up to twice a collective's size, the members of an exchange a part of it."""

HIT_RATIO = 0.02
"""The share of the step, in time that no rank's own work explains, from which on a step is hit."""

HIT_SIGMAS = 4.0
"""Standard deviations of that time from which on a step is hit."""

MIN_EPISODES = 3
"""The least number of times that it must come: one moment of other traffic is no link's habit."""

MIN_SEEN_EPISODES = 2
"""The number of times from which on a job is not called healthy, though nobody is accused."""

LARGE_RATIO = 0.5
"""The share of the step by which hits make it longer that need not be in both halves of the window: no other job's
traffic does as much."""

HALF_SIGMAS = 10.0
"""Deviations of the lower half of the steps, by which hits are told where up to half of the steps are hit: of normal
data its median is 0.67 standard deviations below that of all, and its deviation 0.47 of theirs."""

SCRIPT_STEPS = 2
"""The number of steps after an evaluation or a checkpoint that are not looked at."""

MAX_HIT_SHARE = 0.5
"""The largest share of the steps that are hit: where more are, they are the usual ones."""

OFTEN_EPISODES, OFTEN_COST = 5, 0.03
"""The number of times from which on, or the share of the time of all steps from which on, what comes and goes accuses
somebody. Processes without a GPU that a quota stopped for moments had three in a hundred steps, at 1 % of the time."""

MANY_STEPS = 10
"""The number of hit steps, in both halves of the window, from which on twice is a habit of one place: traffic of others
seldom stays as long, and does not come back to a single machine alone."""

MIN_EPISODES_COST = 0.01
"""The share of the time of all steps that what comes and goes must cost."""

_SCRIPTS = [PHASES.index(name) for name in SCRIPT_PHASES]


class Change(NamedTuple):
    """The steps [S] that are longer (`active`) and those that they are compared with (`usual`). `longer`: seconds a
    step, the median; `cost`: the share of the time that it takes, of all steps from index `since` on. `lasts`: up to
    now. `often`: often enough to accuse somebody; `twice`: seldomer, but long or large enough both times to accuse what
    alone the slower transfers go through."""

    active: NDArray[np.bool_]
    usual: NDArray[np.bool_]
    since: int
    longer: float
    cost: float
    lasts: bool
    often: bool = True
    twice: bool = False


class Rise(NamedTuple):
    """The seconds a step that transfers through a channel took in the usual steps, and in the others; `margin`: how
    many times as much longer as it had to be. `blocked`: whether its members were blocked in all of it."""

    usual: float
    now: float
    margin: float
    blocked: bool

    @property
    def seconds(self) -> float:
        return self.now - self.usual


class Risen(NamedTuple):
    """The channels, by number, of which the transfers take longer, those that certainly do not while equal ones do
    (`calm`), and those that do not by a share of as long a time, of another kind (`steady`)."""

    rises: dict[int, Rise]
    calm: frozenset[int]
    steady: frozenset[int]


def change_of(steps: Steps) -> Change | None:
    """The steps that are longer by what is no rank's own time: since a step, or again and again; None: there are no
    such steps."""
    own = over_phases(steps.phases)
    return _since_a_step(steps, own) or _again_and_again(steps, own)


def _since_a_step(steps: Steps, own: Floats) -> Change | None:
    since = change_point(steps.duration)
    if since is None:
        return None
    excess = steps.duration - median(steps.duration[:since])
    found = slowdown(excess, steps.duration, np.empty((len(excess), 0)), 0.0, MIN_LONGER_RATIO)
    if found is None:
        return None
    since = max(found.since, MIN_STEPS)  # by how long they are; ranks alone tell it less exactly
    active = np.arange(len(excess)) >= since
    longer = median(excess[active])
    if _own_rise(own, active, ~active) > OWN_SHARE * longer:
        return None
    return Change(active, ~active, since, longer, longer / median(steps.duration[active]), True)


def change_point(series: Floats) -> int | None:
    """The index about which a series [S] becomes higher; None where chance explains it. At each step that has
    MIN_STEPS before it and from it on, the two parts are compared by their ranks (Mann and Whitney's U, less its mean,
    in its standard deviations), and the largest counts (Hawkins and Deng, Journal of Quality Technology 42, 2010)."""
    count = len(series)
    if count < 2 * MIN_STEPS:
        return None
    ordered = np.sort(series)
    rank = (np.searchsorted(ordered, series) + np.searchsorted(ordered, series, "right") + 1) / 2  # equal ones share it
    before = np.arange(1, count)
    above = before * (count + 1) / 2 - np.cumsum(rank)[:-1]
    apart = (above / np.sqrt(before * (count - before) * (count + 1) / 12))[MIN_STEPS - 1 : count - MIN_STEPS]
    return MIN_STEPS + int(apart.argmax()) if apart.max() > CHANGE_SIGMAS else None


def _own_rise(own: Floats, active: NDArray[np.bool_], usual: NDArray[np.bool_]) -> float:
    """The most by which any rank's own time a step, `own` [S, R], is longer in the steps `active`."""
    rise = median_over_steps(own[active]) - median_over_steps(own[usual])
    return float(np.nan_to_num(rise, nan=0.0).max(initial=0.0))


def _again_and_again(steps: Steps, own: Floats) -> Change | None:
    typical = middle(steps.duration)
    longest = np.nan_to_num(own - median_over_steps(own)).max(axis=1, initial=0.0)
    unexplained = steps.duration - typical - longest
    script = _about_scripts(steps, HIT_RATIO * typical)
    unexplained, least = _above_usual(unexplained, HIT_RATIO * typical)
    hit = (unexplained > least) & ~script
    if not hit.any() or hit.mean() > MAX_HIT_SHARE:
        return None
    cost, longer = float(unexplained[hit].sum() / steps.duration.sum()), median(unexplained[hit])
    episodes = int(hit[0]) + int((hit[1:] & ~hit[:-1]).sum())
    if episodes < MIN_SEEN_EPISODES or cost < MIN_EPISODES_COST:
        return None
    half = len(hit) // 2
    in_both, large = bool(hit[:half].any() and hit[half:].any()), longer > LARGE_RATIO * typical
    enough = episodes >= OFTEN_EPISODES or cost >= OFTEN_COST
    often = enough and episodes >= MIN_EPISODES and (in_both or large)
    twice = (in_both and int(hit.sum()) >= MANY_STEPS) or (large and cost >= OFTEN_COST)
    return Change(hit, ~hit & ~script, int(hit.argmax()), longer, cost, False, often, twice)


def _above_usual(series: Floats, floor: float) -> tuple[Floats, float]:
    """The series [S] less its usual level, and by how much a step is above it that is hit, at least `floor`: by what
    most steps are, or, where none is hit so, by what the lower half is."""
    lower = np.sort(series)[: len(series) // 2]
    above, least = _above(series, series, HIT_SIGMAS, floor)
    return (above, least) if (above > least).any() else _above(series, lower, HALF_SIGMAS, floor)


def _above(series: Floats, usual: Floats, sigmas: float, floor: float) -> tuple[Floats, float]:
    return series - median(usual), max(floor, sigmas * MAD_TO_SIGMA * deviation(usual))


def is_work_of_several(steps: Steps, change: Change) -> bool:
    """Whether the ranks that took longer in the steps of the change explain them together: pauses of several ranks, at
    different times within a step, add up."""
    own = over_phases(steps.phases)
    excess = np.nan_to_num(own - median_over_steps(own))
    together = np.where(excess > HIT_RATIO * middle(steps.duration), excess, 0.0).sum(axis=1)
    longer = steps.duration - median(steps.duration[change.usual])
    return median((longer - together)[change.active]) < OWN_SHARE * change.longer


def _about_scripts(steps: Steps, least: float) -> NDArray[np.bool_]:
    """[S]: the steps in which a rank evaluates, saves or logs for `least` seconds, and SCRIPT_STEPS more after each:
    what a checkpoint writes goes over the network, too."""
    found: NDArray[np.bool_] = np.nan_to_num(over_phases(steps.phases[:, :, _SCRIPTS])).max(axis=1) > least
    for step in np.flatnonzero(found).tolist():
        found[step : step + 1 + SCRIPT_STEPS] = True
    return found


def risen_channels(categories: Sequence[Category], steps: Steps, change: Change) -> Risen:
    """The channels of which transfers of some operation and size take longer in the steps of the change."""
    floor = CHANNEL_RISE_RATIO * middle(steps.duration)
    rises: dict[int, Rise] = {}
    per_byte = math.inf
    calm: set[int] = set()
    for category in categories:
        usual, now = (median_over_steps(category.least[those]) for those in (change.usual, change.active))
        longer = np.nan_to_num(now - usual)
        found = {
            place: rise
            for place in np.flatnonzero(longer > floor).tolist()
            if (rise := _rise(category, place, floor, change)) is not None
        }
        for place, rise in found.items():
            number = category.channels[place]
            if number not in rises or rises[number].seconds < rise.seconds:
                rises[number] = rise
            per_byte = min(per_byte, rise.seconds / category.size if category.size else math.inf)
        if found:
            least = CALM_SHARE * min(rise.seconds for rise in found.values())
            calm.update(
                category.channels[place]
                for place in range(len(category.channels))
                if longer[place] + _error(category.most[:, place], change) < least
            )
    steady = _steady(categories, rises, change, per_byte if math.isfinite(per_byte) else 0.0)
    return Risen(rises, frozenset(calm) - rises.keys(), steady - rises.keys())


def _steady(
    categories: Sequence[Category], rises: Mapping[int, Rise], change: Change, per_byte: float
) -> frozenset[int]:
    """The channels whose transfers would have become longer as well, and by certainly less than CALM_SHARE of that did:
    by their time, of which they take STEADY_SHARE of what those that rose took before, or by their size. `per_byte`:
    the seconds by which a byte that rose became slower, at the least."""
    least = STEADY_SHARE * min((rise.usual for rise in rises.values()), default=math.inf)
    found: set[int] = set()
    for category in categories:
        usual, now = (median_over_steps(category.most[those]) for those in (change.usual, change.active))
        by_time = np.where(usual >= least, usual, 0.0)
        due = np.maximum(by_time, SIZE_SHARE * per_byte * category.size)
        for place in np.flatnonzero(now - usual < CALM_SHARE * due).tolist():
            if now[place] - usual[place] + _error(category.most[:, place], change) < CALM_SHARE * due[place]:
                found.add(category.channels[place])
    return frozenset(found)


def _rise(category: Category, place: int, floor: float, change: Change) -> Rise | None:
    series = category.least[:, place]
    usual, now = median(series[change.usual]), median(series[change.active])
    least = max(floor, TRANSFER_RISE_RATIO * usual, _error(series, change))
    if not now - usual > least:
        return None
    return Rise(usual, now, (now - usual) / least, now > median(category.most[change.active, place]) / 2)


def _error(series: Floats, change: Change) -> float:
    """STANDARD_ERRORS of the difference of the medians before and after."""
    parts = [series[those] for those in (change.usual, change.active)]
    variances = [
        (MEDIAN_ERROR * MAD_TO_SIGMA * deviation(part)) ** 2 / max(1, int(np.isfinite(part).sum())) for part in parts
    ]
    return STANDARD_ERRORS * math.sqrt(sum(variances))
