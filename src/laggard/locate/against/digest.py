"""Makes the digest of a run: what its steps are made of, and what surrounds it; each time with how much it may be
wrong. Pure.

The error of a part is what the noise of its own steps tells, by the models of a verdict on ranks (slow/noise.py): how
long noise lasts, and what healthy ranks differ by for good, as two runs of one program do. What else runs on a machine
makes single steps longer. So a quarter of the steps is trimmed at each end, with the standard error of Yuen (The
two-sample trimmed t for unequal population variances, Biometrika 61, 1974).

What few steps have, such as checkpoints, comes as in a renewal process (Cox, Renewal Theory, 1962): the variance of
their number is their number times the squared variation of the distances between them, and at even distances there is
one more or less.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import OPS, PHASES
from laggard.kit.majority import grouped
from laggard.kit.words import printable_line
from laggard.locate.job_timings import WARM_UP_STEPS, Floats, JobTimings
from laggard.locate.links.channels import channels_and_transfers
from laggard.locate.medians import as_slice, last_axis_median, median, median_over_steps, middle, over_phases
from laggard.locate.shares import HALF, MOST
from laggard.locate.slow.noise import NO_SPREAD, Noise, Where, blocks_of
from laggard.locate.slow.steps import SCRIPTS
from laggard.locate.slow.tested import DOUBTED_COST
from laggard.rankfile.fact_names import member_runs
from laggard.wire import digest as wire
from laggard.wire.digest import IN_FEW_STEPS, MAX_ROWS, Digest, DigestOperation, DigestRow, Estimate

NOTHING: Final = Estimate(0.0, 0.0)


def usual_seconds(series: Floats, trimmed: float = 1 - MOST) -> Estimate:
    """What a part that every step has takes, in seconds a step, and its error: the mean without the share `trimmed` at
    each end. `series` [S] ascends by step, nan is not known. What two runs differ by for good is in
    proportion to the part, as what two ranks differ by is to the step. Of what may be in one step and not in the next,
    as waiting for a data loader, all counts: of eleven real runs with a slow disk one is told by that alone."""
    known = series[np.isfinite(series)].astype(np.float64)
    if len(known) < 2:
        return Estimate(float(known.sum()), math.inf)
    ordered, cut = np.sort(known), int(trimmed * len(known))
    kept = ordered[cut : len(known) - cut]
    usual = float(kept.mean())
    if not kept[-1] > kept[0] or not usual > 0:  # as of a phase that is never there
        return Estimate(usual, float(kept[-1] - kept[0]))
    inner = np.clip(known, kept[0], kept[-1]) / (1 - 2 * cut / len(known))
    noise = Noise(blocks_of(inner[:, None] / usual), Where(len(known)), NO_SPREAD)
    return Estimate(usual, noise.deviation * usual)


def rare_seconds(series: Floats) -> Estimate:
    """What few steps have takes, such as a checkpoint, in seconds a step on average of all."""
    known = series[np.isfinite(series)]
    at = np.flatnonzero(known > 0)
    if not len(at):
        return NOTHING
    there, gaps = known[at], np.diff(at)
    uneven = float(gaps.var() / gaps.mean() ** 2) if len(gaps) > 1 else 1.0
    number = len(at) * uneven + HALF**2  # a count of either of two neighbours varies by that at most
    error = math.sqrt(number * float(there.mean()) ** 2 + len(at) * float(there.var())) / len(known)
    return Estimate(float(known.mean()), error)


def _steady(timings: JobTimings) -> JobTimings:
    """The job in the steps that at least half of the ranks have finished, after the warm-up."""
    finished = np.isfinite(timings.step_seconds).sum(axis=1)
    rows = np.flatnonzero((finished > 0) & (finished >= len(timings.ranks) / 2) & (timings.steps >= WARM_UP_STEPS))
    kept = as_slice(rows)
    names = ("steps", "step_seconds", "phase_seconds", "waited_seconds")
    return dataclasses.replace(timings, **{name: getattr(timings, name)[kept] for name in names})


def _drift(duration: Floats) -> float:
    """The step in the middle of the last third over that of the first."""
    third = max(1, len(duration) // 3)
    first, last = median(duration[:third]), median(duration[-third:])
    return last / first if first > 0 else 1.0


MIDDLE_RANKS: Final = 512
"""The most ranks of which a median is made: more would copy gigabytes for a digit that nobody reads."""

ALL_PARTS: Final = tuple(name + suffix for name in PHASES for suffix in ("", IN_FEW_STEPS))


def digest_of(timings: JobTimings, **about: Any) -> Digest | None:
    """The digest of what is known of a run; None where no step after the warm-up is. `about`: fields of it that the
    timings do not tell, or less well."""
    timings = _steady(timings)
    if not len(timings.steps):
        return None
    duration = last_axis_median(timings.step_seconds)
    phases, rows = _rows(timings, median(duration))
    calls = _calls(timings)
    groups = timings.collectives.groups if timings.collectives else ()
    usual, rare = _usual_and_rare(duration, median(duration))
    told: dict[str, Any] = {
        "job_id": _text(timings.job_id or "") or None,
        "script": _text(timings.script or "") or None,
        "started_at": timings.started_at,
        "world_size": timings.world_size,
        "ranks_seen": len(timings.ranks),
        "first_step": int(timings.steps[0]),
        "last_step": int(timings.steps[-1]),
        "steps": len(timings.steps),
        "step": _rounded(usual),
        "rare": _rounded(rare),
        "waits": _waits(timings),
        "drift": round(_drift(duration), 4),
        "phases": phases,
        "rows": rows,
        "operations": _operations(timings),
        "layout": layout_text(((_text(it.role) or "group", len(it.ranks)) for it in groups if it.ranks), calls),
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


def _waits(timings: JobTimings) -> Estimate | None:
    """What the rank that waits least in a step is blocked. A single rank waits for nobody."""
    if not timings.waits_recorded or len(timings.ranks) < 2:
        return None
    with np.errstate(invalid="ignore"):
        return _rounded(usual_seconds(np.fmin.reduce(timings.waited_seconds, axis=1)))


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


def _rows(timings: JobTimings, whole: float) -> tuple[tuple[str, ...], tuple[DigestRow, ...]]:
    """The phases that are long enough to be told, and the rows. `whole`: a step's seconds."""
    places = _places(timings)
    own = [tuple(_own(_middle_rank(timings.phase_seconds, place.columns), whole)) for place in places]
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
        if phase in SCRIPTS or (len(known) and (known > 0).mean() < HALF):
            yield from (rare_seconds(column), NOTHING)
        elif phase == PHASES.index("input"):
            yield from (usual_seconds(column, trimmed=0.0), NOTHING)
        else:
            yield from _usual_and_rare(column, whole)


