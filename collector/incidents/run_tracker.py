"""Follows the runs of jobs, round after round: their steps, checkpoints and restarts. No clock, no file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from msgspec import structs

from laggard.collector.incidents.moment import Moment
from laggard.collector.incidents.run import Run, RunSight
from laggard.collector.incidents.same import SAME_START_SECONDS
from laggard.collector.jobs.key import JobKey

MAX_RUNS = 4096
"""The most runs that are followed at a time, as many as a collector holds jobs by default."""

REWRITE_SECONDS = 60.0
"""The largest age of what is stored of a run that goes on."""


@dataclasses.dataclass
class _Followed:
    run: Run
    observed_at: float
    stored_at: float = float("-inf")


class RunTracker:
    """Not thread-safe: one round follows the other."""

    def __init__(self, quiet_seconds: float, moment: Moment, open_before: Iterable[Run] = ()) -> None:
        self._quiet_seconds = quiet_seconds
        self._runs: dict[JobKey, _Followed] = {it.key: _Followed(it, moment.monotonic) for it in open_before}

    @property
    def followed(self) -> tuple[Run, ...]:
        return tuple(each.run for each in self._runs.values())

    def observe(self, sights: Sequence[RunSight], moment: Moment) -> list[Run]:
        """Takes one round in. Returns the runs that are to be stored anew."""
        changed: list[Run] = []
        for sight in sights:
            changed += self._observe_job(sight, moment)
        seen = {sight.key for sight in sights}
        for key, each in list(self._runs.items()):
            if key not in seen and moment.monotonic - each.observed_at >= self._quiet_seconds:
                changed += self._end(key, each.run.seen_at)
        return changed

    def _observe_job(self, sight: RunSight, moment: Moment) -> list[Run]:
        changed: list[Run] = []
        each = self._runs.get(sight.key)
        if each is not None and _is_another(each.run, sight):
            changed += self._end(sight.key, each.run.seen_at)
            each = None
        if each is None:
            if not sight.running or len(self._runs) >= MAX_RUNS:
                return changed
            each = self._runs[sight.key] = _Followed(_begun(sight, moment), moment.monotonic)
        each.run = _gone_on(each.run, sight, moment, moment.monotonic - each.observed_at)
        each.observed_at = moment.monotonic
        if not sight.running:
            return [*changed, *self._end(sight.key, moment.wall)]
        if moment.monotonic - each.stored_at >= REWRITE_SECONDS:
            each.stored_at = moment.monotonic
            changed.append(each.run)
        return changed

    def _end(self, key: JobKey, at: float) -> list[Run]:
        was = self._runs.pop(key).run
        return [structs.replace(was, ended_at=max(was.began_at, at))]


def _is_another(run: Run, sight: RunSight) -> bool:
    """Whether the job was started anew: it says so, or counts its steps from the beginning again."""
    if run.started_at and sight.started_at:
        return abs(run.started_at - sight.started_at) > SAME_START_SECONDS
    return 0 <= sight.last_step < run.last_step


def _begun(sight: RunSight, moment: Moment) -> Run:
    began = min(sight.started_at or moment.wall, moment.wall)
    return Run(
        owner=sight.key.owner,
        job_id=sight.key.job_id,
        began_at=began,
        seen_at=moment.wall,
        started_at=sight.started_at,
        script=sight.script,
        world_size=sight.world_size,
        first_step=sight.last_step,
        last_step=sight.last_step,
        progressed_at=sight.progressed_at,
    )


def _gone_on(run: Run, sight: RunSight, moment: Moment, seconds: float) -> Run:
    """The run after `seconds` more. Steps that were made while nobody watched count by what a step takes now, and never
    for longer than the time that passed."""
    steps = max(0, sight.last_step - run.last_step) if run.last_step >= 0 else 0
    worked = min(steps * (sight.typical_seconds or 0.0), max(seconds, moment.wall - run.seen_at, 0.0))
    saved, at = run.checkpoint_step, run.checkpoint_at
    if sight.checkpoint_step is not None and sight.checkpoint_step != saved:
        behind = max(0, sight.last_step - sight.checkpoint_step) * (sight.typical_seconds or 0.0)
        saved, at = sight.checkpoint_step, moment.wall - min(behind, max(0.0, moment.wall - run.began_at))
    return structs.replace(
        run,
        seen_at=max(run.seen_at, moment.wall),
        script=run.script or sight.script,
        started_at=run.started_at or sight.started_at,
        world_size=max(run.world_size, sight.world_size),
        first_step=run.first_step if run.first_step >= 0 else sight.last_step,
        last_step=max(run.last_step, sight.last_step),
        progressed_at=max(run.progressed_at, sight.progressed_at),
        step_seconds=run.step_seconds + worked,
        slow_seconds=run.slow_seconds + worked * min(max(sight.slow_share, 0.0), 1.0),
        checkpoint_step=saved,
        checkpoint_at=at,
    )
