"""The facts that a job's timings give a recommendation: its median step, its ranks and nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from laggard.constants import OPS, PHASES
from laggard.locate.collectives import Collectives
from laggard.locate.job_timings import Floats, JobTimings
from laggard.locate.medians import median
from laggard.model import Culprit
from laggard.recommend.advice.situation import JobProfile, Situation

_INPUT: Final = PHASES.index("input")
_MIN_STEPS: Final = 4


def with_job(known: Situation, timings: JobTimings, culprits: Sequence[Culprit]) -> Situation:
    """Returns what is known besides, with what a job's timings and the verdict on them tell."""
    node_of_rank = {
        int(rank): node for rank, node in zip(timings.ranks, timings.nodes, strict=True) if node is not None
    }
    groups = timings.collectives.groups if timings.collectives else ()
    return known._replace(
        profile=profile_of(timings),
        culprits=tuple(culprits),
        torch_variables=timings.environment or known.torch_variables,
        ranks=timings.world_size or known.ranks,
        nodes=len({node for node in timings.nodes if node}) or known.nodes,
        node_of_rank=node_of_rank,
        data_parallel_groups=tuple(group.ranks for group in groups if group.role == "dp"),
    )


def profile_of(timings: JobTimings) -> JobProfile | None:
    """Returns None where fewer than four steps are known."""
    seconds = timings.step_seconds
    if not timings.steps_recorded or np.isfinite(seconds).any(axis=1).sum() < _MIN_STEPS:
        return None
    step = median(seconds)
    if not step > 0:
        return None
    known = timings.waits_recorded and not timings.unseen_waits
    return JobProfile(
        step,
        _share(timings.phase_seconds[:, :, _INPUT], seconds, max),
        _share(timings.waited_seconds, seconds, min) if known else None,
        _by_operation(timings.collectives, seconds) if timings.collectives else {},
    )


def _share(part: Floats, whole: Floats, over_ranks: Callable[[list[float]], float]) -> float | None:
    """Returns a part's share of the step: of each rank the median over its steps, then over the ranks."""
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = part / whole
    columns = [median(shares[:, column]) for column in range(shares.shape[1])]
    finite = [value for value in columns if np.isfinite(value)]
    if not finite:
        return None
    return min(max(over_ranks(finite), 0.0), 0.99)


def _by_operation(collectives: Collectives, seconds: Floats) -> Mapping[str, tuple[float, float]]:
    """Returns how many of each operation a rank does in a step, and their mean bytes."""
    cells = max(1, int(np.isfinite(seconds).sum()))
    found = {}
    for place, name in enumerate(OPS):
        own = (collectives.op == place) & (collectives.step >= 0)
        sizes = collectives.size[own & (collectives.size >= 0)]
        if own.any():
            found[name] = (float(own.sum()) / cells, float(sizes.mean()) if len(sizes) else 0.0)
    return found
