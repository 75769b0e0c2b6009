"""Makes the digest of a run: what its steps are made of, and what surrounds it; each time with how much it may be
wrong. Pure.

Successive steps are not independent: what else runs on a machine slows many in a row. So a run is cut into blocks of
steps that follow one another, and the blocks count as the observations (batch means: Schmeiser, Batch size effects in
the analysis of simulation output, Operations Research 30, 1982, who finds 10 to 30 of them enough). Others on a machine
make steps longer and never shorter, so that a block's value is the lower quartile of its steps. Of the blocks a fifth
is trimmed at each end, with the standard error of Yuen (The two-sample trimmed t for unequal population variances,
Biometrika 61, 1974). Where neighbouring blocks still go together, the variance grows as that of a first-order
autoregression, by (1 + r) / (1 - r) for their correlation r (Law, Simulation Modeling and Analysis).

Two runs of one program differ by more than that: each has one placement of its memory, its own neighbours and one
temperature. RUN_SHARE of the spread between a run's own blocks is taken for that: a run whose speed changes while it
runs says of itself that the next one may be as different.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import OPS, PHASES, SCRIPT_PHASES
from laggard.kit.majority import grouped
from laggard.kit.words import printable_line
from laggard.locate.job_timings import WARM_UP_STEPS, Floats, JobTimings
from laggard.locate.links.channels import Transfers, channels_and_transfers
from laggard.locate.medians import last_axis_median, median, median_over_steps, over_phases
from laggard.rankfile.fact_names import member_runs
from laggard.wire import digest as wire
from laggard.wire.digest import IN_FEW_STEPS, MAX_ROWS, Digest, DigestOperation, DigestRow, Estimate

MIN_STEPS: Final = 16
"""The least number of steps after the warm-up: eight blocks of two."""

MAX_BLOCKS: Final = 10

QUANTILE: Final = 0.25
"""The part of a block's steps that are shorter than its value. Our own choice: the middle of the half that others on
the machine spare."""

TRIMMED: Final = 0.2
"""The part of the blocks that is trimmed at each end, as Yuen does."""

RUN_SHARE: Final = 0.5
"""The share of the blocks' standard deviation that is taken for the difference of one run from the next. Our own
choice, by pairs of runs without a change on two cores that others use, too, as tests/locate/against makes them."""

MAX_CORRELATION: Final = 0.8
"""The largest correlation of neighbouring blocks that is used: with it about one of ten blocks is independent. Of 300
pairs of like runs of 60 steps, whose noise keeps 98 % from step to step, 14 are told to differ; without it 29."""

EVEN_RATIO: Final = 1.34
"""The ratio of the longest distance between two to the shortest up to which something comes at even distances."""

EDGE_ERROR: Final = 0.5
"""The standard deviation, at most, of how often something regular and rare comes within a window of steps."""

NOTHING: Final = Estimate(0.0, 0.0)


def usual_seconds(series: Floats) -> Estimate:
    """What a part that every step has takes, in seconds a step; `series` [S] ascends by step, nan is not known."""
    return _of_blocks(series, _lower_quartile)


def mean_seconds(series: Floats) -> Estimate:
    """The same for what may be in one step and not in the next, as waiting for a data loader: the mean. Of eleven real
    runs with a slow disk one is told by that alone."""
    return _of_blocks(series, np.mean)


def rare_seconds(series: Floats) -> Estimate:
    """What few steps have takes, such as a checkpoint, in seconds a step on average of all. Where it comes at even
    distances, a window has one more or less of it; where it does not, they come as in a compound Poisson process, of
    which the sum of the squares is the variance of the sum; where they come in clusters, as much as blocks of steps
    differ by may be the next run's."""
    known = series[np.isfinite(series)]
    at = np.flatnonzero(known > 0)
    if not len(at):
        return NOTHING
    there, gaps = known[at], np.diff(at)
    if len(gaps) > 1 and gaps.max() <= EVEN_RATIO * gaps.min():
        spread = there.std() / math.sqrt(len(at)) * len(at) / len(known)
        error = math.hypot(spread, EDGE_ERROR * there.mean() / len(known))
    else:
        by_chance = math.sqrt((there**2).sum()) / len(known)
        error = math.hypot(by_chance, np.std([block.mean() for block in _blocks(known)]))
    return Estimate(float(known.mean()), error)


def _lower_quartile(values: Floats) -> float:
    """np.quantile(values, QUANTILE) in a tenth of its time: a digest takes thousands of them."""
    return float(np.interp(QUANTILE * (len(values) - 1), np.arange(len(values)), np.sort(values)))


