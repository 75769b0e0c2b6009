"""Finds ranks that are slow again and again, and not all the time. Pure.

In a few steps any rank may be slow. Who is so far more often than the others would be by chance is the culprit: it
pauses, throttles for moments, or reads from a slow disk now and then. Steps are compared as a whole, and piece by piece
(pieces.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.majority import grouped
from laggard.locate.collectives import Collectives
from laggard.locate.job_timings import Floats
from laggard.locate.medians import median, median_over_steps, middle
from laggard.locate.slow.pieces import Piece, pieces
from laggard.locate.slow.ranks import MACHINE_SHARE, MIN_MACHINES, Slow
from laggard.locate.slow.significance import SLOW_RATIO, typical_noise
from laggard.locate.slow.steps import Steps, node_numbers


class Level(NamedTuple):
    """A step in which a rank is slower than its peers by `ratio` of the step, and by so many standard deviations, is a
    hit."""

    ratio: float
    sigmas: float


LEVELS = Level(0.04, 4.0), Level(0.03, 3.25), Level(0.02, 2.5)
"""The levels of slow steps, from the largest hits to the smallest. Hits by the last happen to everybody, more rarely
than to a rank with a habit of small ones."""

TESTS = 6
"""The number of tests by which the allowed probability is divided: each of LEVELS on steps, and on pieces."""

PIECE_SHARE = 0.5
"""The part of a level's share by which a whole step must be longer, where a piece of it is longer by that share: what a
rank does in forward in place of backward makes it no slower."""

MIN_EPISODES = 3
"""The least number of times that a rank must be slow, with other steps in between: one disturbance of several steps is
one episode."""

MANY_STEPS, LONG_EPISODE = 10, 3
"""The number of slow steps, and that of each episode on average, from which on MIN_EPISODES are a habit of a rank of a
recording, if they are in both halves of the window and nobody else has half as many: what is by chance, or a longer
sequence, seldom stays so long each time."""

MANY_COSTLY_STEPS = 8
"""The number of slow steps that is enough where they cost COSTLY."""

SPELLS_COST = 0.03
"""The share of the time of all steps that such spells must cost."""

COSTLY = 0.1
"""The share of the time from which on fewer slow steps are enough."""

DOUBTED_COST, DOUBTED_EPISODES, DOUBTED_SECONDS = 0.1, 2, 1.0
"""The share of the time that a rank's slow steps cost, the episodes and the seconds in all, from which on a job is not
called healthy where they are too few to accuse the rank. A process that shares its cores loses some tenths of a second.
"""

COMMON_SHARE = 0.25
"""The largest share of the ranks that may be slow in a step which is a rank's own. A step in which more are, on several
machines, is a checkpoint, say."""

EIGHTHS = 8

NEGLIGIBLE_SHARE = 1e-6
"""The share of the allowed probability below which a term decides nothing."""

LIVE_CHANCE = 1e-4
"""The largest probability with which any rank of a live job may be slow so often by chance."""

CHANCE = 5e-4
"""The largest probability with which any rank of a recording may be slow so often by chance. It is larger than
LIVE_CHANCE, because on a recording a verdict is drawn once."""


class Evidence(NamedTuple):
    """The cost that slow steps must have, as a share of the time of all steps, how rarely as many happen by chance, as
    a share of what is allowed at most, and how many episodes they must be."""

    cost: float
    chance: float
    episodes: int = MIN_EPISODES


EVIDENCE = Evidence(0.01, 1.0), Evidence(0.005, 0.02), Evidence(0.03, 10.0, 4), Evidence(COSTLY, 50.0, 4)
"""The evidence that an accusation needs: what costs little must be the surer, and what costs less than all is not worth
one. What costs a tenth of the time is no accident, unless it came once or twice."""

MIN_LIVE_SECONDS = 5.0
"""The shortest window of a live job: in a shorter one, a seeming habit may be one moment of other work on the
machine."""

MIN_SECONDS = 2.0
"""The shortest window of a recording: on that a verdict is drawn once, and not again and again until such a moment
comes."""


def intermittent_ranks(
    steps: Steps, nodes: Sequence[str | None], found: Sequence[Slow], collectives: Collectives | None = None
) -> list[Slow]:
    """The ranks, and machines, that are slow now and then; none of those that were `found` slow all the time."""
    if float(steps.duration.sum()) < (MIN_LIVE_SECONDS if steps.live else MIN_SECONDS):
        return []
    sometimes: list[Slow] = []
    chance = (LIVE_CHANCE if steps.live else CHANCE) / TESTS
    machine = node_numbers(nodes)
    for level, hits in _hits_by_level(steps, collectives):
        hits[_are_common(hits, machine)] = False
        hits[:, [column for each in (*found, *sometimes) for column in each.columns]] = False
        columns = sorted(
            {
                column
                for evidence in EVIDENCE
                for column in _habits(hits, evidence, chance)
                if _cost(steps, hits, column) > evidence.cost
            }
            | set(() if steps.live else _long_spells(steps, hits))
            | set(_of_whole_machines(steps, hits, machine, chance))
        )
        sometimes += [_slow(steps, hits, level, group) for group in _by_machine(columns, machine)]
    return sometimes


def doubted_ranks(steps: Steps, nodes: Sequence[str | None]) -> list[Slow]:
    """The ranks of a recording whose slow steps cost much, and are too few to accuse them; what costs most first."""
    if steps.live:
        return []
    (level, hits), machine = next(_hits_by_level(steps, None)), node_numbers(nodes)
    hits[_are_common(hits, machine)] = False
    episodes = _begins(hits).sum(axis=0)
    costs = {each: _cost(steps, hits, each) for each in np.flatnonzero(episodes >= DOUBTED_EPISODES).tolist()}
    least = max(DOUBTED_COST, DOUBTED_SECONDS / float(steps.duration.sum()))
    worst = sorted((column for column, cost in costs.items() if cost > least), key=lambda each: -costs[each])
    return [_slow(steps, hits, level, [column]) for column in worst]


def _hits_by_level(steps: Steps, collectives: Collectives | None) -> Iterator[tuple[Level, NDArray[np.bool_]]]:
    """The slow steps of each rank by level, [S, R]: first those in which it was slow as a whole; then those in which it
    was slow in a piece, and slower than its peers as a whole."""
    noise = np.full(steps.excess.shape[1], typical_noise(steps.excess))
    yield from zip(LEVELS, _hits(steps, Piece(steps.excess, noise)), strict=True)
    found: NDArray[np.bool_] | None = None
    for piece in pieces(steps, collectives, LEVELS[-1].ratio * float(steps.duration.min())):
        hits = _hits(steps, piece)
        found = hits if found is None else found | hits
    for level, hits in zip(LEVELS, found, strict=True) if found is not None else ():
        yield level, hits & (steps.excess > PIECE_SHARE * level.ratio * steps.duration[:, None])


def _hits(steps: Steps, piece: Piece) -> NDArray[np.bool_]:
    """[L, S, R]: in which steps each rank was slow by each level, in a piece or as a whole, beyond what it always is
    while that is too little to accuse it: a GPU that is a hundredth slower than others, as GPUs are, would pass a low
    level more often."""
    found = np.zeros((len(LEVELS), *piece.excess.shape), np.bool_)
    lowest = LEVELS[-1]
    above = piece.excess > (lowest.ratio * steps.duration[:, None]).astype(piece.excess.dtype)
    above &= piece.excess > lowest.sigmas * piece.noise.astype(piece.excess.dtype)
    some = np.flatnonzero(above.any(axis=0))
    excess = piece.excess[:, some]
    excess = excess - np.clip(median_over_steps(excess), 0.0, SLOW_RATIO * middle(steps.duration))
    for level, hits in zip(LEVELS, found, strict=True):
        least = np.maximum(level.ratio * steps.duration[:, None], level.sigmas * piece.noise[some])
        hits[:, some] = excess > least
    return found


def _are_common(hits: NDArray[np.bool_], machine: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[S]: in which steps many ranks were slow, and not most of them on one machine, which may have a habit."""
    many: NDArray[np.bool_] = hits.sum(axis=1) > COMMON_SHARE * hits.shape[1]
    for step in np.flatnonzero(many):
        by_machine = np.bincount(machine[hits[step]])
        many[step] = bool(by_machine.max() < MACHINE_SHARE * by_machine.sum())
    return many


