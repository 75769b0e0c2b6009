"""Tells a rank that has more to do from a machine that is slower. Pure.

Two signs tell. The elements of the model's inputs, where the hooks see them: a rank with more of them has more work, as
far as they explain its time. Where they are not seen, work of a fixed size: the update of a rank with a longer batch is
as fast as its peers', while its forward and backward passes are longer by the same factor. A slow CPU slows all three.
A GPU may be held to a lower clock, which slows the passes and not the update, which memory bounds; so there the second
sign proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import PHASES, SCRIPT_PHASES
from laggard.kit.words import ranks_text, step_times_text, times_text
from laggard.locate.job_timings import Floats
from laggard.locate.medians import MAD_TO_SIGMA, last_axis_median, median
from laggard.locate.slow.steps import Steps
from laggard.model import MAX_NAMED_RANKS, Culprit, Note

MIN_MORE_WORK: Final = 1.02
"""The ratio of the elements that a rank's model gets to those that its peers' get, from which on it has more to do."""

TIME_EXPONENT: Final = 1.5
"""The largest power of the work with which time grows: attention's with the square of a sequence's length, all else in
proportion. Our choice."""

MIN_EXPLAINED: Final = 0.5
"""The least share of the longer time that more work has to explain, where the peers' steps tell how much it does."""

MAX_UPDATE_RATIO: Final = 1.05
"""The ratio of an update's time to its peers' up to which it is as fast as theirs."""

MIN_UPDATE_SHARE: Final = 0.01
"""The share of the step below which an update tells nothing."""

MAX_EXCESS_RATIO: Final = 2.0
"""The largest ratio between the excesses over 1 of forward and backward that are longer by the same factor."""

_FORWARD, _BACKWARD, _OPTIMIZER, _BETWEEN = (
    PHASES.index(name) for name in ("forward", "backward", "optimizer", "between_steps")
)
_PASSES: Final = (_FORWARD, _BACKWARD)


class Compared(NamedTuple):
    """The steps [K], in which a rank is compared, its columns, and its peers' columns."""

    steps: NDArray[np.int64]
    columns: NDArray[np.int64]
    peers: NDArray[np.int64]


def more_work(steps: Steps, compared: Compared, on_gpu: bool) -> tuple[str, ...]:
    """The evidence that the rank's work, and not its machine, makes it slow; empty where nothing tells that."""
    if not len(compared.peers):
        return ()
    works = _work(steps, compared)
    if works is None and on_gpu:
        return ()
    phases = _PASSES if works else (*_PASSES, _OPTIMIZER)
    own, peers = (_seconds(steps, compared.steps, columns, phases) for columns in (compared.columns, compared.peers))
    passes = own[_FORWARD] + own[_BACKWARD], peers[_FORWARD] + peers[_BACKWARD]
    if not (np.isfinite(passes).all() and passes[0] > passes[1] > 0):
        return ()
    if works is not None:
        return () if _is_slow_at_its_work(steps, compared) else _by_elements(works, passes[0] / passes[1])
    return _by_update(own, peers, median(steps.duration))


def more_between(steps: Steps, compared: Compared) -> tuple[str, ...]:
    """The evidence that the rank has more work between its steps, by the elements that its model gets in them; empty
    where these do not explain how much longer that takes."""
    works = _work(steps, compared) if len(compared.peers) else None
    if works is None:
        return ()
    of_both = (_seconds(steps, compared.steps, columns, (_BETWEEN,)) for columns in (compared.columns, compared.peers))
    own, peers = (seconds[_BETWEEN] for seconds in of_both)
    return _by_elements(works, own / peers) if peers > 0 else ()


def _seconds(
    steps: Steps, rows: NDArray[np.int64], columns: NDArray[np.int64], phases: Sequence[int]
) -> dict[int, float]:
    """What the median rank takes in each of the phases."""
    some = np.ix_(rows, columns)
    return {phase: median(last_axis_median(steps.phases[:, :, phase][some])) for phase in phases}


def _work(steps: Steps, compared: Compared) -> tuple[float, float] | None:
    """The elements a step of the rank and of its peers; None where they are not seen."""
    if steps.work is None:
        return None
    work = steps.work[compared.steps]
    own, peers = (_mean(work[:, columns]) for columns in (compared.columns, compared.peers))
    return (own, peers) if own > 0 and peers > 0 else None


def _mean(work: Floats) -> float:
    """The mean of what is known: a step whose record is lost has no less work. Zero where nothing is."""
    known = work[np.isfinite(work)]
    return float(known.mean()) if len(known) else 0.0


def _is_slow_at_its_work(steps: Steps, compared: Compared) -> bool:
    """Whether its peers' steps, in which they have more and less work, tell that the rank's work explains less than
    MIN_EXPLAINED of the time by which its passes are longer."""

    assert steps.work is not None
    passes = steps.phases[:, :, _FORWARD] + steps.phases[:, :, _BACKWARD]
    own, peers = (
        (steps.work[some], passes[some])
        for some in (np.ix_(compared.steps, columns) for columns in (compared.columns, compared.peers))
    )
    explained = explained_share(own, peers)
    return explained is not None and explained < MIN_EXPLAINED


