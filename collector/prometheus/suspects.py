"""Describes the suspects that averages have shown: in which phase they are slow, and by how much. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from laggard.collector.prometheus.counters import FIRST_INTERVAL, INTERVALS, Floats, differences
from laggard.constants import PHASES
from laggard.locate.medians import median
from laggard.model import Culprit
from laggard.text.words import phase_text, step_times_text

MAX_RANKS = 64
"""The number of suspects whose phases are asked for, and that of their peers."""

COARSE_FACTOR = 0.85
"""The factor of the confidence by averages: averages over many steps hide which of them were slow, and no wait is
looked at."""

WAITS_LONGER_FACTOR = 0.5
"""The factor of the confidence where a suspect waits longer than its peers do: who is waited for waits least."""

_INPUT, _OPTIMIZER = PHASES.index("input"), PHASES.index("optimizer")


class Detail(NamedTuple):
    """The times of the suspects and some peers: seconds a step, on average, [K, N, len(PHASES)] by phase and [K, N] in
    collectives; nan where not known. `column` is where each rank is."""

    column: Mapping[int, int]
    phases: Floats
    collectives: Floats


def chosen(culprits: Sequence[Culprit], ranks: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """The ranks to ask about: the culprits', and peers from all over the job."""
    suspects = list(dict.fromkeys(rank for culprit in culprits for rank in culprit.ranks))[:MAX_RANKS]
    accused = {rank for culprit in culprits for rank in culprit.ranks}
    spread = ranks[:: max(1, len(ranks) // (MAX_RANKS + len(accused)))]
    return suspects, [int(rank) for rank in spread if int(rank) not in accused][:MAX_RANKS]


def detail(
    asked: Sequence[int], made: Floats, phase_tables: Mapping[str, Floats], collective_seconds: Floats
) -> Detail:
    """`made` [K, N]: how many steps the asked ranks made in each interval; the tables are [T, N]."""
    phases = np.full((len(made), len(asked), len(PHASES)), np.nan)
    for name, values in phase_tables.items():
        if name in PHASES:
            phases[:, :, PHASES.index(name)] = differences(values) / made
    return Detail({rank: place for place, rank in enumerate(asked)}, phases, differences(collective_seconds) / made)


def described(culprit: Culprit, found: Detail, peers: Sequence[int]) -> Culprit:
    """The culprit with its phase, and with evidence in seconds a step."""
    own = [found.column[rank] for rank in culprit.ranks if rank in found.column]
    others = [found.column[rank] for rank in peers if rank in found.column]
    since = slice(max(0, (culprit.since_step or FIRST_INTERVAL) - FIRST_INTERVAL), None)
    mine, theirs = _typical(found.phases[since][:, own]), _typical(found.phases[since][:, others])
    excess = (mine - theirs)[: PHASES.index("other")]
    confidence = culprit.confidence * COARSE_FACTOR
    evidence = [f"averages over {INTERVALS - since.start} of {INTERVALS} intervals that Prometheus holds"]
    kind, phase = culprit.kind, None
    if np.isfinite(excess).any():
        place = int(np.nanargmax(excess))
        phase = PHASES[place]
        evidence.insert(0, step_times_text(float(mine[place]), float(theirs[place]), phase_text(phase)))
        if kind != "slow_host":
            kind = "slow_input" if place == _INPUT else "slow_host" if place > _OPTIMIZER else "slow_compute"
    waited, peers_waited = median(found.collectives[since][:, own]), median(found.collectives[since][:, others])
    if np.isfinite(waited) and np.isfinite(peers_waited):
        evidence.insert(1, f"waits {step_times_text(waited, peers_waited, 'collectives')}")
        confidence *= WAITS_LONGER_FACTOR if waited > peers_waited else 1.0
    sure = round(confidence, 2)
    return structs.replace(culprit, kind=kind, phase=phase, confidence=sure, evidence=tuple(evidence))


def _typical(values: Floats) -> Floats:
    """[P]: the median over intervals and ranks of `values` [K, N, P]."""
    return np.array([median(values[:, :, place]) for place in range(values.shape[2])])
