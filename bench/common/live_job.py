"""A simulated live job in a collector's rounds: its steps are taken in, judged, held and followed as incidents by the
collector's own parts.

The ranks of a job do equal work and wait for one another at the end of each step. What they differ by is noise, which
may last (`Noise`), and one of them may be slower from a moment on."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.collector.incidents.fault_tracker import observation
from laggard.collector.incidents.incident import Moment
from laggard.collector.incidents.tracker import IncidentTracker
from laggard.collector.jobs.held_verdicts import CalmJobs, HeldCulprits
from laggard.collector.jobs.snapshot import ClusterSnapshot, build_snapshot
from laggard.collector.jobs.window import JobWindows
from laggard.collector.settings import CollectorSettings
from laggard.kit.constants import PHASES
from laggard.locate.job_timings import END, FIRST_PHASE, START, STEP, STEP_COLUMNS, WAITED, JobTimings
from laggard.locate.verdict import locate
from laggard.model import Location
from laggard.wire.nodes import NodeRow

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from support.collectors import rank_row, ranks_document

Floats = NDArray[np.float64]

SETTINGS: Final = CollectorSettings()
GPUS: Final = {2: 1, 8: 4}
"""The GPUs of a machine by the job's ranks; of larger jobs MAX_GPUS."""
MAX_GPUS: Final = 8
SHARES: Final = {"input": 0.02, "forward": 0.32, "backward": 0.6, "optimizer": 0.06}
"""The parts of a rank's own time, assumed; lengths of data make forward and backward longer."""
WAIT_SHARE: Final = 0.1
"""The share of the step in which collectives hold every rank up, assumed."""
STEP_NOISE: Final = 0.005
"""The standard deviation of what is drawn anew in each step, beside the noise that lasts."""
VICTIM: Final = 0
"""The rank that becomes slower."""
EPOCH: Final = 1.7e9


class Noise(NamedTuple):
    """Standard deviations of logarithms: `sd` of each rank's own time, `lengths` of the work in its data, both
    correlated from step to step by `rho`; `data` of the work in its data, for good. The elements of its data tell
    nothing of it."""

    rho: float = 0.0
    sd: float = 0.0
    lengths: float = 0.0
    data: float = 0.0


class Job(NamedTuple):
    """A live job of `minutes`, in steps of about `step_seconds`. `slower`: by which share the own time of one rank is
    longer from `onset_minutes` on."""

    ranks: int
    step_seconds: float
    noise: Noise
    minutes: float
    slower: float = 0.0
    onset_minutes: float = 0.0


class Series:
    """`count` series of standard deviation `sd` about 0, each of which keeps the share `rho` of its value from step to
    step (AR(1))."""

    def __init__(self, rng: np.random.Generator, rho: float, sd: float, count: int) -> None:
        self._rng, self._rho, self._sd = rng, rho, sd
        self._value = sd * rng.standard_normal(count)

    def next(self) -> Floats:
        value = self._value
        fresh = self._sd * (1 - self._rho**2) ** 0.5 * self._rng.standard_normal(len(value))
        self._value = self._rho * value + fresh
        return value


def phases_of(job: Job, rng: np.random.Generator) -> Iterator[Floats]:
    """Yields each step's own time by rank and phase, [R, len(PHASES)], in seconds."""
    noise = job.noise
    own, lengths = (Series(rng, noise.rho, sd, job.ranks) for sd in (noise.sd, noise.lengths))
    for_good = noise.data * rng.standard_normal(job.ranks)
    usual = np.array([SHARES.get(name, 0.0) for name in PHASES]) * job.step_seconds * (1 - WAIT_SHARE)
    passes = np.isin(PHASES, ("forward", "backward"))
    while True:
        longer = np.exp(own.next() + STEP_NOISE * rng.standard_normal(job.ranks))
        more_work = np.exp(lengths.next() + for_good)
        yield usual * longer[:, None] * np.where(passes, more_work[:, None], 1.0)


class Round(NamedTuple):
    """A round at `now` (seconds from the job's begin): the verdict that was drawn in it, None where the job was passed
    over as calm; what is told with what is held; and how many incidents were opened."""

    now: float
    drawn: Location | None
    told: Location
    opened: int


class Collector:
    """A collector that watches one job."""

    def __init__(self, ranks: int) -> None:
        self._ranks, self._gpus = ranks, GPUS.get(ranks, MAX_GPUS)
        self._nodes = [f"n{number}" for number in range(-(-ranks // self._gpus))]
        self._cluster = ClusterSnapshot(tuple(NodeRow(it, it, "up", "", 0.0, "ok", (), ()) for it in self._nodes))
        self._windows, self._calm, self._held = JobWindows(), CalmJobs(), HeldCulprits()
        self._tracker = IncidentTracker(SETTINGS.incident_quiet_seconds, Moment(EPOCH, 0.0))

    def look(self, steps: Floats, now: float) -> Round:
        """One round, with the steps since the one before as [R, S, STEP_COLUMNS]."""
        for number, node in enumerate(self._nodes):
            own = range(number * self._gpus, min(self._ranks, (number + 1) * self._gpus))
            rows = [
                rank_row(it, self._ranks, node=node, gpu=f"GPU-{it}", last_progress_timestamp_seconds=EPOCH + now)
                for it in own
            ]
            self._windows.ingest(node, ranks_document(node, rows), [steps[it] for it in own], now)
        self._windows.expire(now)
        self._calm.begin_round(judges_all=False)
        drawn: list[Location] = []

        def judge(timings: JobTimings) -> Location:
            drawn.append(locate(timings))
            return drawn[-1]

        jobs = self._held.held(build_snapshot(self._windows, self._cluster, judge, calm=self._calm).jobs, now)
        before = self._tracker.opened.total()
        self._tracker.observe([observation(job) for job in jobs], Moment(EPOCH + now, now))
        return Round(now, drawn[0] if drawn else None, jobs[0].location, self._tracker.opened.total() - before)


def steps_of(job: Job, rng: np.random.Generator) -> Iterator[Floats]:
    """Yields each step of all ranks as rows of a Table, [R, STEP_COLUMNS]. All end together."""
    begun = 0.0
    for number, phases in enumerate(phases_of(job, rng)):
        if begun >= 60 * job.onset_minutes:
            phases[VICTIM] *= 1 + job.slower
        own = phases.sum(axis=1)
        ended = begun + float(own.max()) + WAIT_SHARE * job.step_seconds
        rows = np.zeros((job.ranks, STEP_COLUMNS))
        rows[:, STEP], rows[:, START], rows[:, END], rows[:, WAITED] = number, begun, ended, ended - begun - own
        rows[:, FIRST_PHASE:] = phases
        yield rows
        begun = ended


def rounds_of(job: Job, rng: np.random.Generator) -> Iterator[Round]:
    """Yields the collector's rounds over the job."""
    collector, steps, now = Collector(job.ranks), steps_of(job, rng), 0.0
    coming = next(steps)
    while now < 60 * job.minutes:
        now += SETTINGS.interval_seconds
        newer = [np.empty((job.ranks, 0, STEP_COLUMNS))]
        while coming[0, END] <= now:
            newer.append(coming[:, None])
            coming = next(steps)
        yield collector.look(np.concatenate(newer, axis=1), now)
