"""What still holds of a job's last verdict: slow culprits and their kinds until newer steps refute them. And healthy
jobs that go on as they did."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from laggard.collector.jobs.job import Job, RankWindow, Run
from laggard.collector.jobs.snapshot import JobSnapshot
from laggard.kit.words import counted
from laggard.locate.hang.wait_graph import WAITING_SECONDS, silence
from laggard.locate.job_timings import END, START, STEP, WAITED, JobTimings
from laggard.locate.medians import median_over_steps
from laggard.locate.shares import MIN_COST
from laggard.locate.slow.culprits import DOUBT
from laggard.locate.slow.host_facts import NOT_KNOWN
from laggard.locate.slow.steps import MIN_STEPS, Steps
from laggard.model import Culprit, JobKey, Location, Note, Verdict

# Keeps the kind of a live job's slow culprit. Of a rank near a threshold each verdict would name another kind, and who
# is told would look for another cause each time. Pure.

OTHER_KIND_SECONDS = 30.0
"""The time for which each verdict must name the other kind before it is taken over."""

FORGOTTEN_SECONDS = 60.0
"""The time without being named after which a culprit's kind is decided anew."""

_KINDS = ("slow_compute", "slow_host", "slow_input")

Place = tuple[tuple[int, ...], str | None]
"""The culprit's ranks and phase: the same ranks in another phase have another cause."""


class Kept(NamedTuple):
    """The culprit as it was told last with the kind that it has, when it was named last (monotonic seconds), and since
    when each verdict has named another kind; None: the last one named this kind."""

    culprit: Culprit
    at: float
    other_since: float | None = None


def steady(
    culprits: Sequence[Culprit], before: Mapping[Place, Kept], now: float
) -> tuple[tuple[Culprit, ...], dict[Place, Kept]]:
    """The culprits of a new verdict, each with the kind that it had `before` until another has lasted; and what to pass
    as `before` the next time."""
    kept = {place: each for place, each in before.items() if now - each.at <= FORGOTTEN_SECONDS}
    told = []
    for culprit in culprits:
        place = culprit.ranks, culprit.phase
        if culprit.kind in _KINDS:
            kept[place] = _next(culprit, kept.get(place), now)
            culprit = _with_kind_of(culprit, kept[place])
        told.append(culprit)
    return tuple(told), kept


def _next(new: Culprit, before: Kept | None, now: float) -> Kept:
    if before is None or before.culprit.kind == new.kind or NOT_KNOWN in before.culprit.evidence:
        return Kept(new, now)
    since = now if before.other_since is None else before.other_since
    return Kept(new, now) if now - since >= OTHER_KIND_SECONDS else Kept(before.culprit, now, since)


def _with_kind_of(new: Culprit, kept: Kept) -> Culprit:
    """The numbers are the new verdict's; what the kind rests on, and what to do about it, is the kept one's."""
    former = kept.culprit
    if former.kind == new.kind:
        return new
    evidence = (former.evidence[0], *new.evidence) if former.kind == "slow_host" else new.evidence
    return structs.replace(
        new, kind=former.kind, evidence=evidence, neighbours=former.neighbours, advice=former.advice or new.advice
    )


HOLD_SECONDS = 60.0
"""The time without being found again after which a culprit is over."""

HOLD_PAST_SECONDS = 3600.0
"""The same of a link that became slow: what it was before leaves the window of steps, and nothing finds it again. It is
held while the steps stay as long as they became, and what ranks do themselves does not become longer."""

REFUTING_SECONDS = 10.0
"""The time that newer steps must last to refute a culprit: what is slow now and then has healthy moments of seconds."""

REMAINING_COST_SHARE = 0.25
"""The share of the culprit's cost that newer steps must still show."""


class _Held(NamedTuple):
    """A verdict with slow culprits, when it was drawn (monotonic seconds), on what, and its last step; and when its
    culprits were accused or doubted last: who was accused once is not well while a doubt is left."""

    location: Location
    at: float
    step: int
    timings: JobTimings
    doubted_at: float


class _Evidence(NamedTuple):
    """Of a slow culprit: the last step of the verdict that named it first, by how much of a step its ranks were busier
    until then, when it was told last (monotonic seconds), and whether later steps have shown it again."""

    step: int
    excess: float
    at: float
    shown_again: bool = False


