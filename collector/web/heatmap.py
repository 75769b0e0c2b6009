"""The heat map's numbers: a rank's time in each step, its peers' medians, ranks folded together where they are many."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from laggard.collector.locate.job_timings import Evidence, Floats
from laggard.collector.web.documents import HeatDocument, HeatRow
from laggard.constants import PHASES

MEASURES = ("own", "waited", *PHASES)
"""What can be shown: all own time, the time blocked in collectives, each phase."""

MAX_ROWS = 4096


def empty_heat(measure: str = "own") -> HeatDocument:
    return HeatDocument(None, measure, 0, [], (), {}, {}, None)


def heat_document(job: str, evidence: Evidence, measure: str = "own", rows: int = 256) -> HeatDocument:
    """At most `rows` rows; `measure` is one of MEASURES."""
    layers = _layers(evidence)
    medians = {name: _listed(_low_median(layer)) for name, layer in layers.items()}
    fold = -(-len(evidence.ranks) // max(1, rows)) if len(evidence.ranks) else 1
    shown = _standing_out(layers[measure], fold, least=measure == "waited")
    return HeatDocument(
        job=job,
        measure=measure,
        ranks_seen=len(evidence.ranks),
        steps=evidence.steps.tolist(),
        rows=tuple(_row(evidence, start, fold) for start in range(0, len(evidence.ranks), fold)),
        seconds={name: _listed(_pick(layers[name], shown)) for name in (*PHASES, "waited")},
        median_seconds=medians,
        shown=evidence.ranks[shown].tolist() if fold > 1 else None,
    )


def _layers(evidence: Evidence) -> dict[str, Floats]:
    """Each measure as [R, S]."""
    layers = {phase: evidence.phase_seconds[:, :, place].T for place, phase in enumerate(PHASES)}
    own = evidence.phase_seconds.sum(axis=2).T
    return {**layers, "waited": evidence.waited_seconds.T, "own": own, "step": evidence.step_seconds.T}


def _low_median(layer: Floats) -> Floats:
    """[S]. Of an even number the lower middle: of two ranks the fast one is the measure of the slow one."""
    if not layer.size:
        return np.full(layer.shape[1], np.nan)
    ordered = np.sort(layer, axis=0)  # nan last
    seen = np.count_nonzero(~np.isnan(layer), axis=0)
    middle: Floats = np.take_along_axis(ordered, np.maximum(seen - 1, 0)[None, :] // 2, axis=0)[0]
    return middle


def _standing_out(layer: Floats, fold: int, least: bool) -> NDArray[np.intp]:
    """[rows, S]: for each cell the place of the rank to show. Who waits least is who is waited for."""
    ranks, steps = layer.shape
    rows = -(-ranks // fold) if ranks else 0
    padded = np.full((rows * fold, steps), np.nan)
    padded[:ranks] = -layer if least else layer
    folded = np.where(np.isnan(padded), -np.inf, padded).reshape(rows, fold, steps)
    best = folded.argmax(axis=1) if rows else np.zeros((0, steps), dtype=np.intp)
    return best + np.arange(0, rows * fold, fold)[:, None]


def _pick(layer: Floats, shown: NDArray[np.intp]) -> Floats:
    return np.take_along_axis(layer, shown, axis=0) if layer.size else layer


def _row(evidence: Evidence, start: int, fold: int) -> HeatRow:
    end = min(start + fold, len(evidence.ranks))
    nodes, states = set(evidence.nodes[start:end]), {state.state for state in evidence.states[start:end]}
    return HeatRow(
        first=int(evidence.ranks[start]),
        last=int(evidence.ranks[end - 1]),
        count=end - start,
        node=nodes.pop() if len(nodes) == 1 else None,
        gpu=evidence.gpus[start] if end - start == 1 else None,
        state=states.pop() if len(states) == 1 else "mixed",
    )


def _listed(values: Floats) -> Any:
    """Microseconds are enough, and a third of the text; nan becomes null on the wire."""
    return np.round(values, 6).tolist()