def _usual_and_rare(series: Floats, whole: float) -> tuple[Estimate, Estimate]:
    """What `series` [S] takes in most steps, and what few have beyond that: twice the usual, and DOUBTED_COST of a step
    of `whole` seconds more."""
    known = series[np.isfinite(series)]
    usual = middle(known) if len(known) else 0.0
    beyond = np.where(known - usual > max(usual, DOUBTED_COST * whole), known - usual, 0.0)
    return usual_seconds(known), rare_seconds(beyond)


def _runs(ranks: NDArray[np.int64]) -> tuple[int, ...]:
    """As member_runs(); of ranks without any pattern the first and the last."""
    numbers = ranks.tolist()
    return tuple(member_runs(numbers) or (numbers[0], 1, 1, numbers[-1], 1, 1))


def _places(timings: JobTimings) -> list[_Place]:
    """Each rank; of a job of more ranks the ranks of each node that do the same work; of one of more such places the
    kinds of work, and the places that differ the most from what others of their kind take."""
    columns, nodes = range(len(timings.ranks)), timings.nodes
    alike = [0] * len(columns) if timings.positions is None else timings.positions.tolist()
    together = grouped(columns, lambda at: (nodes[at], alike[at], at if len(columns) <= MAX_ROWS else -1))
    places = [_Place(np.array(those), node, kind) for (node, kind, _), those in together.items()]
    if len(places) <= MAX_ROWS:
        return places
    busy = median_over_steps(over_phases(timings.phase_seconds))
    kinds = {kind: np.array(those) for kind, those in grouped(columns, alike.__getitem__).items()}
    usual = {kind: median(busy[those]) for kind, those in kinds.items()}
    whole = [_Place(kinds[kind], None, kind, whole=True) for kind in sorted(kinds)[: MAX_ROWS // 2]]
    farthest = sorted(places, key=lambda place: -abs(median(busy[place.columns]) - usual[place.alike]))
    named = sorted(farthest[: MAX_ROWS - len(whole)], key=lambda place: int(place.columns[0]))
    return [*whole, *named]


def _calls(timings: JobTimings) -> dict[str, float]:
    """Collectives a step of a rank, by operation and role."""
    found = timings.collectives
    if found is None or not len(found.op):
        return {}
    kept = np.isin(found.step, timings.steps) & (found.op >= 0)
    counts: Counter[str] = Counter()
    for (op, group), number in Counter(zip(found.op[kept].tolist(), found.group[kept].tolist(), strict=True)).items():
        counts[f"{OPS[op]} {_text(found.groups[group].role) or 'group'}"] += number
    rows = len(timings.steps) * len(timings.ranks)
    return {name: round(count / rows, 3) for name, count in sorted(counts.items())[:64]}


def layout_text(groups: Iterable[tuple[str, int]], calls: Mapping[str, float]) -> tuple[str, ...]:
    """The groups of the roles in which there are collectives step after step. `groups`: role and size of each."""
    used = {name.partition(" ")[2] for name, count in calls.items() if count >= HALF}
    counts = Counter(group for group in groups if group[0] in used)
    return tuple(f"{count} x {role} of {size}" for (role, size), count in sorted(counts.items())[:64])


def _operations(timings: JobTimings) -> tuple[DigestOperation, ...]:
    if timings.collectives is None or not len(timings.collectives.op):
        return ()
    channels, transfers = channels_and_transfers(timings, timings.collectives)

    def kind_of(row: int) -> tuple[str, str, int]:
        channel = channels[int(transfers.channel[row])]
        return OPS[int(transfers.op[row])], _text(channel.role) or "group", len(channel.columns)

    alike = grouped(np.flatnonzero(np.isin(transfers.step, timings.steps)).tolist(), kind_of)
    found = []
    for (op, role, members), several in alike.items():
        rows = np.array(several)
        numbers, cells, count = transfers.by_step(rows, timings.steps)
        taken = np.bincount(cells, np.nan_to_num(transfers.least[rows]), count.size).astype(np.float64)
        is_usual = float((count > 0).mean()) >= HALF
        estimate = usual_seconds if is_usual else rare_seconds
        seconds = np.where((count > 0) | (not is_usual), taken.reshape(count.shape), np.nan)
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