class HeldCulprits:
    """The last culprits of each job. Not thread-safe."""

    def __init__(self) -> None:
        self._held: dict[JobKey, _Held] = {}
        self._kinds: dict[JobKey, dict[Place, Kept]] = {}
        self._evidence: dict[JobKey, dict[tuple[int, ...], _Evidence]] = {}

    def held(self, jobs: Sequence[JobSnapshot], now: float) -> tuple[JobSnapshot, ...]:
        """`jobs`, with the culprits of an earlier verdict where the new one has none and nothing refutes them, and
        which of these other steps have not shown yet than those that accused them."""
        before, self._held = self._held, {}
        kinds, self._kinds = self._kinds, {}
        evidence, self._evidence = self._evidence, {}
        found = []
        for job in jobs:
            told = self._of_job(self._steady(job, kinds, now), before.get(job.key), now)
            found.append(self._with_evidence(told, evidence.get(job.key, {}), now))
        return tuple(found)

    def _with_evidence(self, job: JobSnapshot, before: Mapping[tuple[int, ...], _Evidence], now: float) -> JobSnapshot:
        kept = {ranks: each for ranks, each in before.items() if now - each.at <= FORGOTTEN_SECONDS}
        slow = tuple(each for each in job.location.culprits if each.ranks and each.kind in _KINDS)
        last = job.location.window.last_step or 0
        shown = {each.ranks for each in slow if (it := kept.get(each.ranks)) and it.shown_again and last >= it.step}
        kept |= {ranks: kept[ranks]._replace(at=now) for ranks in shown}
        asked = [each for each in slow if each.ranks not in shown]
        steps = Steps.usable(job.timings) if asked and job.running else None
        if steps is not None:
            for culprit in asked:
                kept[culprit.ranks] = _evidence_of(culprit, kept.get(culprit.ranks), job, steps, now)
        if kept:
            self._evidence[job.key] = kept
        new = tuple(each for each in slow if each.ranks in kept and not kept[each.ranks].shown_again)
        return dataclasses.replace(job, seen_once=new) if new else job

    def _steady(self, job: JobSnapshot, before: Mapping[JobKey, Mapping[Place, Kept]], now: float) -> JobSnapshot:
        if not job.running:
            return job
        culprits, self._kinds[job.key] = steady(job.location.culprits, before.get(job.key, {}), now)
        return dataclasses.replace(job, location=structs.replace(job.location, culprits=culprits))

    def _of_job(self, job: JobSnapshot, before: _Held | None, now: float) -> JobSnapshot:
        found = job.location
        if not job.running:
            return job
        slow = tuple(each for each in found.culprits if each.kind.startswith("slow"))
        if slow:
            if found.window.last_step is not None and len(slow) == len(found.culprits):
                self._held[job.key] = _Held(found, now, found.window.last_step, job.timings, now)
            return job
        if before is None or not _may_be_held(found):
            return job
        doubted = _doubted(found)
        if any(each.ranks and doubted.issuperset(each.ranks) for each in before.location.culprits):
            before = before._replace(doubted_at=now)
        left = tuple(
            each
            for each in before.location.culprits
            if now - before.doubted_at <= _hold_seconds(each, before) and not _is_refuted(each, before, job.timings)
        )
        if not left:
            return job
        self._held[job.key] = before
        return dataclasses.replace(job, location=_with_held(found, left, before, now))


def _evidence_of(culprit: Culprit, before: _Evidence | None, job: JobSnapshot, steps: Steps, now: float) -> _Evidence:
    """What is known of the culprit with these steps."""
    columns, last = np.flatnonzero(np.isin(job.timings.ranks, culprit.ranks)), int(steps.numbers[-1])
    if before is None or last < before.step:
        since = steps.numbers >= min(last, culprit.since_step or 0)
        return _Evidence(last, _busier(steps, columns, since), now)
    newer = steps.numbers > before.step
    is_held = any(note.kind == "held" for note in job.location.notes)
    again = not is_held and newer.sum() >= MIN_STEPS and _busier(steps, columns, newer) >= before.excess / 2
    return before._replace(at=now, shown_again=before.shown_again or bool(again))


