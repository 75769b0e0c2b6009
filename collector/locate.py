"""Which rank makes the others wait: one pure function from arrays to a verdict.

In a synchronous job every rank's step is equally long; the slow one is the one that waits least. So what is compared
is the time a rank was busy (own time, input included, collectives taken out), each step with the median of its peers
in the same step: durations on each rank's own clock, never one clock with another.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from laggard.collector.deaths import dead_culprits
from laggard.collector.evidence import Evidence, Floats
from laggard.model import Culprit, Location, Note, Verdict, Window
from laggard.names import PHASES

MIN_STEPS = 8  # fewer say nothing: one garbage collection or page fault is a large share of them
WARM_UP_STEPS = 2  # allocation, compilation and the first input are not the machine's speed
SLOW_RATIO = 0.08  # of the step time: below it lies what healthy ranks differ by
PERSISTENT_SHARE = 0.8  # of the steps since it began
SPREADS = 4.0  # times the spread among the peers' own medians
INPUT = PHASES.index("input")


def locate(evidence: Evidence) -> Location:
    """The verdict on one job. No culprit where the ranks differ by no more than healthy ones do."""
    steps = _Steps.usable(evidence)
    dead = dead_culprits(evidence)
    notes = [*_partial(evidence), *dead.notes]
    if steps is None:
        count = len(evidence.steps)
        notes.append(Note("too_few_steps", f"{count} steps seen, {MIN_STEPS + WARM_UP_STEPS} are needed for a verdict"))
        verdict = Verdict.FAIL if dead.culprits else Verdict.UNKNOWN
        return _location(evidence, None, verdict, None, dead.culprits, notes)
    slow = _slow_ranks(steps)
    savings, ratio = _savings(steps, slow)
    culprits = [_culprit(evidence, steps, each, saved) for each, saved in zip(slow, savings, strict=True)]
    culprits = [*dead.culprits, *_by_host(evidence, culprits)]
    verdict = Verdict.FAIL if culprits else Verdict.OK
    if not culprits and _hidden_waits(evidence, steps):
        verdict = Verdict.UNKNOWN
        notes.append(
            Note("unseen_ranks", "the ranks that are seen wait for others; the slow one may be one that is not")
        )
    return _location(evidence, steps, verdict, ratio, tuple(culprits), notes)


@dataclasses.dataclass(frozen=True)
class _Steps:
    """The steps to judge by, over S steps and R ranks."""

    numbers: NDArray[np.int64]  # [S]
    duration: Floats  # [S]: the ranks' median
    phases: Floats  # [S, R, P]
    busy: Floats  # [S, R]
    waited: Floats  # [S, R]
    excess: Floats  # [S, R]: busy less the peers' median

    @staticmethod
    def usable(evidence: Evidence) -> _Steps | None:
        """Steps after the warm-up that at least half of the ranks have finished; None where they are too few."""
        if len(evidence.ranks) < 2:
            return None
        seen = np.isfinite(evidence.step_seconds).sum(axis=1)
        keep = (seen >= max(2, len(evidence.ranks) / 2)) & (evidence.steps >= WARM_UP_STEPS)
        if keep.sum() < MIN_STEPS:
            return None
        phases = evidence.phase_seconds[keep]
        busy = phases.sum(axis=2)
        return _Steps(
            numbers=evidence.steps[keep],
            duration=np.nanmedian(evidence.step_seconds[keep], axis=1),
            phases=phases,
            busy=busy,
            waited=evidence.waited_seconds[keep],
            excess=busy - peers_median(busy),
        )


def peers_median(values: Floats) -> Floats:
    """For each entry of [S, R] the median of the other ranks' in its row; nan stands for a rank that was not seen."""
    ordered = np.sort(values, axis=1)  # nan last
    count = np.isfinite(values).sum(axis=1)
    rows = np.arange(len(values))

    def at(index: NDArray[np.int64]) -> Floats:
        column: Floats = ordered[rows, np.clip(index, 0, values.shape[1] - 1)][:, None]
        return column

    middle = (count - 1) // 2
    below, centre, above = at(middle - 1), at(middle), at(middle + 1)
    odd = np.where(values < centre, (centre + above) / 2, (below + centre) / 2)
    odd = np.where(values == centre, (below + above) / 2, odd)
    even = np.where(values <= centre, above, centre)
    result: Floats = np.where((count % 2 == 1)[:, None], odd, even)
    result[count < 2] = np.nan
    return result


