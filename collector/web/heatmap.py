"""The heat map's numbers: each rank's time in each step, the medians over all ranks, and many ranks folded into
rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from laggard.collector.locate.job_timings import Floats, JobTimings
from laggard.collector.web.documents import HeatDocument, HeatRow
from laggard.constants import PHASES

MEASURES = ("own", "waited", *PHASES)
"""What the map can show: all own time, the time blocked in collectives, each phase."""

MAX_ROWS = 4096


def empty_heatmap(measure: str = "own") -> HeatDocument:
    return HeatDocument(None, measure, 0, [], (), {}, {}, None)


def heatmap_document(job: str, timings: JobTimings, measure: str = "own", rows: int = 256) -> HeatDocument:
    """The heat map with at most `rows` rows; `measure` is one of MEASURES."""
    layers = _layers(timings)
    medians = {name: _listed(_low_median(layer)) for name, layer in layers.items()}
    fold = -(-len(timings.ranks) // max(1, rows)) if len(timings.ranks) else 1
    shown = _standing_out(layers[measure], fold, least=measure == "waited")
    return HeatDocument(
        job=job,
        measure=measure,
        ranks_seen=len(timings.ranks),
        steps=timings.steps.tolist(),
        rows=tuple(_row(timings, start, fold) for start in range(0, len(timings.ranks), fold)),
        seconds={name: _listed(_pick(layers[name], shown)) for name in (*PHASES, "waited")},
        median_seconds=medians,
        shown=timings.ranks[shown].tolist() if fold > 1 else None,
    )


def _layers(timings: JobTimings) -> dict[str, Floats]:
    """Each measure as [R, S]."""
    layers = {phase: timings.phase_seconds[:, :, place].T for place, phase in enumerate(PHASES)}
    own = timings.phase_seconds.sum(axis=2).T
    return {**layers, "waited": timings.waited_seconds.T, "own": own, "step": timings.step_seconds.T}


def _low_median(layer: Floats) -> Floats:
    """[S]: the median over the ranks, the lower of the two for an even number: of two ranks the slow one is compared
    with the fast one."""
    if not layer.size:
        return np.full(layer.shape[1], np.nan)
    ordered = np.sort(layer, axis=0)  # nan last
    known = np.count_nonzero(~np.isnan(layer), axis=0)
    middle: Floats = np.take_along_axis(ordered, np.maximum(known - 1, 0)[None, :] // 2, axis=0)[0]
    return middle


def _standing_out(layer: Floats, fold: int, least: bool) -> NDArray[np.intp]:
    """[rows, S]: for each cell the index of the rank to show, the largest of its row or with `least` the smallest: the
    rank that waits least is the one that others wait for."""
    ranks, steps = layer.shape
    rows = -(-ranks // fold) if ranks else 0
    padded = np.full((rows * fold, steps), np.nan)
    padded[:ranks] = -layer if least else layer
    folded = np.where(np.isnan(padded), -np.inf, padded).reshape(rows, fold, steps)
    best = folded.argmax(axis=1) if rows else np.zeros((0, steps), dtype=np.intp)
    return best + np.arange(0, rows * fold, fold)[:, None]


def _pick(layer: Floats, shown: NDArray[np.intp]) -> Floats:
    return np.take_along_axis(layer, shown, axis=0) if layer.size else layer


def _row(timings: JobTimings, start: int, fold: int) -> HeatRow:
    end = min(start + fold, len(timings.ranks))
    nodes, states = set(timings.nodes[start:end]), {state.state for state in timings.states[start:end]}
    return HeatRow(
        first=int(timings.ranks[start]),
        last=int(timings.ranks[end - 1]),
        count=end - start,
        node=nodes.pop() if len(nodes) == 1 else None,
        gpu=timings.gpus[start] if end - start == 1 else None,
        state=states.pop() if len(states) == 1 else "mixed",
    )


def _listed(values: Floats) -> Any:
    """The values as lists, rounded to microseconds: they take a third of the text. nan becomes null in JSON."""
    return np.round(values, 6).tolist()
