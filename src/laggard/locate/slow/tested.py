"""The one test of who is slower than its peers: what it costs, and how likely healthy noise costs as much. Pure.

A unit, a rank or a machine, is judged by the mean of its excess over its peers, in all of the window and in parts of
it, so that what came and went counts as what it cost. It is accused where that costs MIN_COST of the time of all steps
(of a live job, of the part that goes on), and where it has neither of the two harmless reasons:

- *noise*, which may last (noise.py);
- *moments*: other work on a machine holds any rank up now and then, for about as long as a block of MOMENT_SECONDS. The
  unit strays in so many blocks of time that this is no coincidence, beside how often its peers stray as far.

All units and parts share one rate of error: a healthy recording accuses somebody in ERRORS of cases, a healthy live job
in LIVE_ERRORS of its hours, though a verdict is drawn on it again and again (a union bound over units, parts, looks).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.locate.job_timings import Floats
from laggard.locate.medians import MAD_TO_SIGMA, deviation, median
from laggard.locate.shares import FEW, HALF, MIN_COST, MOST
from laggard.locate.slow.noise import (
    Blocks,
    Noise,
    Where,
    binomial,
    blocks_of,
    chance_of_moments,
    errors_beyond,
    joined_blocks,
    spread_of,
)
from laggard.locate.slow.steps import MIN_STEPS

ERRORS: Final = 1 / 500
"""The share of healthy recordings in which somebody may be accused."""

LIVE_ERRORS: Final = 1 / 1000
"""The same of the hours of healthy live jobs."""

LOOKS: Final = 720
"""The verdicts on a live job in an hour: one each five seconds."""

MOMENT_SECONDS: Final = 0.5
"""The length of the blocks of time by which moments are counted. Two ranks on two cores, beside other work that was
rare, were held up for 0.1 to 0.9 s."""

LIVE_MOMENT_SECONDS: Final = 1.0
"""The same of a live job, on which a verdict is drawn again and again until a rare moment comes: beside ten processes
that came and went, ranks were held up for up to 4 s, and seven blocks are no such moment."""

STRAY_SHARE: Final = 1e-3
"""The share of the blocks in which a rank may begin to stray, if its peers never do: once in some ten minutes. Our
choice."""

LASTS: Final = 0.25
"""The share of moments that go on for another MOMENT_SECONDS: one in 250 lasts 2 s, and next to none the 4 s that were
seen where others came and went all the time."""

PRIOR_BLOCKS: Final = 20
"""The number of blocks that these are worth beside those of the peers."""

MAX_AHEAD: Final = 1.0
"""By how many step times a unit may be ahead of its peers in a step: where they stall, how far says nothing of it."""

DOUBTED_COST: Final = 0.05
"""The share of the time from which on a job is not called healthy where a unit's excess is unlikely, and not so much so
that it is accused."""

COSTLY: Final = 2 * DOUBTED_COST
"""The same where noise may explain it: other work on its machine, or a few evaluations that nothing names."""

DOUBTED_ERRORS: Final = 0.05
"""The share of healthy recordings that may not be called healthy for that; of a healthy live job's verdicts one in an
hour's LOOKS."""

PARTS: Final = 8
"""The number of parts into which the window is cut: each run of them is judged, and shorter and shorter last steps."""

LONGEST_MOMENT_SECONDS: Final = 4.0
"""The longest that healthy ranks were held up by other work on their machine: what lasts longer is no moment of a
peer's."""

MIN_PART: Final = int(MOST * MIN_STEPS)
"""The fewest steps of a part: most of the fewest of a window. Noise and moments decide: long steps tell as much in
few."""

MAX_CANDIDATES: Final = 64
"""The most units that are judged in each part of the window, the costliest first: where more are slow, it is not they
that differ."""

MAX_COMPARED: Final = 512
"""The most others that a unit is judged beside."""


class Part(NamedTuple):
    """The steps from index `begin` to before `end`."""

    begin: int
    end: int


class Found(NamedTuple):
    """`level`: the unit's excess in the part, in step times; `cost`: as a share of all steps; `chance`: that of healthy
    noise, over what is allowed, so that 1 and less accuse, and more is a doubt. `needed`: the steps that would
    decide."""

    unit: int
    part: Part
    level: float
    cost: float
    chance: float
    needed: int


