"""The verdict on one job, a pure function of its timings: which ranks make the others wait.

In a synchronous job every rank's step is equally long; the slow rank is the one that waits least. So what is compared
is the time a rank was busy (own time, input included, collectives taken out), each step with the median of its peers
in the same step: durations on each rank's own clock, never one clock with another.

- slow/ranks.py decides who is slow; slow/culprits.py describes the slow ranks, slow/hosts.py merges them into slow
  hosts, and slow/payoff.py computes what fixing them would save.
- hang/hangs.py decides who is hung and who waits for whom; hang/crashes.py finds the ranks that died.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from laggard.collector.locate.hang.crashes import crashed_ranks
from laggard.collector.locate.hang.hangs import hung_ranks
from laggard.collector.locate.job_timings import JobTimings
from laggard.collector.locate.partial_verdict import NOTHING_FOUND
from laggard.collector.locate.slow.culprits import brief_notes, slow_culprits
from laggard.collector.locate.slow.missing_ranks import culprit_may_be_missing, missing_ranks_notes
from laggard.collector.locate.slow.ranks import slow_ranks
from laggard.collector.locate.slow.steps import MIN_STEPS, WARM_UP_STEPS, Steps
from laggard.model import Culprit, Location, Note, Verdict, Window


def locate(timings: JobTimings) -> Location:
    """The verdict on one job. It names no culprit where the ranks differ by no more than healthy ones do."""
    steps = Steps.usable(timings)
    crashed = crashed_ranks(timings)
    hung = NOTHING_FOUND if crashed.culprits else hung_ranks(timings, _typical_step(steps))
    slow = _slow_ranks(timings, steps) if steps else _SlowRanks(notes=(_too_little_note(timings),), conclusive=False)
    culprits = (*crashed.culprits, *hung.culprits, *slow.culprits)
    notes = [*missing_ranks_notes(timings), *crashed.notes, *hung.notes, *slow.notes]
    verdict = Verdict.OK
    if culprits or any(note.kind == "deadlock" for note in hung.notes):
        verdict = Verdict.FAIL
    elif hung.notes or not slow.conclusive:
        verdict = Verdict.UNKNOWN
    if verdict is not Verdict.FAIL and steps and culprit_may_be_missing(timings, steps):
        verdict = Verdict.UNKNOWN
        text = "the ranks that are seen wait for others; the slow rank may be one that is not"
        notes.append(Note("unseen_ranks", text))
    return Location(
        verdict=verdict,
        job_id=timings.job_id,
        world_size=timings.world_size,
        ranks_seen=len(timings.ranks),
        window=_window(steps) if steps else Window(),
        slowdown_ratio=slow.slowdown_ratio,
        culprits=culprits,
        notes=tuple(notes),
    )


class _SlowRanks(NamedTuple):
    """What comparing the steps contributes. `conclusive`: whether a job without culprits may be called healthy."""

    culprits: tuple[Culprit, ...] = ()
    notes: tuple[Note, ...] = ()
    slowdown_ratio: float | None = None
    conclusive: bool = True


def _slow_ranks(timings: JobTimings, steps: Steps) -> _SlowRanks:
    found = slow_ranks(steps)
    brief = [rank for rank in found if rank.brief]
    culprits, ratio = slow_culprits(timings, steps, [rank for rank in found if not rank.brief])
    seen_healthy = all(rank.since >= MIN_STEPS for rank in brief)
    return _SlowRanks(culprits, tuple(brief_notes(timings, brief)), round(ratio, 3), seen_healthy)


def _too_little_note(timings: JobTimings) -> Note:
    """Why no verdict can be drawn from the steps."""
    count, needed = len(timings.steps), MIN_STEPS + WARM_UP_STEPS
    if count >= needed and len(timings.ranks) < 2:
        return Note("too_few_ranks", "one rank seen, two are needed: a rank is slow compared with its peers")
    return Note("too_few_steps", f"{count} steps seen, {needed} are needed for a verdict")


def _typical_step(steps: Steps | None) -> float | None:
    """How many seconds a step of the job usually takes; None where no step is known."""
    return None if steps is None else float(np.median(steps.duration))


def _window(steps: Steps) -> Window:
    seconds = round(float(np.nansum(steps.duration)), 3)
    return Window(int(steps.numbers[0]), int(steps.numbers[-1]), seconds)