def _busier(steps: Steps, columns: NDArray[np.int64], those: NDArray[np.bool_]) -> float:
    """By how much of a step the median of the ranks is busier than its peers in the steps."""
    excess = np.nan_to_num(steps.excess[those][:, columns]).mean(axis=0)
    return float(np.median(excess)) / float(np.median(steps.duration[those])) if len(columns) else 0.0


def _may_be_held(found: Location) -> bool:
    """Whether the new verdict is on steps: where it has another reason for none, such as silent agents, that counts."""
    if found.culprits or found.window.last_step is None:
        return False
    return found.verdict is Verdict.OK or bool(_doubted(found))


def _doubted(found: Location) -> frozenset[int]:
    """The ranks that the verdict doubts, and does not accuse."""
    return frozenset(rank for note in found.notes if note.kind == DOUBT for rank in note.ranks)


def _hold_seconds(culprit: Culprit, before: _Held) -> float:
    first = before.location.window.first_step
    became = first is not None and culprit.since_step is not None and culprit.since_step > first
    lasts = culprit.kind == "slow_link" and culprit.persistence == "persistent" and became
    return HOLD_PAST_SECONDS if lasts else HOLD_SECONDS


def _is_refuted(culprit: Culprit, before: _Held, timings: JobTimings) -> bool:
    """Whether steps that came later show the culprit healthy, or are another run's."""
    columns = np.flatnonzero(np.isin(timings.ranks, culprit.ranks))
    if not len(columns) or any(timings.states[column].state != "running" for column in columns):
        return True
    steps = Steps.usable(timings)
    if steps is None or int(steps.numbers[-1]) < before.step:
        return True
    newer = steps.numbers > before.step
    lasted = float(steps.duration[newer].sum())
    if newer.sum() < MIN_STEPS or lasted < REFUTING_SECONDS:
        return False
    cost = culprit.recoverable_ratio or 0.0
    if culprit.kind == "slow_link":
        step, own = _lengths(before)
        shorter = float(np.median(steps.duration[newer])) < (1 - (1 - REMAINING_COST_SHARE) * cost) * step
        return shorter or _own_seconds(steps, newer) > own + cost / 2 * step
    lost = float(np.nanmean(np.nansum(steps.excess[newer][:, columns], axis=0)))
    return lost < REMAINING_COST_SHARE * cost * lasted


def _lengths(held: _Held) -> tuple[float, float]:
    """The seconds that a step took, and the own time of the busiest rank in it, since the last culprit became slow."""
    steps = Steps.usable(held.timings)
    if steps is None:
        return 0.0, 0.0
    since = max((culprit.since_step or 0 for culprit in held.location.culprits), default=0)
    those = steps.numbers >= min(since, int(steps.numbers[-1]))
    return float(np.median(steps.duration[those])), _own_seconds(steps, those)


def _own_seconds(steps: Steps, those: NDArray[np.bool_]) -> float:
    return float(np.nanmax(median_over_steps(steps.busy[those])))


def _with_held(found: Location, culprits: tuple[Culprit, ...], before: _Held, now: float) -> Location:
    ago = counted(round(now - before.at), "second")
    text = f"as of step {before.step}, {ago} ago: the steps since then neither show it as clearly nor refute it"
    return structs.replace(
        found,
        verdict=Verdict.FAIL,
        culprits=culprits,
        slowdown_ratio=before.location.slowdown_ratio,
        notes=(*found.notes, Note("held", text)),
    )


# The jobs that need not be judged again in this round: they were healthy in the last one, and go on as they did.
#
# A job is judged in every second round whatever it does, and in the others where anything has moved, so that a fault is
# named one round later at most, and a verdict is never older than the round before. Pure but for what is kept.

CALM_RATIO: Final = 2 * MIN_COST
"""The share of a step by which a rank's own time beside its peers', and the step, may differ from what they were: less
is accused after many rounds, if at all, and each second one judges it anyway."""


RECENT_STEPS: Final = 32
"""The last steps of a verdict that those after it are compared with."""