def _habits(hits: NDArray[np.bool_], evidence: Evidence, chance: float) -> list[int]:
    """The ranks, or machines, that are slow more often than the others let expect. Were all alike, each episode of one
    and its ordinary peers would be its own with the same probability: the binomial distribution, whatever their common
    rate. The tenth of the ranks that is slow most often is no measure of chance: culprits."""
    ranks = hits.shape[1]
    begins = _begins(hits)
    episodes = begins.sum(axis=0)
    ordinary = np.sort(episodes)[: max(1, math.ceil(0.9 * ranks) - 1)]
    half = len(hits) // 2
    both = hits[:half].any(axis=0) & hits[half:].any(axis=0)
    chance *= evidence.chance / ranks
    least = _least_episodes(int(ordinary.sum()), len(ordinary), chance, evidence.episodes, int(episodes.max(initial=0)))
    return [
        int(column)
        for column in np.flatnonzero(both & (episodes >= least))
        if int(episodes[column] / _clustering(begins[:, column])) >= least
    ]


def _of_whole_machines(
    steps: Steps, hits: NDArray[np.bool_], machine: NDArray[np.int64], chance: float
) -> Iterator[int]:
    """The ranks of machines that are slow as a whole more often than other machines let expect. Among ranks those of
    one such machine may be so many that they seem to be what is ordinary."""
    sizes = np.bincount(machine)
    if len(sizes) < MIN_MACHINES or sizes.min() < 2:
        return
    of_machine = [machine == number for number in range(len(sizes))]
    whole = np.stack([hits[:, those].mean(axis=1) >= MACHINE_SHARE for those in of_machine], axis=1)
    for evidence in EVIDENCE:
        for number in _habits(whole, evidence, chance):
            columns = np.flatnonzero(of_machine[number])
            cost = float(np.nanmean(steps.excess[np.ix_(whole[:, number], columns)], axis=1).sum())
            if cost > evidence.cost * float(steps.duration.sum()):
                yield from columns.tolist()


