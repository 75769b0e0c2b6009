"""A week of jobs with planted faults, and what these truly cost: second by second, from the plan alone. Nothing of
laggard is used here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

WEEK = 7 * 86400
Draw = np.random.Generator


class Slow(NamedTuple):
    """A rank that takes `share` of the job's time from second `begin` to `end` of the week."""

    begin: int
    end: int
    share: float
    rank: int


class Stop(NamedTuple):
    """All ranks stand still from `begin`. It hangs, or died, and is noticed after `noticed` seconds. At `end` the job
    is killed, and it is started again after `restart` seconds; 0: it goes on by itself."""

    begin: int
    end: int
    restart: int
    died: bool
    rank: int
    noticed: int


class Job(NamedTuple):
    """A job of the week. `checkpoint`: seconds between checkpoints, `seen` whether the script names them. `window`: the
    seconds that a verdict looks back on."""

    number: int
    ranks: int
    begin: int
    end: int
    step: float
    window: int
    checkpoint: int
    seen: bool
    slow: tuple[Slow, ...]
    stops: tuple[Stop, ...]


def week(draw: Draw) -> list[Job]:
    """Three to eight jobs with up to ten faults each."""
    return [_job(number, draw) for number in range(int(draw.integers(3, 9)))]


def _job(number: int, draw: Draw) -> Job:
    begin = int(draw.integers(0, WEEK // 2))
    end = int(draw.integers(begin + 6 * 3600, WEEK - 3600))
    step = float(np.exp(draw.uniform(np.log(0.15), np.log(6.0))))
    stops = _stops(draw, begin, end)
    return Job(
        number,
        int(draw.choice([8, 16, 32, 64, 128, 512])),
        begin,
        end,
        step,
        int(max(20, 128 * step)),
        int(draw.choice([900, 1800, 3600])),
        bool(draw.random() < 0.5),
        tuple(_slow(draw, begin, end) for _ in range(int(draw.integers(0, 8)))),
        stops,
    )


def _slow(draw: Draw, begin: int, end: int) -> Slow:
    """A fault from a minute to a day long, most of them shorter than three hours; from 3 to 60 % of the time."""
    length = int(min(np.exp(draw.normal(np.log(2400), 1.2)), 86400))
    first = int(draw.integers(begin + 60, end - 60))
    share = float(min(0.6, np.exp(draw.uniform(np.log(0.03), np.log(0.6)))))
    return Slow(first, min(end, first + max(60, length)), share, int(draw.integers(0, 8)))


def _stops(draw: Draw, begin: int, end: int) -> tuple[Stop, ...]:
    found: list[Stop] = []
    for moment in sorted(int(at) for at in draw.integers(begin + 3600, end - 600, int(draw.integers(0, 4)))):
        died, goes_on = bool(draw.random() < 0.5), bool(draw.random() < 0.15)
        noticed = int(draw.integers(5, 30)) if died else int(draw.integers(20, 400))
        lasts = noticed + int(draw.integers(60, 2400)) if not died else noticed + int(draw.integers(5, 700))
        if found and moment - (found[-1].end + found[-1].restart) < 3600:
            continue
        if moment + lasts + 1200 >= end:
            continue
        restart = 0 if goes_on and not died else int(draw.integers(30, 1200))
        found.append(Stop(moment, moment + lasts, restart, died, int(draw.integers(0, 8)), noticed))
    return tuple(found)


def slow_shares(job: Job) -> NDArray[np.float64]:
    """[WEEK]: the share that slow ranks take of each second. Of two at once the slower one decides: the other waits."""
    shares = np.zeros(WEEK)
    for it in job.slow:
        shares[it.begin : it.end] = np.maximum(shares[it.begin : it.end], it.share)
    return shares


def stopped(job: Job) -> NDArray[np.bool_]:
    """[WEEK]: the seconds in which the job stands still, or waits to be started again."""
    stands = np.zeros(WEEK, dtype=bool)
    for it in job.stops:
        stands[it.begin : it.end + it.restart] = True
    return stands


def checkpoints(job: Job) -> list[int]:
    """The seconds in which checkpoints are saved: by the clock of each run."""
    begins = [job.begin, *(it.end + it.restart for it in job.stops if it.restart)]
    ends = [*(it.begin for it in job.stops if it.restart), job.end]
    spans = zip(begins, ends, strict=True)
    return [at for first, last in spans for at in range(first + job.checkpoint, last, job.checkpoint)]


def true_gpu_hours(jobs: Sequence[Job]) -> float:
    """The cost of the planted faults: slow time, time that stood still, and work since the last checkpoint, where the
    script names them, that a restart does again. No second of a job costs more than itself."""
    return sum(job.ranks * float(_lost(job).sum()) / 3600 for job in jobs)


def _lost(job: Job) -> NDArray[np.float64]:
    lost = slow_shares(job)
    saved = checkpoints(job)
    for it in job.stops:
        before = [at for at in saved if at < it.begin]
        first = max([at for at in before if at >= _began(job, it)], default=None)
        if it.restart and job.seen and first is not None:
            lost[first : it.begin] = 1.0
    lost[stopped(job)] = 1.0
    lost[: job.begin] = lost[job.end :] = 0.0
    return lost


def _began(job: Job, stop: Stop) -> int:
    """The second in which the run began that the stop befell."""
    return max([job.begin, *(it.end + it.restart for it in job.stops if it.restart and it.end < stop.begin)])
