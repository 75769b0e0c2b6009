"""Which rank makes the others wait: one pure function from arrays to a verdict.

In a synchronous job every rank's step is equally long; the slow one is the one that waits least. So what is compared
is the time a rank was busy (own time, input included, collectives taken out), each step with the median of its peers
in the same step: durations on each rank's own clock, never one clock with another.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from laggard.collector.deaths import dead_culprits
from laggard.collector.evidence import Evidence
from laggard.collector.hangs import NOBODY, hung_ranks
from laggard.collector.peers import Floats, blocks
from laggard.collector.steps import MIN_STEPS, WARM_UP_STEPS, Steps
from laggard.model import Culprit, Location, Note, Verdict, Window
from laggard.names import PHASES

SLOW_RATIO = 0.08  # of the step time: below it lies what healthy ranks differ by
PERSISTENT_SHARE = 0.8  # of the steps since it began
SPREADS = 4.0  # times the spread among the peers' own medians
INPUT = PHASES.index("input")


def locate(evidence: Evidence) -> Location:
    """The verdict on one job. No culprit where the ranks differ by no more than healthy ones do."""
    steps = Steps.usable(evidence)
    dead = dead_culprits(evidence)
    hung = hung_ranks(evidence, _typical_step(steps)) if not dead.culprits else NOBODY
    stuck = (*dead.culprits, *hung.culprits)
    notes = [*_partial(evidence), *dead.notes, *hung.notes]
    if steps is None:
        count = len(evidence.steps)
        notes.append(Note("too_few_steps", f"{count} steps seen, {MIN_STEPS + WARM_UP_STEPS} are needed for a verdict"))
        verdict = Verdict.FAIL if stuck else Verdict.UNKNOWN
        return _location(evidence, None, verdict, None, stuck, notes)
    slow = _slow_ranks(steps)
    savings, ratio = _savings(steps, slow)
    culprits = [_culprit(evidence, steps, each, saved) for each, saved in zip(slow, savings, strict=True)]
    culprits = [*stuck, *_by_host(evidence, culprits)]
    verdict = Verdict.FAIL if culprits else Verdict.UNKNOWN if hung.notes else Verdict.OK
    if not culprits and _hidden_waits(evidence, steps):
        verdict = Verdict.UNKNOWN
        notes.append(
            Note("unseen_ranks", "the ranks that are seen wait for others; the slow one may be one that is not")
        )
    return _location(evidence, steps, verdict, ratio, tuple(culprits), notes)


def _typical_step(steps: Steps | None) -> float | None:
    return None if steps is None else float(np.median(steps.duration))


@dataclasses.dataclass(frozen=True)
class _Slow:
    """A rank that is slow from step index `since` of the window on."""

    column: int
    since: int
    excess: float  # seconds a step
    share: float  # of the steps since then in which it was slow


def _slow_ranks(steps: Steps) -> list[_Slow]:
    """The ranks that are slow up to the window's end, the slowest first."""
    found = []
    for block in blocks(steps.busy.shape[1]):
        excess = steps.excess(block)
        since, share = _onset(excess > SLOW_RATIO * steps.duration[:, None], np.isfinite(excess))
        for place in np.flatnonzero(since >= 0):
            first = int(since[place])
            typical = float(np.nanmedian(excess[first:, place]))
            if typical > SLOW_RATIO * np.median(steps.duration[first:]):
                found.append(_Slow(block.start + int(place), first, typical, float(share[place])))
    found = [each for each in found if each.excess > SPREADS * steps.peers(each.since).spread(each.column)]
    return sorted(found, key=lambda each: -each.excess)


def _onset(slow: NDArray[np.bool_], seen: NDArray[np.bool_]) -> tuple[NDArray[np.int64], Floats]:
    """For each rank the first step from which on it was slow in PERSISTENT_SHARE of the steps in which it was seen,
    and in how many; -1 where there is none that leaves MIN_STEPS."""
    lengths = seen[::-1].cumsum(axis=0, dtype=np.int32)[::-1]
    share = slow[::-1].cumsum(axis=0, dtype=np.int32)[::-1] / np.maximum(lengths, 1)
    possible = slow & (share >= PERSISTENT_SHARE) & (lengths >= MIN_STEPS)
    first = possible.argmax(axis=0)
    columns = np.arange(slow.shape[1])
    return np.where(possible[first, columns], first, -1), share[first, columns]