def _by_elements(works: tuple[float, float], longer: float) -> tuple[str, ...]:
    more = works[0] / works[1]
    if more < MIN_MORE_WORK or more**TIME_EXPONENT - 1 < MIN_EXPLAINED * (longer - 1):
        return ()
    return (f"its model gets {works[0]:,.0f} elements a step, its peers' {works[1]:,.0f}: {times_text(more)} as many",)


def _by_update(own: Mapping[int, float], peers: Mapping[int, float], step: float) -> tuple[str, ...]:
    """The judgement by the update, whose work is the same on all ranks that do the same."""
    if min(peers[_FORWARD], peers[_BACKWARD]) <= 0 or peers[_OPTIMIZER] < MIN_UPDATE_SHARE * step:
        return ()
    longer = own[_FORWARD] / peers[_FORWARD] - 1, own[_BACKWARD] / peers[_BACKWARD] - 1
    if (
        min(longer) <= 0
        or max(longer) > MAX_EXCESS_RATIO * min(longer)
        or own[_OPTIMIZER] > MAX_UPDATE_RATIO * peers[_OPTIMIZER]
    ):
        return ()
    update = step_times_text(float(own[_OPTIMIZER]), float(peers[_OPTIMIZER]), "optimizer")
    return (
        f"forward and backward take {times_text(1 + float(min(longer)))} as long or more, and the update, which is as "
        f"large on all ranks, does not: {update}",
    )


def is_by_design(culprit: Culprit) -> bool:
    """Whether uneven work is told of in a note alone: what scripts leave to one rank, and what comes by turns."""
    if culprit.kind != "uneven_work":
        return False
    return culprit.persistence != "persistent" or culprit.phase in ("between_steps", *SCRIPT_PHASES)


def uneven_work_note(culprit: Culprit) -> Note:
    """The note of a culprit that is_by_design()."""
    ranks = ranks_text(culprit.ranks)
    what = (culprit.phase or "a phase").replace("_", " ")
    share = f"{culprit.recoverable_ratio or 0.0:.0%} of the step time".replace("%", " %")
    text = f"{ranks}: more to do than the others, {what}; they wait for it, {share}: {culprit.evidence[0]}"
    return Note("uneven_work", text, ranks=culprit.ranks[:MAX_NAMED_RANKS])


MIN_VARIATION: Final = 0.02
"""The least standard deviation of the peers' work, as a share of it, from which on it tells how long work takes."""

MIN_CORRELATION: Final = 0.7
"""The least correlation of work and time of the peers: below it something else makes their steps longer or shorter."""

MIN_SAMPLES: Final = 48
_MAX_PEERS: Final = 64
"""The most peers that are looked at: so many tell as well as all of thousands."""
_OUTLIER_SIGMAS: Final = 5.0
_OUTSIDE: Final = 1.02
"""The ratio to the peers' largest work up to which a line through theirs is prolonged."""


def explained_share(own: tuple[Floats, Floats], peers: tuple[Floats, Floats]) -> float | None:
    """The share of the time by which a rank takes longer than its peers that its work explains: 1, all of it; 0, none.

    `own` and `peers`: the work (elements) and the seconds of each step and rank, [K, R] each, nan where one is not
    known. None where the peers' work does not tell how long it takes: it is the same in all steps, or the rank has more
    than any of them."""
    work, seconds = (each[:, :_MAX_PEERS].ravel() for each in peers)
    seen = np.isfinite(work) & np.isfinite(seconds) & (work > 0)
    work, seconds = work[seen], seconds[seen]
    if len(work) < MIN_SAMPLES or np.std(work) < MIN_VARIATION * np.mean(work):
        return None
    line = _line(work, seconds)
    given, took = (each.ravel() for each in own)
    known = np.isfinite(given) & np.isfinite(took) & (given > 0)
    given, took = given[known], took[known]
    if line is None or not len(given) or np.median(given) > _OUTSIDE * work.max():
        return None
    usual, excess = float(np.median(seconds)), float(np.median(took)) - float(np.median(seconds))
    if excess <= 0:
        return None
    return (float(np.median(np.polyval(line, given))) - usual) / excess


def _line(work: Floats, seconds: Floats) -> Floats | None:
    """The slope and the value at 0 of the seconds by the work, without the steps that took far longer or shorter; None
    where the work does not tell the time."""
    line = np.polyfit(work, seconds, 1)
    left = seconds - np.polyval(line, work)
    least = _OUTLIER_SIGMAS * MAD_TO_SIGMA * float(np.median(np.abs(left - np.median(left))))
    kept = np.abs(left - np.median(left)) <= least
    work, seconds = work[kept], seconds[kept]
    if len(work) < MIN_SAMPLES or not np.std(work) > 0 or not np.std(seconds) > 0:
        return None
    if np.corrcoef(work, seconds)[0, 1] < MIN_CORRELATION:
        return None
    return np.asarray(np.polyfit(work, seconds, 1))