class Turns(NamedTuple):
    """The units that stray now and then for longer than moments last, and the share of the time that it costs: none of
    them more than its peers, and always somebody."""

    units: tuple[int, ...] = ()
    cost: float = 0.0


class Judged(NamedTuple):
    """`slow`: the units that are accused. `doubted`: the costliest one that is neither accused nor harmless. `turns`:
    where nobody is accused."""

    slow: tuple[Found, ...] = ()
    doubted: Found | None = None
    turns: Turns = Turns()


class Units(NamedTuple):
    """What is judged. `excess` [S, U]: seconds longer than its peers, nan where unknown. `judged` [U]: which may be
    accused, and compared. `earlier`: blocks of windows before this one. `work` [U]: the same number for those that are
    compared with each other; None: all are. `errors` [U]: the standard error of their peers' time, in seconds a step.
    `kinds`: whether they may be of two kinds, as machines.
    """

    excess: Floats
    judged: NDArray[np.bool_]
    earlier: Sequence[tuple[int, float, float]] = ()
    work: NDArray[np.int64] | None = None
    errors: Floats | None = None
    kinds: bool = False


def judge(units: Units, duration: Floats, live: bool, each: float = 1.0) -> Judged:
    """Judges all units of steps of `duration` [S], each of which stands for so many."""
    step, others = median(duration), _compared(units)
    if len(duration) < MIN_STEPS or not len(others) or not step > 0:
        return Judged()
    relative = np.maximum(_known(units.excess) / step, -MAX_AHEAD)
    test = _Test(units, relative, others, step, live, each)
    found = test.found()
    by_cost = sorted(found or (), key=lambda each: each.cost)
    best = {each.unit: each for each in by_cost if each.chance <= 1}
    doubted = next((each for each in reversed(by_cost) if each.chance > 1 and each.unit not in best), None)
    return Judged(tuple(best.values()), doubted, test.by_turns() if found is not None and not best else Turns())