def _savings(steps: Steps, slow: list[_Slow]) -> tuple[list[float], float]:
    """What fixing each saves, as a share of the step time, one after the other from the slowest; and the step time
    over that with all of them fixed. A step lasts as long as its busiest rank: replayed with that rank's busy time
    brought down to its peers' median."""
    columns = np.array([each.column for each in slow], dtype=np.int64)
    before = steps.busy[:, columns]
    after = np.minimum(before, steps.middle.without(before))
    for place, each in enumerate(slow):
        after[: each.since, place] = before[: each.since, place]
    longest, steps_after = _longest(steps.busy, columns, before, after)
    savings, whole = [], np.zeros(len(before))
    for each, shorter in zip(slow, steps_after, strict=True):
        saved = np.clip(longest - shorter, 0, steps.duration)
        savings.append(float(np.median(saved[each.since :] / steps.duration[each.since :])))
        whole += saved
        longest = shorter
    first = min((each.since for each in slow), default=0)
    left = np.maximum(steps.duration - whole, 1e-9)[first:]
    return savings, float(np.median(steps.duration[first:]) / np.median(left))


def _longest(
    busy: Floats, columns: NDArray[np.int64], before: Floats, after: Floats
) -> tuple[Floats, Iterator[Floats]]:
    """The busiest rank's time in each step [S], and that with the first of `columns` brought from `before` to `after`,
    with the first two, and so on."""
    others = np.ones(busy.shape[1], dtype=np.bool_)
    others[columns] = False
    rest = np.fmax.reduce(busy, axis=1, where=others[None, :], initial=-np.inf)
    done = np.fmax.accumulate(after, axis=1)
    to_do = np.fmax.accumulate(before[:, ::-1], axis=1)[:, ::-1]
    count = len(columns)
    longest = np.fmax(rest, to_do[:, 0]) if count else rest
    each = (np.fmax(rest, done[:, place]) for place in range(count))
    return longest, (np.fmax(now, to_do[:, place + 1]) if place + 1 < count else now for place, now in enumerate(each))


def _culprit(evidence: Evidence, steps: Steps, slow: _Slow, saved: float) -> Culprit:
    tail, column = slice(slow.since, None), slow.column
    mine = np.nanmedian(steps.phases[tail, column], axis=0)
    peers, others_busy, others_waited = steps.peers(slow.since).medians(column)
    phase = int(np.argmax(mine - peers))
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
        evidence=_reasons(steps, slow, mine, peers, others_waited, phase),
        findings=explaining(evidence, node),
        victims=tuple(itertools.islice((int(other) for other in evidence.ranks if other != rank), 64)),
    )


def explaining(evidence: Evidence, node: str | None) -> tuple[str, ...]:
    """The findings of this node that not all others of the job have: what all have makes none of them the slower."""
    mine = evidence.findings_by_node.get(node or "", ())
    if not mine:
        return ()
    others = [evidence.findings_by_node.get(other or "", ()) for other in set(evidence.nodes) if other != node]
    return tuple(code for code in mine if not others or not all(code in theirs for theirs in others))


def _confidence(slow: _Slow, steps: int) -> float:
    """Laplace's rule of succession on the steps in which it was slow: 8 of 8 give 0.9, 100 of 100 give 0.99."""
    count = steps - slow.since
    return round((slow.share * count + 1) / (count + 2), 2)


def _reasons(
    steps: Steps, slow: _Slow, mine: Floats, peers: Floats, others_waited: float, phase: int
) -> tuple[str, ...]:
    tail, column = slice(slow.since, None), slow.column
    waited = float(np.nanmedian(steps.waited[tail, column]))
    count = len(steps.numbers) - slow.since
    return (
        f"{mine[phase]:.3f} s a step in {PHASES[phase]}, its peers {peers[phase]:.3f} s",
        f"waits {waited:.3f} s a step in collectives, its peers {others_waited:.3f} s",
        f"busier than its peers in {round(slow.share * count)} of the last {count} steps",
    )


def _by_host(evidence: Evidence, culprits: list[Culprit]) -> list[Culprit]:
    """Where all of a machine's ranks are slow in the same phase, and others' are not, the machine is the culprit."""
    merged: list[Culprit] = []
    alike: dict[tuple[str | None, str | None], list[Culprit]] = {}
    for culprit in culprits:
        alike.setdefault((culprit.node, culprit.phase), []).append(culprit)
    sizes = Counter(evidence.nodes) if culprits else Counter()
    for culprit in culprits:
        mates = alike[culprit.node, culprit.phase]
        size = sizes[culprit.node]
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


def _hidden_waits(evidence: Evidence, steps: Steps) -> bool:
    """Whether a rank that is not seen may be what all that are seen wait for."""
    if len(evidence.ranks) >= evidence.world_size:
        return False
    return bool(np.nanmedian(steps.waited / steps.duration[:, None]) > SLOW_RATIO)


def _location(
    evidence: Evidence,
    steps: Steps | None,
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