def _long_spells(steps: Steps, hits: NDArray[np.bool_]) -> Iterator[int]:
    """The ranks that are slow in few spells, which are long."""
    episodes, count = _begins(hits).sum(axis=0), hits.sum(axis=0)
    half = len(hits) // 2
    both = hits[:half].any(axis=0) & hits[half:].any(axis=0)
    are_long = (count >= MANY_COSTLY_STEPS) & (count >= LONG_EPISODE * episodes)
    for column in np.flatnonzero(both & (episodes >= MIN_EPISODES) & are_long).tolist():
        alone = np.delete(episodes, column).max(initial=0) < episodes[column] / 2
        if alone and _cost(steps, hits, column) > (SPELLS_COST if count[column] >= MANY_STEPS else COSTLY):
            yield column


def _least_episodes(of_others: int, others: int, chance: float, fewest: int, most: int) -> int:
    """The number of episodes of one rank, at least `fewest`, that are too many beside `of_others` of so many others;
    more than `most` where none up to there are."""
    numbers = range(fewest, most + 1)
    rate = 1 / (1 + others)
    return next((own for own in numbers if _is_rarer(own + of_others, own, rate, chance)), most + 1)


def _clustering(begins: NDArray[np.bool_]) -> float:
    """The clustering of episodes, 1.0 where each comes by itself: the variance of their number over its mean, by
    eighths of the window, as far as chance does not explain it (two standard deviations of chi-squared). A moment of
    other work on the machine has many episodes, and is one."""
    counts = np.array([len(part.nonzero()[0]) for part in np.array_split(begins, EIGHTHS)])
    ratio = float(counts.var(ddof=1) / max(counts.mean(), 1e-9))
    return ratio if ratio > 1 + 2 * (2 / (EIGHTHS - 1)) ** 0.5 else 1.0


def _begins(hits: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[S, R]: in which steps each rank began to be slow."""
    begins: NDArray[np.bool_] = hits.copy()
    begins[1:] &= ~hits[:-1]
    return begins


def _is_rarer(count: int, least: int, rate: float, chance: float) -> bool:
    """Whether at least `least` of `count`, each with probability `rate`, have a smaller probability than `chance`. The
    terms are added up until they decide it: from the expected number on they fall faster than a geometric series."""
    if least <= count * rate:
        return False
    total = 0.0
    for number in range(least, count + 1):
        term = math.exp(_log_choose(count, number) + number * math.log(rate) + (count - number) * math.log1p(-rate))
        total += term
        if total >= chance or term < NEGLIGIBLE_SHARE * chance:
            break
    return total < chance


def _log_choose(count: int, number: int) -> float:
    return math.lgamma(count + 1) - math.lgamma(number + 1) - math.lgamma(count - number + 1)


def _cost(steps: Steps, hits: NDArray[np.bool_], column: int) -> float:
    """The share of the time that the rank's slow steps cost."""
    return float(steps.excess[hits[:, column], column].sum() / steps.duration.sum())


def _by_machine(columns: Sequence[int], machine: NDArray[np.int64]) -> Iterator[list[int]]:
    """`columns`, those of a machine together where they are most of its ranks and the job has other machines."""
    sizes = np.bincount(machine)
    by_machine = grouped(columns, lambda column: int(machine[column]))
    for number, members in by_machine.items():
        if len(members) > 1 and len(sizes) > 1 and len(members) >= MACHINE_SHARE * sizes[number]:
            yield members
        else:
            yield from ([column] for column in members)


def _slow(steps: Steps, hits: NDArray[np.bool_], level: Level, columns: list[int]) -> Slow:
    hit = hits[:, columns].mean(axis=1) >= 0.5
    series: Floats = np.where(hit, np.nanmax(np.where(hits[:, columns], steps.excess[:, columns], 0.0), axis=1), 0.0)
    since = int(hit.argmax())
    lasted = steps.duration[since:]
    threshold = level.ratio * median(steps.duration[hit])
    excess = median(series[hit])
    return Slow(
        tuple(columns),
        len(columns) > 1,
        since,
        excess,
        excess / threshold,
        len(lasted),
        float(lasted.sum()),
        series,
        hit,
    )