def _blocks(series: Floats) -> list[Floats]:
    """The blocks of steps that follow one another; one of a zero where nothing is known."""
    known = series[np.isfinite(series)].astype(np.float64)
    if not len(known):
        return [np.zeros(1)]
    return np.array_split(known, max(1, min(MAX_BLOCKS, len(known) // 2)))


def _of_blocks(series: Floats, value: Callable[[Floats], float]) -> Estimate:
    """The trimmed mean of the `value` of each block, and its error with what the next run may differ by."""
    values = np.array([value(block) for block in _blocks(series)])
    count = len(values)
    if count < 2:
        return Estimate(float(values[0]), math.inf)
    ordered, cut = np.sort(values), int(TRIMMED * count)
    inner = np.clip(values, ordered[cut], ordered[count - cut - 1])
    variance = float(inner.var(ddof=1)) / (1 - 2 * cut / count) ** 2
    apart = inner - inner.mean()
    lag_one = float((apart[1:] * apart[:-1]).sum()) / (float((apart**2).sum()) or 1.0)
    correlation = min(max(lag_one, 0.0), MAX_CORRELATION)
    of_mean = variance / count * (1 + correlation) / (1 - correlation)
    return Estimate(float(ordered[cut : count - cut].mean()), math.sqrt(of_mean + RUN_SHARE**2 * variance))


WARM_UP_RATIO: Final = 1.25
"""The ratio to the run's median from which on a step at the beginning still belongs to the warm-up: compiling, filling
caches, tuning of kernels. Our own choice."""

MAX_WARM_UP_SHARE: Final = 0.25
"""The largest share of the steps that are left out at the beginning for that: a run that is slow for longer is so."""

RARE: Final = tuple(map(PHASES.index, SCRIPT_PHASES))
"""Phases that few steps have."""

RARE_SHARE: Final = 0.5
"""The share of the steps below which any phase counts as one that few have."""

FEW_STEPS_SHARE: Final = 0.1
"""The share of a usual step by which a phase has to be longer than usual for that to count as something that few steps
have."""


class SteadySteps(NamedTuple):
    """S steps over R ranks and P phases. Times in seconds, nan where a rank has no row. `duration` [S]: the ranks'
    median."""

    numbers: NDArray[np.int64]
    phases: Floats  # [S, R, P]
    waited: Floats  # [S, R]
    duration: Floats

    @property
    def drift(self) -> float:
        """The step in the middle of the last third over that of the first."""
        third = max(1, len(self.duration) // 3)
        first, last = median(self.duration[:third]), median(self.duration[-third:])
        return last / first if first > 0 else 1.0


def steady_steps(timings: JobTimings) -> SteadySteps | None:
    """The steps that at least half of the ranks have finished, after the warm-up: the first steps that are far longer
    than the others, one after the other. None where there are none."""
    finished = np.isfinite(timings.step_seconds).sum(axis=1)
    rows = np.flatnonzero((finished > 0) & (finished >= len(timings.ranks) / 2) & (timings.steps >= WARM_UP_STEPS))
    if not len(rows):
        return None
    duration = last_axis_median(timings.step_seconds[rows])
    most = int(MAX_WARM_UP_SHARE * len(rows))
    is_long = duration[:most] > WARM_UP_RATIO * median(duration)
    first = most if is_long.all() else int(np.argmin(is_long))
    rows, duration = rows[first:], duration[first:]
    whole = slice(int(rows[0]), int(rows[-1]) + 1)  # copies nothing, as of a job of many ranks it must not
    chosen = whole if whole.stop - whole.start == len(rows) else rows
    return SteadySteps(timings.steps[rows], timings.phase_seconds[chosen], timings.waited_seconds[chosen], duration)


MIDDLE_RANKS: Final = 512
"""The most ranks of which a median is made: more would copy gigabytes for a digit that nobody reads."""

COUNTED_CALLS: Final = 0.5
"""Collectives a step of a rank from which on an operation belongs to what the job is: barriers now and then do not."""


ALL_PARTS: Final = tuple(name + suffix for name in PHASES for suffix in ("", IN_FEW_STEPS))


def digest_of(timings: JobTimings, **about: Any) -> Digest | None:
    """The digest of what is known of a run; None where no step after the warm-up is. `about`: fields of it that the
    timings do not tell, or less well."""
    steps = steady_steps(timings)
    if steps is None:
        return None
    phases, rows = _rows(timings, steps)
    calls = _calls(timings, steps)
    groups = timings.collectives.groups if timings.collectives else ()
    usual, rare = _usual_and_rare(steps.duration, median(steps.duration))
    told: dict[str, Any] = {
        "job_id": _text(timings.job_id or "") or None,
        "script": _text(timings.script or "") or None,
        "started_at": timings.started_at,
        "world_size": timings.world_size,
        "ranks_seen": len(timings.ranks),
        "first_step": int(steps.numbers[0]),
        "last_step": int(steps.numbers[-1]),
        "steps": len(steps.numbers),
        "step": _rounded(usual),
        "rare": _rounded(rare),
        "waits": _waits(timings, steps),
        "drift": round(steps.drift, 4),
        "phases": phases,
        "rows": rows,
        "operations": _operations(timings, steps),
        "layout": layout_text(((_role(it.role), len(it.ranks)) for it in groups if it.ranks), calls),
        "calls": calls,
        "work": _work(timings),
        "nodes": tuple(sorted({_text(node) for node in timings.nodes if node})[: wire.MAX_NODES]),
        "environment": dict(timings.environment),
    }
    return Digest(**{**told, **about})


def _rounded(found: Estimate) -> Estimate:
    """Few digits, so that a digest stays short."""
    known = np.isfinite(found.seconds) and np.isfinite(found.error)
    return Estimate(float(f"{found.seconds:.4g}"), float(f"{found.error:.2g}")) if known else Estimate(0.0, 1e11)


def _text(text: str) -> str:
    return printable_line(text, wire.MAX_TEXT)


def _waits(timings: JobTimings, steps: SteadySteps) -> Estimate | None:
    """What the rank that waits least in a step is blocked. A single rank waits for nobody."""
    if not timings.waits_recorded or len(timings.ranks) < 2:
        return None
    with np.errstate(invalid="ignore"):
        return _rounded(usual_seconds(np.fmin.reduce(steps.waited, axis=1)))


def _work(timings: JobTimings) -> float:
    if timings.work is None or not timings.work.size:
        return 0.0
    seen = timings.work[timings.work > 0]
    return float(f"{median(np.asarray(seen, np.float64)):.6g}") if len(seen) else 0.0


class _Place(NamedTuple):
    """Ranks that have a row together. `whole`: all that do the same work."""

    columns: NDArray[np.int64]
    node: str | None
    alike: int
    whole: bool = False


def _rows(timings: JobTimings, steps: SteadySteps) -> tuple[tuple[str, ...], tuple[DigestRow, ...]]:
    """The phases that are long enough to be told, and the rows."""
    places = _places(timings, steps)
    whole = median(steps.duration)
    own = [tuple(_own(_middle_rank(steps.phases, place.columns), whole)) for place in places]
    longest = [max(each.seconds for each in of_all) for of_all in zip(*own, strict=True)]
    kept = [part for part, seconds in enumerate(longest) if seconds > 0]
    return tuple(ALL_PARTS[part] for part in kept), tuple(
        DigestRow(
            ranks=_runs(timings.ranks[place.columns]),
            node=_text(place.node) if place.node else None,
            alike=place.alike,
            own=tuple(_rounded(of_place[part]) for part in kept),
            whole=place.whole,
        )
        for place, of_place in zip(places, own, strict=True)
    )


def _middle_rank(phases: Floats, columns: NDArray[np.int64]) -> Floats:
    """[S, P]: the middle of the ranks' own times, of MIDDLE_RANKS of them at most."""
    some = columns[:: -(-len(columns) // MIDDLE_RANKS)]
    return last_axis_median(np.moveaxis(phases[:, some], 1, -1))


def _own(series: Floats, whole: float) -> Iterator[Estimate]:
    """The own time of each of ALL_PARTS, from `series` [S, P]; what few steps have of a phase is one of its own."""
    for phase, column in enumerate(series.T):
        known = column[np.isfinite(column)]
        if phase in RARE or (len(known) and (known > 0).mean() < RARE_SHARE):
            yield from (rare_seconds(column), NOTHING)
        elif phase == PHASES.index("input"):
            yield from (mean_seconds(column), NOTHING)
        else:
            yield from _usual_and_rare(column, whole)


def _usual_and_rare(series: Floats, whole: float) -> tuple[Estimate, Estimate]:
    """What `series` [S] takes in most steps, and what few have beyond that: twice the usual, and FEW_STEPS_SHARE of a
    step of `whole` seconds more."""
    known = series[np.isfinite(series)]
    usual = _lower_quartile(known) if len(known) else 0.0
    beyond = np.where(known - usual > max(usual, FEW_STEPS_SHARE * whole), known - usual, 0.0)
    return usual_seconds(known), rare_seconds(beyond)


def _runs(ranks: NDArray[np.int64]) -> tuple[int, ...]:
    """As member_runs(); of ranks without any pattern the first and the last."""
    numbers = ranks.tolist()
    return tuple(member_runs(numbers) or (numbers[0], 1, 1, numbers[-1], 1, 1))


def _places(timings: JobTimings, steps: SteadySteps) -> list[_Place]:
    """Each rank; of a job of more ranks the ranks of each node that do the same work; of one of more such places the
    kinds of work, and the places that differ the most from what others of their kind take."""
    columns, nodes = range(len(timings.ranks)), timings.nodes
    alike = [0] * len(columns) if timings.positions is None else timings.positions.tolist()
    if len(columns) <= MAX_ROWS:
        return [_Place(np.array([at]), nodes[at], alike[at]) for at in columns]
    together = grouped(columns, lambda at: (nodes[at], alike[at]))
    places = [_Place(np.array(those), node, kind) for (node, kind), those in together.items()]
    if len(places) <= MAX_ROWS:
        return places
    busy = median_over_steps(over_phases(steps.phases))
    kinds = {kind: np.array(those) for kind, those in grouped(columns, alike.__getitem__).items()}
    usual = {kind: median(busy[those]) for kind, those in kinds.items()}
    whole = [_Place(kinds[kind], None, kind, whole=True) for kind in sorted(kinds)[: MAX_ROWS // 2]]
    farthest = sorted(places, key=lambda place: -abs(median(busy[place.columns]) - usual[place.alike]))
    named = sorted(farthest[: MAX_ROWS - len(whole)], key=lambda place: int(place.columns[0]))
    return [*whole, *named]


def _role(name: str) -> str:
    return _text(name) or "group"


def _calls(timings: JobTimings, steps: SteadySteps) -> dict[str, float]:
    """Collectives a step of a rank, by operation and role."""
    found = timings.collectives
    if found is None or not len(found.op):
        return {}
    kept = np.isin(found.step, steps.numbers) & (found.op >= 0)
    counts: Counter[str] = Counter()
    for (op, group), number in Counter(zip(found.op[kept].tolist(), found.group[kept].tolist(), strict=True)).items():
        counts[f"{OPS[op]} {_role(found.groups[group].role)}"] += number
    rows = len(steps.numbers) * len(timings.ranks)
    return {name: round(count / rows, 3) for name, count in sorted(counts.items())[:64]}


def layout_text(groups: Iterable[tuple[str, int]], calls: Mapping[str, float]) -> tuple[str, ...]:
    """The groups of the roles in which there are collectives step after step. `groups`: role and size of each."""
    used = {name.partition(" ")[2] for name, count in calls.items() if count >= COUNTED_CALLS}
    counts = Counter(group for group in groups if group[0] in used)
    return tuple(f"{count} x {role} of {size}" for (role, size), count in sorted(counts.items())[:64])


def _operations(timings: JobTimings, steps: SteadySteps) -> tuple[DigestOperation, ...]:
    if timings.collectives is None or not len(timings.collectives.op):
        return ()
    channels, transfers = channels_and_transfers(timings, timings.collectives)

    def kind_of(row: int) -> tuple[str, str, int]:
        channel = channels[int(transfers.channel[row])]
        return OPS[int(transfers.op[row])], _role(channel.role), len(channel.columns)

    alike = grouped(np.flatnonzero(np.isin(transfers.step, steps.numbers)).tolist(), kind_of)
    found = []
    for (op, role, members), several in alike.items():
        rows = np.array(several)
        numbers, seconds, count = _by_step_and_channel(transfers, rows, steps.numbers)
        is_usual = float((count > 0).mean()) >= RARE_SHARE
        estimate = usual_seconds if is_usual else rare_seconds
        seconds = np.where((count > 0) | (not is_usual), seconds, np.nan)
        slowest = int(np.argmax(np.nanmean(seconds, axis=0)))
        sizes = transfers.size[rows]
        is_one_size = 0 < sizes.max() == sizes.min()
        found.append(
            DigestOperation(
                op=op,
                role=role,
                members=members,
                groups=len(numbers),
                size_bytes=int(sizes[0]) if is_one_size else None,
                bytes=float(f"{max(0.0, float(sizes.sum())) / count.size:.6g}"),
                count=round(float(count.mean()), 3),
                usual=_rounded(estimate(last_axis_median(seconds))),
                slowest=_rounded(estimate(seconds[:, slowest])),
                slowest_ranks=_runs(timings.ranks[np.sort(np.array(channels[int(numbers[slowest])].columns))]),
            )
        )
    return tuple(sorted(found, key=lambda it: -it.slowest.seconds)[: wire.MAX_OPERATIONS])


def _by_step_and_channel(
    transfers: Transfers, rows: NDArray[np.int64], steps: NDArray[np.int64]
) -> tuple[NDArray[Any], Floats, NDArray[Any]]:
    """The numbers [C] of the channels of the transfers in `rows`; their seconds, and how many they are [S, C]."""
    numbers, position = np.unique(transfers.channel[rows], return_inverse=True)
    cells = np.searchsorted(steps, transfers.step[rows]) * len(numbers) + position.reshape(-1)
    shape = len(steps), len(numbers)
    count = np.bincount(cells, minlength=shape[0] * shape[1])
    seconds = np.bincount(cells, np.nan_to_num(transfers.least[rows]), count.size).astype(np.float64)
    return numbers, seconds.reshape(shape), count.reshape(shape)