class _Kept(NamedTuple):
    """A healthy job as it was judged in the last round: its last step, how long a step was, and by how much each rank's
    own time was above the median of all, in seconds a step."""

    snapshot: JobSnapshot
    run: Run
    ranks: tuple[int, ...]
    last: int
    step: float
    excess: NDArray[np.float64]


class CalmJobs:
    """The jobs that were healthy in the last round. Not thread-safe: one round follows the other."""

    def __init__(self) -> None:
        self._kept: dict[JobKey, _Kept] = {}
        self._before: dict[JobKey, _Kept] = {}
        self._round = 0
        self._judges_all = True

    def begin_round(self, judges_all: bool) -> None:
        """`judges_all`: somebody asked for a verdict on what is now."""
        self._before, self._kept = self._kept, {}
        self._round += 1
        self._judges_all = judges_all

    def still(self, key: JobKey, job: Job, answering: Collection[str]) -> JobSnapshot | None:
        """The job as it was judged in the last round, where it goes on as it did; None where it is to be judged."""
        kept = self._before.get(key)
        if kept is None or self._judges_all or self._is_due(key) or job.run != kept.run or job.has_collectives:
            return None
        ranks = [job.ranks[number] for number in sorted(job.ranks)]
        if tuple(sorted(job.ranks)) != kept.ranks or not all(_goes_on(rank, answering) for rank in ranks):
            return None
        return None if _has_moved([rank.table for rank in ranks], kept) else kept.snapshot

    def judged(self, snapshot: JobSnapshot, run: Run) -> None:
        """Takes down a verdict that was drawn in this round."""
        location, timings = snapshot.location, snapshot.timings
        if location.verdict is not Verdict.OK or location.culprits or not snapshot.running:
            return
        lasted = timings.step_seconds[-RECENT_STEPS:]
        if np.isfinite(lasted).any(axis=0).all():
            own = np.nanmean(lasted - timings.waited_seconds[-RECENT_STEPS:], axis=0)
            step = float(np.median(np.nanmean(lasted, axis=0)))
            ranks, last = tuple(timings.ranks.tolist()), int(timings.steps[-1])
            self._kept[snapshot.key] = _Kept(snapshot, run, ranks, last, step, own - np.median(own))

    def _is_due(self, key: JobKey) -> bool:
        """Half of the jobs in each round, each in every second one."""
        return (zlib.crc32(str(key).encode()) + self._round) % 2 == 0


def _goes_on(rank: RankWindow, answering: Collection[str]) -> bool:
    """Whether nothing of the rank's state needs to be looked at."""
    newest, beat = rank.newest, rank.newest.beat
    if newest.state != "running" or newest.stopped or rank.source not in answering:
        return False
    if newest.in_flight is not None and newest.in_flight.seconds >= WAITING_SECONDS:
        return False
    return beat is None or beat.age_seconds <= silence(beat)


def _has_moved(tables: Sequence[NDArray[np.float64]], kept: _Kept) -> bool:
    """Whether the steps since then, as far as all ranks have made them, take another time than those before."""
    newer = _newer(tables, kept.last)
    if newer is None:
        return True
    if not newer.shape[1]:
        return False
    seconds = newer[:, :, END] - newer[:, :, START]
    step = float(np.median(seconds.mean(axis=1)))
    own = (seconds - newer[:, :, WAITED]).mean(axis=1)
    moved = np.abs(own - np.median(own) - kept.excess).max()
    allowed = CALM_RATIO * kept.step
    return bool(not moved <= allowed or not abs(step - kept.step) <= allowed)


def _newer(tables: Sequence[NDArray[np.float64]], last: int) -> NDArray[np.float64] | None:
    """The steps after number `last` that all ranks have, [ranks, steps, columns]; None where one has gaps there."""
    counts = [int(table[-1, STEP]) - last if len(table) else 0 for table in tables]
    common = min(counts)
    if common <= 0:
        return np.empty((len(tables), 0, 0))
    parts = [
        table[len(table) - count : len(table) - count + common] for table, count in zip(tables, counts, strict=True)
    ]
    if any(len(part) != common for part in parts):
        return None
    found = np.stack(parts)
    return (
        found if bool((found[:, 0, STEP] == last + 1).all() and (found[:, -1, STEP] == last + common).all()) else None
    )
