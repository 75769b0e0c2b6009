"""The heat map's numbers: each rank's time in each step, the medians over all ranks, and many ranks folded into
rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.collector.web.documents import HeatDocument, HeatRow
from laggard.kit.constants import PHASES
from laggard.locate.job_timings import Floats, JobTimings
from laggard.locate.medians import over_phases

MEASURES = ("own", "waited", *PHASES)
"""The measures that the map can show: all own time, the time blocked in collectives, each phase."""

COLUMNS = 160
"""The most columns into which steps are folded: the answer stays small, whatever the length of a step."""


FOLDED_ROWS = 160
"""The most rows where each has more ranks than a machine has GPUs: more of them only make the answer larger."""

_MACHINE = 8

ORDERS = ("rank", "host", "position")


class MapView(NamedTuple):
    """The ranks of a job that are shown, from `start` to before `stop` in the order of `order`: rank, host (all of a
    host beside each other), position (all that do the same work, as a pipeline's stage)."""

    order: str = "rank"
    start: int = 0
    stop: int | None = None


BY_RANK = MapView()


def empty_heatmap(measure: str = "own") -> HeatDocument:
    return HeatDocument(None, measure, 0, [], (), {}, {}, None)


Medians = dict[str, list[float | None]]


def map_medians(timings: JobTimings) -> Medians:
    """The medians over all ranks in each column: the costly part of a map, and the same for all views of a job."""
    layers, _ = _folded_steps(_layers(timings, ("own", "step")))
    return {name: _listed(_low_median(layer)) for name, layer in layers.items()}


def heatmap_document(
    job: str,
    timings: JobTimings,
    measure: str = "own",
    rows: int = 256,
    view: MapView = BY_RANK,
    medians: Medians | None = None,
) -> HeatDocument:
    """The heat map with at most `rows` rows, or one a group where `view` groups the ranks and has more of these;
    `measure` is one of MEASURES, `medians` the map_medians() where the caller has them."""
    order, groups = _ordered(timings, view.order)
    stop = len(order) if view.stop is None else min(view.stop, len(order))
    start = min(view.start, stop)
    order, groups = order[start:stop], groups[start:stop]
    is_part = len(order) < len(timings.ranks)
    layers, step_fold = _folded_steps(_layers(timings, (measure,), order if is_part else None))
    bounds = _bounds(groups, min(rows, FOLDED_ROWS) if len(order) > _MACHINE * rows else rows)
    places = np.arange(len(order)) if is_part else order
    shown = _standing_out(layers[measure], places, bounds, least=measure == "waited")
    folds = bool(np.any(np.diff(bounds) > 1))
    return HeatDocument(
        job=job,
        measure=measure,
        ranks_seen=len(timings.ranks),
        steps=timings.steps[::step_fold].tolist(),
        rows=tuple(
            _row(timings, order[begin:end], start + begin, view.order, groups[begin])
            for begin, end in itertools.pairwise(bounds.tolist())
        ),
        seconds={name: _listed(_pick(layers[name], shown)) for name in (*PHASES, "waited")},
        median_seconds=map_medians(timings) if medians is None else medians,
        shown=timings.ranks[order[shown] if is_part else shown].tolist() if folds else None,
        step_fold=step_fold,
        order=view.order,
        start=start,
        stop=stop,
    )


def _folded_steps(layers: dict[str, Floats]) -> tuple[dict[str, Floats], int]:
    """The layers with at most COLUMNS columns, and how many steps make one: its value is their mean."""
    count = layers["waited"].shape[1]
    fold = -(-count // COLUMNS) if count else 1
    if fold == 1:
        return layers, 1
    return {name: _means(layer, fold) for name, layer in layers.items()}, fold


def _means(layer: Floats, fold: int) -> Floats:
    """The mean of each `fold` columns, without those that are nan."""
    starts = np.arange(0, layer.shape[1], fold)
    known = ~np.isnan(layer)
    count = np.add.reduceat(known, starts, axis=1, dtype=np.int64)
    total = np.add.reduceat(np.where(known, layer, 0.0), starts, axis=1)
    means: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return means


def _ordered(timings: JobTimings, order: str) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """The columns of the ranks in the map's order, and the group of each: its host or its position; one for all by
    rank."""
    numbers = np.arange(len(timings.ranks))
    if order == "host":
        _, codes = np.unique(np.array([node or "" for node in timings.nodes], dtype=object), return_inverse=True)
        groups = np.asarray(codes, dtype=np.int64).reshape(-1)
    elif order == "position" and timings.positions is not None:
        groups = timings.positions.astype(np.int64)
    else:
        groups = np.zeros(len(numbers), dtype=np.int64)
    places = np.argsort(groups, kind="stable")
    return places, groups[places]


def _bounds(groups: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """The place where each row begins, and the end of the last. A row holds ranks of one group while there is room for
    a row for each."""
    count = len(groups)
    if not count:
        return np.zeros(1, dtype=np.int64)
    first = np.flatnonzero(np.concatenate([[True], np.diff(groups) != 0]))
    fold = -(-count // max(1, rows))
    if len(first) == 1 or len(first) > rows:
        return np.append(np.arange(0, count, fold), count)
    sizes = np.diff(np.append(first, count))
    if len(sizes) < count and _rows_of(sizes, fold) > rows:  # the ends of groups take rows of their own
        fold = next(it for it in range(fold, int(sizes.max()) + 1) if _rows_of(sizes, it) <= rows)
    starts = [np.arange(begin, begin + size, fold) for begin, size in zip(first, sizes, strict=True)]
    return np.append(np.concatenate(starts), count)


def _rows_of(sizes: NDArray[np.int64], fold: int) -> int:
    return int((-(-sizes // fold)).sum())


def _layers(timings: JobTimings, totals: Sequence[str], columns: NDArray[np.intp] | None = None) -> dict[str, Floats]:
    """Each phase and `waited` as [R, S], of all ranks or of those in `columns`; `own` and `step` where `totals` names
    them."""
    chosen = slice(None) if columns is None else columns
    phases = timings.phase_seconds[:, chosen]
    layers = {phase: phases[:, :, place].T for place, phase in enumerate(PHASES)}
    layers["waited"] = timings.waited_seconds[:, chosen].T
    if "own" in totals:
        layers["own"] = over_phases(phases).T
    if "step" in totals:
        layers["step"] = timings.step_seconds[:, chosen].T
    return layers


def _low_median(layer: Floats) -> Floats:
    """[S]: the median over the ranks, the lower of the two for an even number: of two ranks the slow one is compared
    with the fast one."""
    if not layer.size:
        return np.full(layer.shape[1], np.nan)
    ordered = np.sort(layer, axis=0)  # nan last
    known = np.count_nonzero(~np.isnan(layer), axis=0)
    middle: Floats = np.take_along_axis(ordered, np.maximum(known - 1, 0)[None, :] // 2, axis=0)[0]
    return middle


def _standing_out(layer: Floats, order: NDArray[np.intp], bounds: NDArray[np.int64], least: bool) -> NDArray[np.intp]:
    """[rows, S]: for each cell the column of the rank to show, the largest of its row or with `least` the smallest: the
    rank that waits least is the one that others wait for."""
    ordered = (-layer if least else layer)[order]
    known = np.where(np.isnan(ordered), -np.inf, ordered)
    best = [known[begin:end].argmax(axis=0) + begin for begin, end in itertools.pairwise(bounds.tolist())]
    return order[np.stack(best)] if best else np.zeros((0, layer.shape[1]), dtype=np.intp)


def _pick(layer: Floats, shown: NDArray[np.intp]) -> Floats:
    return np.take_along_axis(layer, shown, axis=0) if layer.size else layer


def _row(timings: JobTimings, columns: NDArray[np.intp], at: int, order: str, group: np.int64) -> HeatRow:
    nodes = {timings.nodes[column] for column in columns}
    states = {timings.states[column].state for column in columns}
    ranks = np.sort(timings.ranks[columns])
    breaks = np.flatnonzero(np.diff(ranks) != 1)
    firsts, lasts = ranks[np.append(0, breaks + 1)], ranks[np.append(breaks, len(ranks) - 1)]
    return HeatRow(
        first=int(ranks[0]),
        last=int(ranks[-1]),
        count=len(columns),
        node=nodes.pop() if len(nodes) == 1 else None,
        gpu=timings.gpus[int(columns[0])] if len(columns) == 1 else None,
        state=states.pop() if len(states) == 1 else "mixed",
        spans=tuple(zip(firsts.tolist(), lasts.tolist(), strict=True)),
        at=at,
        position=int(group) if order == "position" and timings.positions is not None else None,
    )


def _listed(values: Floats) -> Any:
    """The values as lists, rounded to microseconds, and from 10 ms on to four digits or more, of which the page shows
    three: the cells are most of a view's bytes. nan becomes null in JSON."""
    coarse = np.where(values >= 0.1, np.round(values, 4), np.round(values, 5))
    return np.where(values >= 0.01, coarse, np.round(values, 6)).tolist()
