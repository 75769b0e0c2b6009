"""Holds a live job's slow culprits, and their kinds, until newer steps refute them: each verdict is drawn anew from the
last steps, and beside noise a fault that goes on is found in one round and not in the next."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from laggard.collector.jobs.job import JobKey
from laggard.collector.jobs.snapshot import JobSnapshot
from laggard.collector.jobs.steady_kinds import Kept, Place, steady
from laggard.locate.job_timings import JobTimings
from laggard.locate.medians import median_over_steps
from laggard.locate.slow.steps import MIN_STEPS, Steps
from laggard.model import Culprit, Location, Note, Verdict
from laggard.text.words import counted

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
    """A verdict with slow culprits, when it was drawn (monotonic seconds), its last step, and how long a step was, and
    a rank's own time in it, since the last of them became slow."""

    location: Location
    at: float
    step: int
    step_seconds: float
    own_seconds: float


class HeldCulprits:
    """The last culprits of each job. Not thread-safe."""

    def __init__(self) -> None:
        self._held: dict[JobKey, _Held] = {}
        self._kinds: dict[JobKey, dict[Place, Kept]] = {}

    def held(self, jobs: Sequence[JobSnapshot], now: float) -> tuple[JobSnapshot, ...]:
        """`jobs`, with the culprits of an earlier verdict where the new one has none and nothing refutes them."""
        before, self._held = self._held, {}
        kinds, self._kinds = self._kinds, {}
        return tuple(self._of_job(self._steady(job, kinds, now), before.get(job.key), now) for job in jobs)

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
                self._held[job.key] = _Held(found, now, found.window.last_step, *_lengths(found, job.timings))
            return job
        if before is None or not _may_be_held(found):
            return job
        left = tuple(
            each
            for each in before.location.culprits
            if now - before.at <= _hold_seconds(each, before) and not _is_refuted(each, before, job.timings)
        )
        if not left:
            return job
        self._held[job.key] = before
        return dataclasses.replace(job, location=_with_held(found, left, before, now))


def _may_be_held(found: Location) -> bool:
    """Whether the new verdict is on steps: where it has another reason for none, such as silent agents, that counts."""
    if found.culprits or found.window.last_step is None:
        return False
    return found.verdict is Verdict.OK or any(note.kind == "brief" for note in found.notes)


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
        shortest = (1 - (1 - REMAINING_COST_SHARE) * cost) * before.step_seconds
        shorter = float(np.median(steps.duration[newer])) < shortest
        return shorter or _own_seconds(steps, newer) > before.own_seconds + cost / 2 * before.step_seconds
    lost = float(np.nanmean(np.nansum(steps.excess[newer][:, columns], axis=0)))
    return lost < REMAINING_COST_SHARE * cost * lasted


def _lengths(found: Location, timings: JobTimings) -> tuple[float, float]:
    """The seconds that a step takes, and the own time of the busiest rank in it, since the last culprit became slow."""
    steps = Steps.usable(timings)
    if steps is None:
        return 0.0, 0.0
    since = max((culprit.since_step or 0 for culprit in found.culprits), default=0)
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
        notes=(*(note for note in found.notes if note.kind != "brief"), Note("held", text)),
    )
