"""The part of a job's time that was work which lasted: ETTR and goodput, as far as its steps, restarts and checkpoints
were seen. Pure.

ETTR is the productive time of a job over the time that it had its GPUs, as in Kokolis et al., Revisiting Reliability in
Large-Scale Machine Learning Research Clusters (arXiv 2410.21680), but for the time in the queue, which laggard does not
see. Goodput is the same without what slow ranks, hosts and links took.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from laggard.collector.incidents.run import Run
from laggard.collector.jobs.key import JobKey
from laggard.collector.ledger.spans import MAX_RESTART_SECONDS

MAX_JOBS: Final = 50
"""The most jobs that are told of, those with the most GPU-hours."""


class JobGoodput(Struct, frozen=True):
    """One job: `gpu_hours` that it had, in `runs` runs; `ettr_ratio` and `goodput_ratio`, None where no step was
    timed; `not_seen`: what is not in them, in words. Where work since a checkpoint may be missing they are upper
    bounds."""

    owner: int
    job_id: str
    script: str
    runs: int
    gpu_hours: float
    ettr_ratio: float | None
    goodput_ratio: float | None
    not_seen: tuple[str, ...]


def goodputs(runs: Iterable[Run]) -> tuple[JobGoodput, ...]:
    """The jobs, those with the most GPU-hours first."""
    by_key: dict[JobKey, list[Run]] = {}
    for run in sorted(runs, key=lambda it: it.began_at):
        by_key.setdefault(run.key, []).append(run)
    found = sorted((goodput(of_key) for of_key in by_key.values()), key=lambda it: -it.gpu_hours)
    return tuple(found[:MAX_JOBS])


def goodput(runs: Sequence[Run]) -> JobGoodput:
    """The goodput of the runs of one job, in the order in which they began."""
    had = _had_seconds(runs)
    made = sum(run.step_seconds + _unwatched_seconds(run) for run in runs)
    again = sum(_again_seconds(run) for run in runs[:-1])
    kept = max(0.0, made - again)
    slow = min(kept, sum(run.slow_seconds for run in runs))
    timed = had > 0 and made > 0
    newest = runs[-1]
    return JobGoodput(
        newest.owner,
        newest.job_id,
        newest.script,
        len(runs),
        had * max(run.world_size for run in runs) / 3600,
        min(1.0, kept / had) if timed else None,
        min(1.0, (kept - slow) / had) if timed else None,
        tuple(_not_seen(runs)),
    )


def _had_seconds(runs: Sequence[Run]) -> float:
    """The time from the begin of the first run to the end of the last, but for long breaks: another job of that name,
    which got its GPUs anew."""
    had, until = 0.0, runs[0].began_at
    for run in runs:
        end = max(run.began_at, run.seen_at if run.ended_at is None else run.ended_at)
        gap = run.began_at - until
        had += end - (until if 0 < gap <= MAX_RESTART_SECONDS else max(run.began_at, min(until, end)))
        until = max(until, end)
    return had


def _step_seconds(run: Run) -> float:
    return run.step_seconds / run.steps if run.steps else 0.0


def _unwatched_seconds(run: Run) -> float:
    """The steps before the first that was seen, at the pace of the others, in no more time than there was."""
    before = max(0, run.first_step) * _step_seconds(run)
    return min(before, max(0.0, run.seen_at - run.began_at - run.step_seconds))


def _again_seconds(run: Run) -> float:
    """The work since the last checkpoint that was seen, which the next run does again."""
    if run.checkpoint_step is None:
        return 0.0
    return min(run.step_seconds, max(0, run.last_step - run.checkpoint_step) * _step_seconds(run))


def _not_seen(runs: Sequence[Run]) -> Iterator[str]:
    yield "time in the queue"
    unwatched = sum(max(0, run.first_step) for run in runs)
    if unwatched:
        yield f"{unwatched} steps before somebody watched, which count at the pace of the others"
    unsaved = sum(run.checkpoint_step is None for run in runs[:-1])
    if unsaved:
        yield f"work that {unsaved} restarts did again: no checkpoint was seen (phase `checkpoint` of the hooks)"
    if any(not run.started_at for run in runs):
        yield "time before the first step: the hooks do not say when the job began"
