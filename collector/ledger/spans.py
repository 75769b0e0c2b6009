"""The spans in which each incident took a share of its job's time. Pure.

Hangs and deaths stop the whole job: from its last progress until it goes on, ends, or is started again under its name.
What was computed since the last checkpoint is lost with it where the checkpoint was seen.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from laggard.collector.incidents.loss import Loss
from laggard.collector.incidents.run import Run
from laggard.collector.jobs.key import JobKey
from laggard.collector.ledger.interval import share_error

MAX_RESTART_SECONDS: Final = 3600.0
"""The longest time from the end of a run to the next one of its name that counts as a restart, in which the GPUs wait.
Longer ones are taken for another job of that name: laggard's choice."""

MAX_HANG_SECONDS: Final = 7200.0
"""The longest time between a job's last progress and the verdict that it hangs; a larger difference is one of clocks.
NCCL's and PyTorch's watchdogs end a job after 10 minutes by default, gloo's after 30."""

_ENDS: Final = ("job_ended", "ended_while_down", "job_gone")
"""The ways to be closed with which a run ends."""


class Order(Enum):
    """The order in which a moment is taken: what stops the job takes all of it; what is computed again takes what is
    left."""

    STOPS = 0
    SLOWS = 1
    AGAIN = 2


class Span(NamedTuple):
    """A share of a job's time that the loss at `place` took from `start` to `end`, Unix seconds."""

    start: float
    end: float
    share: float
    order: Order
    place: int


class JobRuns:
    """The runs of jobs, to be looked up by job and time."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._by_key: dict[JobKey, list[Run]] = {}
        for run in sorted(runs, key=lambda it: it.began_at):
            self._by_key.setdefault(run.key, []).append(run)
        self._begins: Mapping[JobKey, list[float]] = {
            key: [it.began_at for it in of_key] for key, of_key in self._by_key.items()
        }

    def of(self, loss: Loss) -> tuple[Run | None, Run | None]:
        """The run that a loss befell, and the next one of its job."""
        key = JobKey(loss.owner, loss.job_id)
        runs = self._by_key.get(key, [])
        after = bisect.bisect_right(self._begins.get(key, []), loss.opened_at)
        return runs[after - 1] if after else None, runs[after] if after < len(runs) else None


class Bounds(NamedTuple):
    """The spans of one loss as they likely were, and as they were at least and at most."""

    likely: tuple[Span, ...]
    least: tuple[Span, ...]
    most: tuple[Span, ...]


def spans_of(place: int, loss: Loss, runs: JobRuns) -> Bounds:
    """The spans of a loss; none where it cannot be counted: its job's size is not known,
    or no collector counted its seconds."""
    if not loss.ranks or loss.lost_seconds is None:
        return Bounds((), (), ())
    return _stopped(place, loss, runs) if loss.stops else _slowed(place, loss, loss.lost_seconds)


def _slowed(place: int, it: Loss, lost: float) -> Bounds:
    begin = it.opened_at
    lasted = max((it.seen_at if it.closed_at is None else it.closed_at) - begin, lost, 0.0)
    if lasted <= 0:
        return Bounds((), (), ())
    share = min(1.0, lost / lasted)
    off = share_error(share) * lasted
    ahead = share * min(it.window_seconds, lasted)
    likely = lost + it.doubtful_seconds
    return Bounds(
        *(
            (Span(begin, begin + lasted, min(1.0, seconds / lasted), Order.SLOWS, place),) if seconds > 0 else ()
            for seconds in (likely, lost - off - ahead, likely + off + ahead)
        )
    )


def _stopped(place: int, it: Loss, runs: JobRuns) -> Bounds:
    run, following = runs.of(it)
    stood = it.progressed_at if it.opened_at - MAX_HANG_SECONDS <= it.progressed_at < it.opened_at else it.opened_at
    end = max(it.opened_at, it.seen_at if it.closed_at is None else it.closed_at)
    over, ended = it.doubtful_seconds, it.closed_because in _ENDS
    if ended and following is not None and 0 <= following.began_at - end <= MAX_RESTART_SECONDS:
        end, over = following.began_at, 0.0
    checkpoint = run.checkpoint_at if ended and run is not None and run.checkpoint_step is not None else None
    return Bounds(
        _stop(place, stood, end + over, stood, checkpoint),
        _stop(place, it.opened_at, end, stood, None if checkpoint is None else checkpoint + it.window_seconds),
        _stop(place, stood - it.window_seconds, end + over, stood, checkpoint),
    )


def _stop(place: int, begin: float, end: float, stood: float, saved: float | None) -> tuple[Span, ...]:
    """The spans of a stop from `begin` to `end`, with the work since the checkpoint at `saved` that is done again."""
    stop = (Span(begin, end, 1.0, Order.STOPS, place),) if end > begin else ()
    again = (Span(saved, stood, 1.0, Order.AGAIN, place),) if saved is not None and saved < stood else ()
    return stop + again


def loses_unseen_work(loss: Loss, runs: JobRuns) -> bool:
    """Whether a run ended with it of which no checkpoint was seen: how much was computed again is not known."""
    run, _ = runs.of(loss)
    return loss.stops and loss.closed_because in _ENDS and (run is None or run.checkpoint_step is None)
