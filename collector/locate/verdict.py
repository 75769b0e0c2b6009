"""Which rank makes the others wait: one pure function from arrays to a verdict.

In a synchronous job every rank's step is equally long; the slow one is the one that waits least. So what is compared
is the time a rank was busy (own time, input included, collectives taken out), each step with the median of its peers
in the same step: durations on each rank's own clock, never one clock with another.
"""

from __future__ import annotations

import numpy as np

from laggard.collector.locate.hang.crashes import dead_culprits
from laggard.collector.locate.hang.hangs import NOBODY, hung_ranks
from laggard.collector.locate.job_timings import Evidence
from laggard.collector.locate.slow.culprits import brief_notes, slow_culprit
from laggard.collector.locate.slow.hosts import by_host
from laggard.collector.locate.slow.missing_ranks import hidden_waits, unseen_ranks
from laggard.collector.locate.slow.payoff import savings
from laggard.collector.locate.slow.ranks import Slow, slow_ranks
from laggard.collector.locate.slow.steps import MIN_STEPS, WARM_UP_STEPS, Steps
from laggard.model import Culprit, Location, Note, Verdict, Window


def locate(evidence: Evidence) -> Location:
    """The verdict on one job. No culprit where the ranks differ by no more than healthy ones do."""
    steps = Steps.usable(evidence)
    dead = dead_culprits(evidence)
    hung = hung_ranks(evidence, _typical_step(steps)) if not dead.culprits else NOBODY
    stuck = (*dead.culprits, *hung.culprits)
    broken = bool(stuck) or any(note.kind == "deadlock" for note in hung.notes)  # which never ends
    notes = [*unseen_ranks(evidence), *dead.notes, *hung.notes]
    if steps is None:
        notes.append(_too_little(evidence))
        verdict = Verdict.FAIL if broken else Verdict.UNKNOWN
        return _location(evidence, None, verdict, None, stuck, notes)
    suspects = slow_ranks(steps)
    slow, ratio = _slow(evidence, steps, [each for each in suspects if not each.brief])
    brief = [each for each in suspects if each.brief]
    notes += brief_notes(evidence, brief)
    culprits = (*stuck, *slow)
    untold = hung.notes or any(each.since < MIN_STEPS for each in brief)  # what was never seen healthy is not called so
    verdict = Verdict.FAIL if culprits or broken else Verdict.UNKNOWN if untold else Verdict.OK
    if verdict is not Verdict.FAIL and hidden_waits(evidence, steps):
        verdict = Verdict.UNKNOWN
        notes.append(
            Note("unseen_ranks", "the ranks that are seen wait for others; the slow one may be one that is not")
        )
    return _location(evidence, steps, verdict, ratio, culprits, notes)


def _too_little(evidence: Evidence) -> Note:
    """Why no verdict can be had from the steps."""
    count, needed = len(evidence.steps), MIN_STEPS + WARM_UP_STEPS
    if count >= needed and len(evidence.ranks) < 2:
        return Note("too_few_ranks", "one rank seen, two are needed: a rank is slow compared with its peers")
    return Note("too_few_steps", f"{count} steps seen, {needed} are needed for a verdict")


def _typical_step(steps: Steps | None) -> float | None:
    return None if steps is None else float(np.median(steps.duration))


def _slow(evidence: Evidence, steps: Steps, slow: list[Slow]) -> tuple[list[Culprit], float]:
    """The slow ranks and machines, the slowest first, and the job's slowdown ratio."""
    saved, ratio = savings(steps, slow)
    culprits = [slow_culprit(evidence, steps, *each) for each in zip(slow, saved, strict=True)]
    return by_host(evidence, culprits), ratio


def _location(
    evidence: Evidence,
    steps: Steps | None,
    verdict: Verdict,
    ratio: float | None,
    culprits: tuple[Culprit, ...],
    notes: list[Note],
) -> Location:
    window = Window()
    if steps is not None:
        seconds = round(float(np.nansum(steps.duration)), 3)
        window = Window(int(steps.numbers[0]), int(steps.numbers[-1]), seconds)
    return Location(
        verdict=verdict,
        job_id=evidence.job_id,
        world_size=evidence.world_size,
        ranks_seen=len(evidence.ranks),
        window=window,
        slowdown_ratio=None if ratio is None else round(ratio, 3),
        culprits=culprits,
        notes=tuple(notes),
    )
