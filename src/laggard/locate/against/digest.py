"""Makes the digest of a run: what its steps are made of, and what surrounds it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import OPS, PHASES, SCRIPT_PHASES
from laggard.kit.majority import grouped
from laggard.kit.words import printable_line
from laggard.locate.against.estimate import beyond_usual, mean_seconds, rare_seconds, usual_seconds
from laggard.locate.job_timings import WARM_UP_STEPS, Floats, JobTimings
from laggard.locate.links.channels import Channel, Transfers, channels_and_transfers
from laggard.locate.medians import distinct, last_axis_median, median
from laggard.locate.step_tables import over_phases
from laggard.rankfile.fact_names import member_runs
from laggard.wire.digest import (
    IN_FEW_STEPS,
    MAX_NODES,
    MAX_OPERATIONS,
    MAX_ROWS,
    MAX_TEXT,
    Digest,
    DigestOperation,
    DigestRow,
    Estimate,
)

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

INPUT: Final = PHASES.index("input")


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
    """The steps that at least half of the ranks have finished, after the warm-up; None where there are none."""
    finished = np.isfinite(timings.step_seconds).sum(axis=1)
    kept = (finished > 0) & (finished >= len(timings.ranks) / 2) & (timings.steps >= WARM_UP_STEPS)
    if not kept.any():
        return None
    duration = last_axis_median(timings.step_seconds[kept])
    first = _warm_up(duration)
    rows = np.flatnonzero(kept)[first:]
    whole = slice(int(rows[0]), int(rows[-1]) + 1)  # copies nothing, as of a job of many ranks it must not
    chosen = whole if whole.stop - whole.start == len(rows) else rows
    return SteadySteps(
        timings.steps[rows], timings.phase_seconds[chosen], timings.waited_seconds[chosen], duration[first:]
    )


def _warm_up(duration: Floats) -> int:
    """The number of the first steps that are far longer than the others, one after the other."""
    limit = WARM_UP_RATIO * median(duration)
    most = int(MAX_WARM_UP_SHARE * len(duration))
    short = np.flatnonzero(~(duration[:most] > limit))
    return int(short[0]) if len(short) else most


MIN_PHASE_SHARE: Final = 0.001
"""The share of the step below which a phase is left out of a digest."""

MIDDLE_RANKS: Final = 512
"""The most ranks of which a median is made: more would copy gigabytes for a digit that nobody reads."""

COUNTED_CALLS: Final = 0.5
"""Collectives a step of a rank from which on an operation belongs to what the job is: barriers now and then do not."""


ALL_PARTS: Final = tuple(name + suffix for name in PHASES for suffix in ("", IN_FEW_STEPS))


class Described(NamedTuple):
    """What the timings do not tell of a run."""

    environment: Mapping[str, str] = {}
    owner: int | None = None
    script: str | None = None
    started_at: float | None = None
    made_at: float | None = None
    healthy: bool | None = None
    layout: tuple[str, ...] | None = None
    calls: Mapping[str, float] | None = None


def digest_of(timings: JobTimings, about: Described) -> Digest | None:
    """The digest of what is known of a run; None where no step after the warm-up is. `about.layout` and `about.calls`
    stand where the timings hold no collectives."""
    steps = steady_steps(timings)
    if steps is None:
        return None
    phases, rows = _rows(timings, steps)
    calls, layout = _calls(timings, steps, about.calls), about.layout
    usual = usual_seconds(steps.duration)
    rare = rare_seconds(beyond_usual(steps.duration, FEW_STEPS_SHARE * usual.seconds))
    names = sorted({_text(node) for node in timings.nodes if node})
    return Digest(
        job_id=_text(timings.job_id) if timings.job_id else None,
        owner=about.owner,
        script=_text(about.script or timings.script or "") or None,
        started_at=about.started_at or timings.started_at,
        made_at=about.made_at,
        world_size=timings.world_size,
        ranks_seen=len(timings.ranks),
        first_step=int(steps.numbers[0]),
        last_step=int(steps.numbers[-1]),
        steps=len(steps.numbers),
        step=_rounded(usual),
        rare=_rounded(rare),
        waits=_waits(timings, steps),
        drift=round(steps.drift, 4),
        phases=phases,
        rows=rows,
        operations=_operations(timings, steps),
        layout=_layout(timings, calls) if layout is None else layout,
        calls={name: round(count, 3) for name, count in calls.items()},
        work=_work(timings),
        nodes=tuple(names[:MAX_NODES]),
        environment=dict(about.environment or timings.environment),
        healthy=about.healthy,
    )


def _rounded(found: Estimate) -> Estimate:
    """Few digits, so that a digest stays short."""
    known = np.isfinite(found.seconds) and np.isfinite(found.error)
    return Estimate(float(f"{found.seconds:.4g}"), float(f"{found.error:.2g}")) if known else Estimate(0.0, 1e11)


def _text(text: str) -> str:
    return printable_line(text, MAX_TEXT)


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
    columns: NDArray[np.int64]
    node: str | None
    alike: int
    whole: bool = False


def _rows(timings: JobTimings, steps: SteadySteps) -> tuple[tuple[str, ...], tuple[DigestRow, ...]]:
    """The phases that are long enough to be told, and the rows."""
    places = _places(timings, steps)
    whole = median(steps.duration)
    found = [_own(_middle_rank(steps.phases, place.columns), whole) for place in places]
    longest: dict[str, float] = {}
    for own in found:
        for name, estimate in own.items():
            longest[name] = max(estimate.seconds, longest.get(name, 0.0))
    kept = tuple(name for name, seconds in longest.items() if seconds > MIN_PHASE_SHARE * whole)
    return kept, tuple(
        DigestRow(
            ranks=_runs(timings.ranks[place.columns]),
            node=_text(place.node) if place.node else None,
            alike=place.alike,
            own=tuple(_rounded(own[name]) for name in kept),
            whole=place.whole,
        )
        for place, own in zip(places, found, strict=True)
    )


def _middle_rank(phases: Floats, columns: NDArray[np.int64]) -> Floats:
    """[S, P]: the middle of the ranks' own times, of MIDDLE_RANKS of them at most."""
    some = columns[:: -(-len(columns) // MIDDLE_RANKS)]
    return last_axis_median(np.moveaxis(phases[:, some], 1, -1))


def _own(series: Floats, whole: float) -> dict[str, Estimate]:
    """The own time by phase, from `series` [S, P]; what few steps have of a phase is one of its own."""
    found = {}
    for phase, name in enumerate(PHASES):
        column = series[:, phase]
        known = column[np.isfinite(column)]
        if phase in RARE or (len(known) and (known > 0).mean() < RARE_SHARE):
            found[name] = rare_seconds(column)
        elif phase == INPUT:
            found[name] = mean_seconds(column)
        else:
            found[name] = usual_seconds(column)
            found[name + IN_FEW_STEPS] = rare_seconds(beyond_usual(column, FEW_STEPS_SHARE * whole))
    return {name: found.get(name, Estimate(0.0, 0.0)) for name in ALL_PARTS}


def _runs(ranks: NDArray[np.int64]) -> tuple[int, ...]:
    """As member_runs(); of ranks without any pattern the first and the last."""
    numbers = ranks.tolist()
    return tuple(member_runs(numbers) or (numbers[0], 1, 1, numbers[-1], 1, 1))


def _places(timings: JobTimings, steps: SteadySteps) -> list[_Place]:
    """Each rank; of a job of more ranks each node; of one of more nodes the kinds of work, and the nodes that differ
    the most from what others of their kind take."""
    count = len(timings.ranks)
    alike = np.zeros(count, np.int64) if timings.positions is None else timings.positions.astype(np.int64)
    if count <= MAX_ROWS:
        return [_Place(np.array([at]), timings.nodes[at], int(alike[at])) for at in range(count)]
    for split in (True, False):  # ranks of one node may do different work
        of_nodes = _of_nodes(timings.nodes, alike, split)
        if len(of_nodes) <= MAX_ROWS:
            return of_nodes
    kinds = [
        _Place(np.flatnonzero(alike == kind), None, kind, whole=True)
        for kind in distinct(alike).tolist()[: MAX_ROWS // 2]
    ]
    busy = [median(over_phases(np.nan_to_num(steps.phases[:, place.columns]))) for place in of_nodes]
    usual = {
        kind: median(np.array([busy[at] for at, it in enumerate(of_nodes) if it.alike == kind]))
        for kind in {it.alike for it in of_nodes}
    }
    farthest = sorted(range(len(of_nodes)), key=lambda n: -abs(busy[n] - usual[of_nodes[n].alike]))
    return [*kinds, *(of_nodes[n] for n in sorted(farthest[: MAX_ROWS - len(kinds)]))]


def _of_nodes(nodes: Sequence[str | None], alike: NDArray[np.int64], split: bool) -> list[_Place]:
    places = grouped(range(len(nodes)), lambda at: (nodes[at], int(alike[at]) if split else 0))
    return [_Place(np.array(those), node, int(alike[those[0]])) for (node, _), those in places.items()]


def _role(name: str) -> str:
    return _text(name) or "group"


def _calls(timings: JobTimings, steps: SteadySteps, known: Mapping[str, float] | None) -> dict[str, float]:
    """Collectives a step of a rank, by operation and role."""
    if timings.collectives is None or not len(timings.collectives.op):
        return {_text(name): count for name, count in (known or {}).items()}
    collectives = timings.collectives
    records = np.flatnonzero(np.isin(collectives.step, steps.numbers) & (collectives.op >= 0))
    roles = [_role(group.role) for group in timings.collectives.groups]
    pairs = np.stack((timings.collectives.op[records].astype(np.int64), timings.collectives.group[records]))
    counts: Counter[str] = Counter()
    found, number = np.unique(pairs, axis=1, return_counts=True)
    for (op, group), count in zip(found.T.tolist(), number.tolist(), strict=True):
        counts[f"{OPS[op]} {roles[group]}"] += count
    rows = len(steps.numbers) * len(timings.ranks)
    return {name: count / rows for name, count in sorted(counts.items())[:64]}


def _layout(timings: JobTimings, calls: Mapping[str, float]) -> tuple[str, ...]:
    """The groups of the roles in which there are collectives step after step."""
    if timings.collectives is None:
        return ()
    return layout_text(((_role(it.role), len(it.ranks)) for it in timings.collectives.groups if it.ranks), calls)


def layout_text(groups: Iterator[tuple[str, int]], calls: Mapping[str, float]) -> tuple[str, ...]:
    """`groups`: role and size of each group."""
    used = {name.partition(" ")[2] for name, count in calls.items() if count >= COUNTED_CALLS}
    counts = Counter(group for group in groups if group[0] in used)
    return tuple(f"{count} x {role} of {size}" for (role, size), count in sorted(counts.items())[:64])


class _Kind(NamedTuple):
    """Collectives that are told as one. `size_class`: four times as large is another one."""

    op: int
    role: str
    members: int
    size_class: int


def _operations(timings: JobTimings, steps: SteadySteps) -> tuple[DigestOperation, ...]:
    if timings.collectives is None or not len(timings.collectives.op):
        return ()
    channels, transfers = channels_and_transfers(timings, timings.collectives)
    place = np.minimum(np.searchsorted(steps.numbers, transfers.step), len(steps.numbers) - 1)
    known = np.flatnonzero(steps.numbers[place] == transfers.step)
    kinds: dict[_Kind, list[int]] = {}
    size_class = np.where(transfers.size > 0, np.log2(np.maximum(transfers.size, 1)) // 2, -1).astype(np.int64)
    for row in known.tolist():
        channel = channels[int(transfers.channel[row])]
        kind = _Kind(int(transfers.op[row]), _role(channel.role), len(channel.columns), int(size_class[row]))
        kinds.setdefault(kind, []).append(row)
    found = [
        _operation(kind, np.array(rows), place, transfers, channels, len(steps.numbers), timings)
        for kind, rows in kinds.items()
    ]
    return tuple(sorted(found, key=lambda it: -it.slowest.seconds)[:MAX_OPERATIONS])


def _operation(
    kind: _Kind,
    rows: NDArray[np.int64],
    place: NDArray[np.int64],
    transfers: Transfers,
    channels: Sequence[Channel],
    steps: int,
    timings: JobTimings,
) -> DigestOperation:
    those, position = np.unique(transfers.channel[rows], return_inverse=True)
    cells = place[rows] * len(those) + position.reshape(-1)
    shape = steps, len(those)
    count = np.bincount(cells, minlength=steps * len(those)).reshape(shape)
    weights = np.nan_to_num(transfers.least[rows])
    seconds: Floats = np.bincount(cells, weights, steps * len(those)).reshape(shape).astype(np.float64)
    is_usual = float((count > 0).mean()) >= RARE_SHARE
    seconds = np.where(count > 0, seconds, np.nan) if is_usual else seconds
    slowest = int(np.argmax(np.nanmean(seconds, axis=0)))
    estimate = usual_seconds if is_usual else rare_seconds
    sizes = transfers.size[rows]
    return DigestOperation(
        op=OPS[kind.op],
        role=kind.role,
        members=kind.members,
        groups=len(those),
        size_bytes=int(sizes.mean()) if kind.size_class >= 0 else None,
        bytes=float(f"{max(0.0, float(sizes.sum())) / shape[0] / shape[1]:.6g}"),
        count=round(float(count.mean()), 3),
        usual=_rounded(estimate(last_axis_median(seconds))),
        slowest=_rounded(estimate(seconds[:, slowest])),
        slowest_ranks=_runs(timings.ranks[np.sort(np.array(channels[int(those[slowest])].columns))]),
    )
