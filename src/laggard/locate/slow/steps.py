"""The steps that a verdict is drawn from, and by how much each rank was busier than its peers in them. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from laggard.constants import PHASES
from laggard.locate.job_timings import WARM_UP_STEPS, Floats, JobTimings
from laggard.locate.medians import last_axis_median, median
from laggard.locate.slow.past import OTHER, Past, judged
from laggard.locate.slow.peers import Peers
from laggard.locate.step_tables import over_phases

MIN_STEPS = 8  # fewer prove nothing: one garbage collection or page fault is a large share of them

NAMED_SHARE = 0.5
"""The share of the own time in named phases from which on time outside them accuses nobody: it may be a wait that no
record tells of, or rank 0 writing its log."""

STALL_RATIO = 20.0
"""A step so many times as long as most is a stall: one of 150 s would drown what each of a thousand others loses."""

MAX_STALLED_SHARE = 0.02
"""The largest share of the steps that may be stalls. Where more are so long, or more than one of few, the job is like
that, as by a checkpoint each time."""


HOST_PHASES = [PHASES.index("input"), PHASES.index("between_steps")]
"""What hosts do by themselves, and in all stages of a pipeline alike."""


@dataclasses.dataclass(frozen=True)
class Steps:
    """The steps to judge by, over S steps, R ranks and P phases. Times in seconds; nan where a rank has no row.
    `excess` is `busy` less the median of the rank's peers in the same step; of a rank without any, less what it was in
    its own first steps (past.py)."""

    numbers: NDArray[np.int64]  # [S]
    duration: Floats  # [S]: the ranks' median
    phases: Floats  # [S, R, P]: own time
    busy: Floats  # [S, R]: own time of the phases that are judged, input included
    waited: Floats  # [S, R]: in collectives
    peers: Peers
    excess: Floats  # [S, R]
    work: Floats | None  # [S, R]: elements of the model's inputs, 0 where they were not seen
    past: Past  # of the ranks that nobody does the work of
    phased: bool  # whether phases are known, so that `other` is not judged
    live: bool = False  # whether a verdict is drawn again and again, since the job goes on

    @property
    def judged_phases(self) -> range:
        return range(OTHER if self.phased else len(PHASES))

    def stalled(self) -> NDArray[np.bool_]:
        """[S]: the few steps that do not stand for the others by their length."""
        found = self.duration > STALL_RATIO * median(self.duration)
        few = found.sum() <= max(1, MAX_STALLED_SHARE * len(found))
        return found if few else np.zeros_like(found)

    def without(self, culprits: NDArray[np.bool_], ranks: NDArray[np.bool_]) -> Steps:
        """The same steps, with `ranks` [R], whole classes, compared with no rank of `culprits` [R]."""
        ranks = ranks & ~self.past.alone
        excess = self.busy - self.peers.medians(self.busy, culprits, ranks)
        return dataclasses.replace(self, excess=np.where(ranks, excess, self.excess))

    def regrouped(self, classes: NDArray[np.int64], nodes: Sequence[str | None]) -> Steps:
        """The same steps, with those as peers that have the same number in `classes` [R]."""
        peers = Peers.of(classes.astype(np.int32), nodes)
        excess = np.where(self.past.alone, self.past.excess(self.busy), self.busy - peers.medians(self.busy))
        return dataclasses.replace(self, peers=peers, excess=excess)

    def with_other(self) -> Steps:
        """The same steps, with the time that belongs to no phase judged as well."""
        busy = over_phases(self.phases)
        past = Past.of(self.past.first, busy.shape[1], False)
        excess = np.where(past.alone, past.excess(busy), busy - self.peers.medians(busy))
        return dataclasses.replace(self, busy=busy, excess=excess, past=past, phased=False)

    def with_host_phases(self, nodes: Sequence[str | None], stages: NDArray[np.int32] | None = None) -> Steps:
        """The same steps, with what hosts do by themselves judged alone, and the ranks of each of `stages` [R]
        compared; without them all ranks: loading input and what is between the steps is alike in all stages of a
        pipeline but the first and the last."""
        busy = self.phases[:, :, HOST_PHASES].sum(axis=2)
        past = Past.of(None, busy.shape[1], False)
        peers = Peers.of(np.zeros(busy.shape[1], np.int32) if stages is None else stages, nodes)
        return dataclasses.replace(self, busy=busy, peers=peers, excess=busy - peers.medians(busy), past=past)

    @staticmethod
    def usable(timings: JobTimings) -> Steps | None:
        """The steps after the warm-up that at least half of the ranks have finished; None where they are too few."""
        if len(timings.ranks) < 2:
            return None
        finished = np.isfinite(timings.step_seconds).sum(axis=1)
        keep = (finished >= max(2, len(timings.ranks) / 2)) & (timings.steps >= WARM_UP_STEPS)
        if keep.sum() < MIN_STEPS:
            return None
        kept = _rows(keep)
        phases = timings.phase_seconds[kept]
        phased = _are_named(phases)
        busy = judged(phases, phased)
        positions = np.zeros(len(timings.ranks), np.int32) if timings.positions is None else timings.positions
        peers = Peers.of(positions, timings.nodes)
        past = Past.of(_first_steps(timings), busy.shape[1], phased)
        return Steps(
            numbers=timings.steps[kept],
            duration=last_axis_median(timings.step_seconds[kept]),
            phases=phases,
            busy=busy,
            waited=timings.waited_seconds[kept],
            work=None if timings.work is None else timings.work[kept],
            peers=peers,
            excess=np.where(past.alone, past.excess(busy), busy - peers.medians(busy)),
            past=past,
            phased=phased,
            live=timings.live and any(state.state == "running" for state in timings.states),
        )


def _first_steps(timings: JobTimings) -> Floats | None:
    """[FIRST_STEPS, R, P]: own time in the first steps, of the ranks that nobody does the work of."""
    return None if timings.alone is None or not timings.alone.any() else timings.first_phases


def steps_needed(timings: JobTimings) -> int:
    """The number of steps, from the first that is seen on, that a verdict needs; a profile may begin after the
    warm-up."""
    first = int(timings.steps[0]) if len(timings.steps) else 0
    return MIN_STEPS + max(0, WARM_UP_STEPS - first)


def _are_named(phases: Floats) -> bool:
    """Whether most of the own time is in a phase that has a name, by the middle of the window."""
    sample = phases[len(phases) // 2]
    own = sample.sum(axis=1)
    return median(sample[:, :OTHER].sum(axis=1) / np.where(own > 0, own, np.nan)) >= NAMED_SHARE


def _rows(keep: NDArray[np.bool_]) -> slice | NDArray[np.int64]:
    """The rows to keep; a slice where they are contiguous, as they mostly are: then nothing is copied."""
    rows = np.flatnonzero(keep)
    return slice(int(rows[0]), int(rows[-1]) + 1) if rows[-1] - rows[0] == len(rows) - 1 else rows
