"""The part that a collector would have seen of a planted week: verdicts, round by round, given to the real trackers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cost_weeks.measured_shares import Share
from cost_weeks.planted import WEEK, Draw, Job, Slow, Stop, checkpoints, slow_shares, stopped
from laggard.collector.incidents.incident import Incident
from laggard.collector.incidents.loss import Loss
from laggard.collector.incidents.moment import Moment
from laggard.collector.incidents.run import Run, RunSight
from laggard.collector.incidents.run_tracker import RunTracker
from laggard.collector.incidents.tracker import IncidentTracker, Observation
from laggard.collector.jobs.job import JobKey
from laggard.model import Culprit

MONDAY = 4 * 86400.0 + 2930 * 604800.0
QUIET = 300.0
ROUND = 15
FLICKER = 0.05
"""The part of the rounds in which a verdict leaves a culprit out for a while; in `test_views` and the demo it is
seldom, here it is not."""


class Seen(NamedTuple):
    losses: list[Loss]
    runs: list[Run]


class Errors:
    """The shares that verdicts say, drawn from measured cases of about that share: often right, now and then far off,
    and sometimes nothing."""

    def __init__(self, measured: Sequence[Share], draw: Draw) -> None:
        usable = [it for it in measured if it.row != "two at once"]
        self._true = np.array([it.true for it in usable])
        self._said = np.array([it.said for it in usable])
        self._draw = draw

    def of(self, share: float) -> float | None:
        """Added to the share by every verdict on one fault; None: no verdict names it."""
        near = np.argsort(np.abs(self._true - share))[:12]
        place = int(self._draw.choice(near))
        if self._said[place] == 0:
            return None
        off = float(self._said[place] - self._true[place])
        return off * min(1.0, share / max(float(self._true[place]), 1e-6))


def watched(jobs: Sequence[Job], measured: Sequence[Share], draw: Draw) -> Seen:
    """The losses and runs that a collector keeps of the week; jobs do not meet, so each is followed by itself."""
    losses: list[Loss] = []
    runs: list[Run] = []
    for job in jobs:
        seen = _Watch(job, Errors(measured, draw), draw).follow()
        losses += seen.losses
        runs += seen.runs
    return Seen(losses, runs)


class _Watch:
    def __init__(self, job: Job, errors: Errors, draw: Draw) -> None:
        self.job, self.draw = job, draw
        self.key = JobKey(1000, f"job-{job.number}")
        self.shares, self.stands = slow_shares(job), stopped(job)
        working = np.where(self.stands, 0.0, 1.0)
        working[: job.begin] = working[job.end :] = 0.0
        self.steps = np.concatenate(([0.0], np.cumsum(working * (1 - self.shares) / job.step)))
        self.worked = np.concatenate(([0.0], np.cumsum(working)))
        self.errors = {it: errors.of(it.share) for it in job.slow}
        self.own = {it: self._means(it) for it in job.slow}
        self.whole = np.concatenate(([0.0], np.cumsum(self.shares * working)))
        self.saved = checkpoints(job)
        self.hidden_until: dict[object, int] = {}
        self.skew = float(draw.normal(0, 1.0))

    def _means(self, it: Slow) -> NDArray[np.float64]:
        mine = np.zeros(WEEK)
        mine[it.begin : it.end] = it.share
        mine[self.stands] = 0.0
        return np.concatenate(([0.0], np.cumsum(mine)))

    def follow(self) -> Seen:
        tracker, runs = IncidentTracker(QUIET, Moment(MONDAY, 0.0)), RunTracker(QUIET, Moment(MONDAY, 0.0))
        kept: dict[int, Incident] = {}
        known: dict[float, Run] = {}
        down = self._downtime()
        for at in self._rounds():
            if down and down[0] <= at < down[1]:
                continue
            moment = Moment(MONDAY + at, float(at))
            if down and at >= down[1]:
                tracker = IncidentTracker(QUIET, moment, [it for it in kept.values() if it.closed_at is None])
                runs = RunTracker(QUIET, moment, [it for it in known.values() if it.ended_at is None])
                down = None
            seen = self._verdict(at)
            kept |= {it.id: it for it in tracker.observe([seen] if seen else [], moment)}
            kept |= {it.id: it for it in tracker.open}
            sight = self._sight(at, seen)
            changed = runs.observe([sight] if sight else [], moment)
            known |= {it.began_at: it for it in (*changed, *runs.followed)}
        return Seen([Loss.of(it) for it in kept.values()], list(known.values()))

    def _downtime(self) -> tuple[int, int] | None:
        """The collector is started anew in a third of the jobs, and watches nothing for some minutes."""
        if self.draw.random() > 0.33:
            return None
        begin = int(self.draw.integers(self.job.begin, self.job.end))
        return begin, begin + int(self.draw.integers(20, 600))

    def _rounds(self) -> Iterator[int]:
        """Every 15 s where something happens, every half hour where nothing does."""
        busy = np.zeros(WEEK, dtype=bool)
        tail = self.job.window + int(QUIET) + 120
        for slow in self.job.slow:
            busy[max(0, slow.begin - 60) : slow.end + tail] = True
        for stop in self.job.stops:
            busy[max(0, stop.begin - 60) : stop.end + stop.restart + tail] = True
        busy[self.job.begin : self.job.begin + 120] = busy[self.job.end - 120 : self.job.end + tail] = True
        for at in self.saved:
            busy[at : at + 60] = True
        following = np.append(np.flatnonzero(busy), WEEK)
        at = int(self.draw.integers(ROUND))
        while at < min(WEEK, self.job.end + 2 * tail):
            yield at
            soon = int(following[np.searchsorted(following, at + ROUND)])
            at = max(at + ROUND, min(soon, at + 1800))

    def _stop(self, at: int) -> Stop | None:
        return next((it for it in self.job.stops if it.begin <= at < it.end + it.restart), None)

    def _verdict(self, at: int) -> Observation | None:
        job = self.job
        if not job.begin <= at:
            return None
        stop, over = self._stop(at), at >= job.end
        killed = stop is not None and at >= stop.end
        last = job.end if over else stop.begin if stop else at - self.draw.uniform(0, job.step)
        progressed = MONDAY + self.skew + last
        culprits: tuple[Culprit, ...] = ()
        slowdown = 1.0
        if stop is not None:
            if at >= stop.begin + stop.noticed:
                culprits = (Culprit("dead" if stop.died else "hung", (stop.rank,), node=f"n{stop.rank}"),)
        elif not over:
            culprits, slowdown = self._slow(at)
        running, conclusive = not over and not killed, not stop or bool(culprits)
        window = float(min(job.window, at - job.begin))
        return Observation(self.key, running, conclusive, culprits, progressed, job.ranks, window, slowdown)

    def _slow(self, at: int) -> tuple[tuple[Culprit, ...], float]:
        """The culprits by the last window of steps: those that take 2 % of it, and that the verdict knows of."""
        first = max(self.job.begin, at - self.job.window)
        seconds = max(1.0, float(self.worked[at] - self.worked[first]))
        whole = float(self.whole[at] - self.whole[first]) / seconds
        named: list[tuple[Slow, float]] = []
        for it in self.job.slow:
            off, share = self.errors[it], float(self.own[it][at] - self.own[it][first]) / seconds
            if off is not None and share >= max(0.02, 0.3 * it.share) and not self._hidden(it, at):
                named.append((it, max(0.001, share + off * share / it.share)))
        together = sum(share for _, share in named)
        scale = min(1.0, max(share for _, share in named) / together) if len(named) > 1 else 1.0
        culprits = tuple(
            Culprit("slow_compute", (it.rank,), node=f"n{it.rank}", recoverable_ratio=min(0.99, share * scale))
            for it, share in named
        )
        said = sum(culprit.recoverable_ratio or 0.0 for culprit in culprits)
        return culprits, 1 / (1 - min(0.99, max(said, whole)))

    def _hidden(self, what: object, at: int) -> bool:
        if at < self.hidden_until.get(what, 0):
            return True
        if self.draw.random() < FLICKER / 6:
            self.hidden_until[what] = at + int(self.draw.integers(15, 180))
            return True
        return False

    def _sight(self, at: int, seen: Observation | None) -> RunSight | None:
        if seen is None or not (seen.running or seen.culprits):
            return None if seen is None or seen.running else self._ended(at, seen)
        return self._ended(at, seen) if not seen.running else self._running(at, seen)

    def _running(self, at: int, seen: Observation) -> RunSight:
        job, began = self.job, self._began(at)
        first = max(began, at - job.window)
        made = max(1.0, float(self.steps[at] - self.steps[first]))
        late = [it for it in self.saved if first <= it <= at and it >= began] if job.seen else []
        saved = int(self.steps[late[-1]] - self.steps[began]) if late else None
        typical = float(self.worked[at] - self.worked[first]) / made
        slow = 1 - 1 / (seen.slowdown_ratio or 1.0)
        return RunSight(self.key, True, "train.py", MONDAY + began, job.ranks, int(self.steps[at] - self.steps[began]),
                        seen.progressed_at, typical or job.step, slow, saved)  # fmt: skip

    def _ended(self, at: int, seen: Observation) -> RunSight:
        stop = self._stop(at)
        began = self._began(stop.begin if stop else self.job.end - 1)
        return RunSight(self.key, False, "train.py", MONDAY + began, self.job.ranks,
                        int(self.steps[min(at, WEEK)] - self.steps[began]), seen.progressed_at)  # fmt: skip

    def _began(self, at: int) -> int:
        begins = [self.job.begin, *(it.end + it.restart for it in self.job.stops if it.restart)]
        return max(begin for begin in begins if begin <= max(at, self.job.begin))