@dataclasses.dataclass(frozen=True)
class _Slow:
    """A rank that is slow from step index `since` of the window on."""

    column: int
    since: int
    excess: float  # seconds a step
    share: float  # of the steps since then in which it was slow


def _slow_ranks(steps: _Steps) -> list[_Slow]:
    """The ranks that are slow up to the window's end, the slowest first."""
    slow = steps.excess > SLOW_RATIO * steps.duration[:, None]
    since, share = _onset(slow, np.isfinite(steps.excess))
    found = []
    for column in np.flatnonzero(since >= 0):
        tail = slice(since[column], None)
        excess = float(np.nanmedian(steps.excess[tail, column]))
        if excess > SLOW_RATIO * np.median(steps.duration[tail]) and excess > SPREADS * _spread(
            steps, tail, int(column)
        ):
            found.append(_Slow(int(column), int(since[column]), excess, float(share[column])))
    return sorted(found, key=lambda each: -each.excess)


def _onset(slow: NDArray[np.bool_], seen: NDArray[np.bool_]) -> tuple[NDArray[np.int64], Floats]:
    """For each rank the first step from which on it was slow in PERSISTENT_SHARE of the steps in which it was seen,
    and in how many; -1 where there is none that leaves MIN_STEPS."""
    lengths = seen[::-1].cumsum(axis=0)[::-1]
    share = slow[::-1].cumsum(axis=0)[::-1] / np.maximum(lengths, 1)
    possible = slow & (share >= PERSISTENT_SHARE) & (lengths >= MIN_STEPS)
    first = possible.argmax(axis=0)
    columns = np.arange(slow.shape[1])
    return np.where(possible[first, columns], first, -1), share[first, columns]


def _spread(steps: _Steps, tail: slice, column: int) -> float:
    """How much the other ranks' median excess differs among them: the median absolute deviation, as a sigma."""
    if steps.busy.shape[1] < 4:
        return 0.0
    others = np.nanmedian(np.delete(steps.excess[tail], column, axis=1), axis=0)
    return 1.4826 * float(np.nanmedian(np.abs(others - np.nanmedian(others))))


def _savings(steps: _Steps, slow: list[_Slow]) -> tuple[list[float], float]:
    """What fixing each saves, as a share of the step time, one after the other from the slowest; and the step time
    over that with all of them fixed. A step lasts as long as its busiest rank: replayed with that rank's busy time
    brought down to its peers' median."""
    busy = steps.busy.copy()
    peers = peers_median(busy)
    longest = np.nanmax(busy, axis=1)
    savings, whole = [], np.zeros(len(busy))
    for each in slow:
        busy[each.since :, each.column] = np.minimum(busy, peers)[each.since :, each.column]
        shorter = np.nanmax(busy, axis=1)
        saved = np.clip(longest - shorter, 0, steps.duration)
        savings.append(float(np.median(saved[each.since :] / steps.duration[each.since :])))
        whole += saved
        longest = shorter
    first = min((each.since for each in slow), default=0)
    left = np.maximum(steps.duration - whole, 1e-9)[first:]
    return savings, float(np.median(steps.duration[first:]) / np.median(left))


def _culprit(evidence: Evidence, steps: _Steps, slow: _Slow, saved: float) -> Culprit:
    tail, column = slice(slow.since, None), slow.column
    mine = np.nanmedian(steps.phases[tail, column], axis=0)
    peers = np.nanmedian(np.delete(steps.phases[tail], column, axis=1), axis=(0, 1))
    phase = int(np.argmax(mine - peers))
    others_busy = float(np.nanmedian(np.delete(steps.busy[tail], column, axis=1)))
    node = evidence.nodes[column]
    rank = int(evidence.ranks[column])
    return Culprit(
        kind="slow_input" if phase == INPUT else "slow_compute",
        ranks=(rank,),
        node=node,
        gpu=evidence.gpus[column],
        phase=PHASES[phase] if PHASES[phase] != "other" else None,
        slowdown_ratio=round((others_busy + slow.excess) / max(others_busy, 1e-9), 3),
        recoverable_ratio=round(saved, 3),
        since_step=int(steps.numbers[slow.since]),
        persistence="persistent",
        confidence=_confidence(slow, len(steps.numbers)),
        evidence=_reasons(steps, slow, mine, peers, phase),
        findings=explaining(evidence, node),
        victims=tuple(int(other) for other in evidence.ranks if other != rank)[:64],
    )