@functools.lru_cache(64)
def parts_of(steps: int) -> tuple[Part, ...]:
    """The parts of a window, the longest first: all; the runs of its eighths; and the last steps, from an eighth on
    halved, and three quarters of each, down to MIN_PART."""
    bounds = sorted({round(place * steps / PARTS) for place in range(PARTS + 1)})
    found = {Part(begin, end) for begin in bounds for end in bounds if end - begin >= min(MIN_PART, steps)}
    length = max(steps // PARTS, MIN_STEPS)
    while length >= MIN_STEPS:
        found |= {Part(steps - length, steps), Part(steps - 3 * length // 4, steps)}
        length //= 2
    return tuple(sorted(found, key=lambda part: (part.begin - part.end, part)))


def _compared(units: Units) -> NDArray[np.int64]:
    """The units that tell how healthy ones stray: those that are known for most of the time, if there are some."""
    mostly = units.judged & (2 * np.isfinite(units.excess).sum(axis=0) > len(units.excess))
    return np.flatnonzero(mostly if mostly.sum() > 1 else units.judged)


def _known(excess: Floats) -> Floats:
    """`excess` with each unit's mean in place of what is not known."""
    known = np.isfinite(excess)
    mean = np.where(known, excess, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return np.where(known, excess, mean)


class _Test:
    def __init__(
        self, units: Units, relative: Floats, others: NDArray[np.int64], step: float, live: bool, each: float
    ) -> None:
        self._relative, self._step, self._live, self._units, self._each = relative, step * each, live, units, each
        self._in_all, self._at_a_look = (LIVE_ERRORS, LIVE_ERRORS / LOOKS) if live else (ERRORS, ERRORS)
        self._doubted = 1 / LOOKS if live else DOUBTED_ERRORS
        self._some = others[:: max(1, len(others) // MAX_COMPARED)]
        self._count = int(units.judged.sum())
        self._sums = np.concatenate((np.zeros((1, relative.shape[1])), np.cumsum(relative, axis=0)))

    def _prepare(self) -> None:
        """What noise and moments are told by: in most jobs nobody costs enough to ask."""
        units, relative, step = self._units, self._relative, self._step
        # In a recording of few seconds, blocks are shorter: else two of them would be all that it has.
        seconds = LIVE_MOMENT_SECONDS if self._live else min(MOMENT_SECONDS, len(relative) * step / PARTS)
        self._block = max(1, math.ceil(seconds / step))
        self._stray_share = STRAY_SHARE * min(1.0, seconds / MOMENT_SECONDS)
        self._usually_lasts = max(LASTS ** (self._block * step / MOMENT_SECONDS), 1e-6)
        self._first = len(relative) % self._block
        self._moments = relative[self._first :].reshape(-1, self._block, relative.shape[1]).mean(axis=1)
        self._work = np.zeros(len(units.judged), np.int64) if units.work is None else units.work
        sizes = np.bincount(self._work, units.judged)[self._work]
        self._few, some = (sizes > 1) & (sizes < FEW), self._some
        first = some[np.unique(self._work[some], return_index=True)[1]]
        # Of two that are compared with each other one says what both do.
        self._once: NDArray[np.int64] = np.unique(np.concatenate((first, some[sizes[some] != 2])))
        self._errors = None if units.errors is None else (np.nan_to_num(units.errors) * self._each / step) ** 2
        self._earlier = [Blocks(*each) for each in units.earlier]
        self._blocks = joined_blocks([blocks_of(relative[:, self._some]), self._earlier])

    def found(self) -> list[Found] | None:
        """What is accused or doubted in each part; None where nobody costs anything."""
        steps = len(self._relative)
        parts = parts_of(steps)
        begins, ends = np.array(parts).T
        lengths = (ends - begins)[:, None]
        levels = (self._sums[ends] - self._sums[begins]) / lengths
        costs = levels * lengths / steps
        # What a live job loses now it goes on losing: how long its window is kept does not matter.
        lost = np.where((ends == steps)[:, None], levels, costs) if self._live else costs
        dear = (lost >= MIN_COST) & self._units.judged
        if not dear.any():
            return None
        self._prepare()
        found = []
        for place in np.flatnonzero(dear.any(axis=1)).tolist():
            part = parts[place]
            # Half of what is allowed is kept for the window as a whole.
            tests = 2 * self._count * (1 if part.end - part.begin == steps else len(parts) - 1)
            blocks = self._within(part)
            usual = np.median(self._restless(part, self._some), axis=1) if self._count > 3 else None
            typical = np.median(self._relative[part.begin : part.end, self._once], axis=0)
            units = np.flatnonzero(dear[place])
            for unit in units[np.argsort(-costs[place][units])][:MAX_CANDIDATES].tolist():
                level = float(levels[place][unit])
                wider = self._of_pair(part, unit, level, tests) if usual is None else self._wider(part, unit, usual)
                spread = self._spread(unit, typical)
                each = self._beside_others(part, unit, level, blocks, spread, wider, tests)
                if each is not None:
                    found.append(each)
        return found or ([] if self._live else self._costly(levels[0]))

    def _costly(self, levels: Floats) -> list[Found]:
        """The unit that costs a recording so much, in more than one step and alone, that what all waited for is told,
        though noise may explain it. `levels` [U]: of the whole window."""
        unit, steps, own = int(np.argmax(levels)), len(self._relative), float(levels.max())
        once = float(self._relative[:, unit].max()) / steps > MOST * own
        alone = self._units.judged[unit] and sorted(levels)[-2:][0] < (1 - MOST) * own
        is_told = own >= COSTLY and alone and not once
        return [Found(unit, Part(0, steps), own, own, math.inf, 0)] if is_told else []

    def _restless(self, part: Part, units: NDArray[np.int64]) -> Floats:
        """[3, U]: the mean square by which units are in the part below their median, above it, and below their lower
        quartile."""
        own = np.sort(self._relative[part.begin : part.end, units], axis=0)
        half, quarter = len(own) // 2, max(1, len(own) // 4)
        parts = (own[:half] - own[half], own[half:] - own[half], own[:quarter] - own[quarter])
        return np.stack([(each**2).mean(axis=0) for each in parts])

    def _wider(self, part: Part, unit: int, usual: Floats) -> float:
        """How many times the others' variance (`usual` [3]) the unit's noise has. One that is slow now and then has two
        levels: within one of the three there is noise alone, unless it is slow in nearly all steps or in none."""
        own = self._restless(part, np.array([unit]))[:, 0]
        return max(1.0, float((own / np.maximum(usual, 1e-12)).min()))

    def _of_pair(self, part: Part, unit: int, level: float, tests: int) -> float:
        """The share of a pair's variance that is noise, where single steps hold the unit up and never the other: each
        of noise would do so by turns, and noise that lasts for longer."""
        if len(self._some) != 2 or unit not in self._some:
            return 1.0
        own, other = self._relative[part.begin : part.end, [unit, *self._some[self._some != unit]]].T
        (strayed, begins), (_, theirs) = (_strays((each > level / 2)[:, None]) for each in (own, other))
        by_turns = binomial(begins, begins + theirs, begins + theirs, HALF) * tests > self._at_a_look
        if by_turns or begins < MOST * strayed * (1 - strayed / len(own)):
            return 1.0
        share = float(self._restless(part, np.array([unit])).min() / own.var())
        return max(share, 1e-6) if share <= 1 - MOST else 1.0  # else its steps are not of two kinds

    def _beside_others(
        self, part: Part, unit: int, level: float, blocks: Sequence[Blocks], spread: Floats, wider: float, tests: int
    ) -> Found | None:
        """The unit beside the others, whose noise has `wider` times the variance of theirs (`blocks`); None where that
        alone explains it. `tests`: how many share what is allowed."""
        others, length = self._some[self._some != unit], part.end - part.begin
        gap = len(self._relative) // (2 * PARTS)
        past = part.begin - gap if part.begin - gap >= MIN_STEPS else 0
        before = median(self._relative[:past, unit]) if past else 0.0  # a stall in it tells nothing
        where = Where(length, past, gap if past else 0)
        error = 0.0 if self._errors is None else float(self._errors[unit])
        noise = Noise(blocks, where, spread, error, wider)
        of_noise = noise.chances(level, before)
        by_noise = max(of_noise.now * tests / self._at_a_look, of_noise.ever * self._count / self._in_all)
        if by_noise > 1 and of_noise.ever * tests > self._doubted:
            return None
        of_moments, of_their_length = self._of_moments(part, level, unit, others)
        now = max(of_noise.now, of_moments)
        # One step that is most of it may be an accident: the others are beyond noise as well.
        rest = (level * length - float(self._relative[part.begin : part.end, unit].max())) / (length - 1)
        of_rest = noise.chances(rest, before).now if rest < HALF * level else 0.0
        chance = max(by_noise, max(of_moments, of_rest) * tests / self._at_a_look)
        cost = level * length / len(self._relative)
        # What is there in most of all steps is no moment of a recording; that may be one itself, and tell nothing.
        lasts = len(self._relative) == length and (self._relative[:, unit] > level / 2).mean() >= MOST
        unlikely = max(of_noise.ever, 0.0 if lasts else of_their_length) * tests <= self._doubted
        more = max(1.0, math.log(self._at_a_look / tests) / math.log(min(0.5, max(now, 1e-300))))
        doubtful = unlikely and cost >= DOUBTED_COST and not (self._live and part.end < len(self._relative))
        return Found(unit, part, level, cost, chance, math.ceil(length * more)) if chance <= 1 or doubtful else None

    def _spread(self, unit: int, typical: Floats) -> Floats:
        """How far the `typical` excess of others tells that healthy ones differ. Of two or three that are compared with
        each other alone, one that is slow makes the others look fast by as much, or by half: they tell nothing of each
        other."""
        is_own = self._work[self._once] == self._work[unit] if self._few[unit] else self._once == unit
        others, few = typical[~is_own], self._few[self._once[~is_own]]
        middle = 0.0 if few.all() else median(others[~few])
        return spread_of(np.where(few, others, others - middle), self._units.kinds)

    def _within(self, part: Part) -> Sequence[Blocks]:
        """The blocks of the series. Of few, none across the bounds of the part, nor near them, where the change may lie
        as well: a slow one's own would be, and those of ranks that are compared with it."""
        steps = len(self._relative)
        if len(self._some) > FEW or part.end - part.begin == steps:
            return self._blocks
        near = min(steps // (2 * PARTS), (part.end - part.begin) // 4)
        inner = [place for place in (part.begin, part.end) if 0 < place < steps]
        begins, ends = [0, *(place + near for place in inner)], [*(place - near for place in inner), steps]
        pieces = (self._relative[begin:end, self._some] for begin, end in zip(begins, ends, strict=True))
        return joined_blocks([*(blocks_of(each) for each in pieces if len(each)), self._earlier])

    def _of_moments(self, part: Part, level: float, unit: int, others: NDArray[np.int64]) -> tuple[float, float]:
        """The chance that moments alone make the unit stray in as many blocks, and that they last for as long. They
        have to explain half of its level, as often as the others stray so far; and half of what it strays by where it
        does, which is much more if that is now and then, as often as the one of them that strays so far most."""
        first = -((self._first - part.begin) // self._block) if part.begin > self._first else 0
        last = (part.end - self._first) // self._block
        moments, theirs = self._moments[first:last, unit], self._moments[:, others]
        late = np.maximum(moments, 0.0)
        typical = max(level, float((late**2).sum() / max(late.sum(), 1e-12)))
        chance, of_length = self._beyond(level / 2, moments, theirs)
        most = (theirs > typical / 2).sum(axis=0).argsort()[-1:]  # nobody, where it is alone
        rare, of_rare = self._beyond(typical / 2, moments, theirs[:, most])
        return min(chance, 2 * rare), min(of_length, 2 * of_rare)  # two tests, the second has half of what is allowed

    def _beyond(self, bound: float, moments: Floats, theirs: Floats) -> tuple[float, float]:
        """The chance that moments make it stray so far in as many blocks, beside `theirs`, and for as long: one step of
        half a minute is one block."""
        own, own_begins = _strays(moments[:, None] > bound)
        longer = float(np.maximum(moments[moments > bound] - 1, 0.0).sum())
        strayed = theirs > bound
        beside, begins = _strays(strayed, math.ceil(LONGEST_MOMENT_SECONDS / (self._block * self._step)))
        share = (begins + self._stray_share * PRIOR_BLOCKS) / (strayed.size + PRIOR_BLOCKS)
        lasts = (beside - begins + self._usually_lasts * PRIOR_BLOCKS) / (beside + PRIOR_BLOCKS)
        lasts = max(lasts, self._usually_lasts)
        chance = chance_of_moments(own_begins, own, len(moments), min(max(share, self._stray_share), 0.999), lasts)
        return chance, chance * lasts**longer

    def by_turns(self) -> Turns:
        """Those that are beyond noise, which would be so once in ERRORS of windows, for so long that moments seldom
        are."""
        if self._live:
            return Turns()
        moments = self._moments[:, self._some]
        sigmas = errors_beyond(ERRORS / max(moments.size, 1), max(moments.size, 1))
        strayed = moments > max(MIN_COST, sigmas * MAD_TO_SIGMA * deviation(moments))
        blocks = 1 + math.ceil(math.log(DOUBTED_ERRORS) / math.log(self._usually_lasts))
        if len(moments) < blocks:
            return Turns()
        lasting = np.lib.stride_tricks.sliding_window_view(strayed, blocks, axis=0).all(axis=-1)
        cost = np.where(lasting, moments[blocks - 1 :], 0.0).max(axis=1).sum() / len(moments)
        several = lasting.any(axis=0)
        is_dear = cost >= DOUBTED_COST and several.sum() > 1
        return Turns(tuple(self._some[several].tolist()), float(cost)) if is_dear else Turns()


def _strays(strayed: NDArray[np.bool_], longest: int | None = None) -> tuple[int, int]:
    """In how many blocks of [K, U] units stray, and in how many of these they begin to; without what is longer than
    `longest` blocks, and so no moment."""
    apart = np.zeros((strayed.shape[1], len(strayed) + 2), np.bool_)
    apart[:, 1:-1] = strayed.T
    changes = np.flatnonzero(apart.ravel()[1:] != apart.ravel()[:-1])
    lengths = changes[1::2] - changes[::2]
    kept = lengths if longest is None else lengths[lengths <= longest]
    return int(kept.sum()), len(kept)


def confidence(margin: float) -> float:
    """0.6 for an excess at its threshold, 0.8 at twice and 0.95 at four times that, never above 0.99. Our own scale."""
    return min(0.99, 1 - 0.4 * float(2.0 ** (1 - max(margin, 1.0))))


def segment(relative: Sequence[float] | Floats, level: float) -> Part:
    """The steps from and to which a series is about `level`, and not 0: the run with the largest sum beyond half of
    it."""
    sums = np.concatenate(([0.0], np.cumsum(np.nan_to_num(np.asarray(relative)) - level / 2)))
    lowest = np.minimum.accumulate(sums)
    end = int(np.argmax(sums - lowest))
    return Part(int(np.argmin(sums[: end + 1])), end)