def explaining(evidence: Evidence, node: str | None) -> tuple[str, ...]:
    """The findings of this node that not all others of the job have: what all have makes none of them the slower."""
    others = [evidence.findings_by_node.get(other or "", ()) for other in set(evidence.nodes) if other != node]
    mine = evidence.findings_by_node.get(node or "", ())
    return tuple(code for code in mine if not others or not all(code in theirs for theirs in others))


def _confidence(slow: _Slow, steps: int) -> float:
    """Laplace's rule of succession on the steps in which it was slow: 8 of 8 give 0.9, 100 of 100 give 0.99."""
    count = steps - slow.since
    return round((slow.share * count + 1) / (count + 2), 2)


def _reasons(steps: _Steps, slow: _Slow, mine: Floats, peers: Floats, phase: int) -> tuple[str, ...]:
    tail, column = slice(slow.since, None), slow.column
    waited = float(np.nanmedian(steps.waited[tail, column]))
    others = float(np.nanmedian(np.delete(steps.waited[tail], column, axis=1)))
    count = len(steps.numbers) - slow.since
    return (
        f"{mine[phase]:.3f} s a step in {PHASES[phase]}, its peers {peers[phase]:.3f} s",
        f"waits {waited:.3f} s a step in collectives, its peers {others:.3f} s",
        f"busier than its peers in {round(slow.share * count)} of the last {count} steps",
    )


def _by_host(evidence: Evidence, culprits: list[Culprit]) -> list[Culprit]:
    """Where all of a machine's ranks are slow in the same phase, and others' are not, the machine is the culprit."""
    merged: list[Culprit] = []
    for culprit in culprits:
        mates = [each for each in culprits if each.node == culprit.node and each.phase == culprit.phase]
        size = sum(node == culprit.node for node in evidence.nodes)
        if culprit.node is None or len(mates) < 2 or len(mates) < size or size == len(evidence.nodes):
            merged.append(culprit)
        elif culprit is mates[0]:
            merged.append(_host(evidence, mates))
    return merged


def _host(evidence: Evidence, mates: list[Culprit]) -> Culprit:
    ranks = tuple(sorted(rank for mate in mates for rank in mate.ranks))
    return Culprit(
        kind="slow_host",
        ranks=ranks,
        node=mates[0].node,
        phase=mates[0].phase,
        slowdown_ratio=max(mate.slowdown_ratio or 1.0 for mate in mates),
        recoverable_ratio=round(sum(mate.recoverable_ratio or 0.0 for mate in mates), 3),
        since_step=min(mate.since_step or 0 for mate in mates),
        confidence=min(mate.confidence for mate in mates),
        evidence=(f"all {len(ranks)} ranks of the machine are slow", *mates[0].evidence),
        findings=mates[0].findings,
        victims=tuple(int(rank) for rank in evidence.ranks if rank not in ranks)[:64],
    )


def _partial(evidence: Evidence) -> list[Note]:
    missing = evidence.world_size - len(evidence.ranks)
    if missing <= 0:
        return []
    unseen = sorted(set(range(evidence.world_size)) - {int(rank) for rank in evidence.ranks})[:64]
    text = f"{len(evidence.ranks)} of {evidence.world_size} ranks are seen"
    return [Note("partial", text, ranks=tuple(unseen))]


def _hidden_waits(evidence: Evidence, steps: _Steps) -> bool:
    """Whether a rank that is not seen may be what all that are seen wait for."""
    if len(evidence.ranks) >= evidence.world_size:
        return False
    return bool(np.nanmedian(steps.waited / steps.duration[:, None]) > SLOW_RATIO)


def _location(
    evidence: Evidence,
    steps: _Steps | None,
    verdict: Verdict,
    ratio: float | None,
    culprits: tuple[Culprit, ...],
    notes: list[Note],
) -> Location:
    window = Window()
    if steps is not None:
        seconds = round(float(np.nansum(steps.duration)), 3)
        window = Window(int(steps.numbers[0]), int(steps.numbers[-1]), seconds)
    return Location(
        verdict=verdict,
        job_id=evidence.job_id,
        world_size=evidence.world_size,
        ranks_seen=len(evidence.ranks),
        window=window,
        slowdown_ratio=None if ratio is None else round(ratio, 3),
        culprits=culprits,
        notes=tuple(notes),
    )
