"""`laggard report portability`, `scaling` and `table`: a table to its document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from laggard.recommend.portability import Portability, find_portability
from laggard.recommend.runs import Run, merge_repeats
from laggard.recommend.scaling import Point, Scaling, find_scaling
from laggard.recommend.surface import find_outliers
from laggard.reports.campaign_report import UNKNOWN, cell_errors, gains_of, outlier_row, read_runs
from laggard.reports.documents import (
    PortabilityDocument,
    PortabilityRow,
    ScalingDocument,
    ScalingRow,
    TableDocument,
    TableNote,
)
from laggard.reports.notes import empty_notes, repeat_notes
from laggard.reports.table import Row, Table

_GROUPS: Final = ("platform", "network", "model", "stage", "config", "sharding", "precision")
"""Columns that make rows of a table of scaling incomparable."""
_MAX_WHOLE: Final = 1 << 30
_SUPERLINEAR_RATIO: Final = 1.3


def portability_document(table: Table, within: float) -> PortabilityDocument:
    named = "config" in table.columns
    runs, empty = read_runs(table, partly=named)
    configurations = merge_repeats(runs)
    found = find_portability(configurations, named)
    return PortabilityDocument(
        tuple(PortabilityRow(each.config, *_known(each), each.value, each.efficiencies) for each in found),
        gains_of(configurations),
        tuple(map(outlier_row, find_outliers([run for run in runs if UNKNOWN not in run[2:5]]))),
        (
            *empty_notes(empty),
            *_one_platform(runs),
            *_missing_notes({each.missing: each.value for each in found if each.missing and each.value is None}),
            *repeat_notes(configurations, within),
        ),
    )


def _known(each: Portability) -> tuple[int | None, int | None, int | None]:
    stage, micro_batch, grad_accum = (
        None if value == UNKNOWN else value for value in (each.stage, each.micro_batch, each.grad_accum)
    )
    return stage, micro_batch, grad_accum


def _one_platform(runs: Sequence[Run]) -> Iterator[TableNote]:
    platforms = {run.platform for run in runs}
    if len(platforms) == 1:
        yield TableNote("one_platform", f"all rows are of {platforms.pop()}: portability is between platforms")


def _missing_notes(missing: dict[tuple[str, ...], float | None]) -> Iterator[TableNote]:
    for platforms in missing:
        text = f"some configurations were not measured on {', '.join(platforms)}: their portability is not known"
        yield TableNote("not_measured", text)


def scaling_document(table: Table) -> ScalingDocument:
    table.require("nodes", "gpus")
    if "samples_per_second" not in table.columns and "micro_batch" not in table.columns:
        table.require("samples_per_second")
    points = tuple(map(_point, table.rows))
    rows = tuple(map(_scaling_row, find_scaling(points)))
    return ScalingDocument(rows, tuple(row for row in rows if row.alarm), tuple(_scaling_notes(points, rows)))


def _point(row: Row) -> Point:
    speed = row.speed("samples_per_second")
    nodes, gpus = row.whole("nodes", 1, _MAX_WHOLE), row.whole("gpus", 1, _MAX_WHOLE)
    if gpus < nodes:
        row.fail(f"{gpus} gpus on {nodes} nodes: gpus counts those of all nodes together")
    group = ", ".join(filter(None, (row.text(name) for name in _GROUPS)))
    return Point(row.line, group, nodes, gpus, speed if isinstance(speed, float) else None, row.positive("micro_batch"))


def _scaling_row(each: Scaling) -> ScalingRow:
    point = each.point
    return ScalingRow(
        point.group,
        point.nodes,
        point.gpus,
        point.samples_per_second,
        each.per_gpu,
        each.factor,
        each.step_factor,
        each.alarm,
        point.micro_batch,
        each.z_gain,
    )


def _scaling_notes(points: Sequence[Point], rows: Sequence[ScalingRow]) -> Iterator[TableNote]:
    seen: dict[tuple[str, int, int], int] = {}
    for point in points:
        first = seen.setdefault((point.group, point.nodes, point.gpus), point.line)
        if first != point.line:
            text = f"lines {first} and {point.line} are of the same {point.nodes} nodes and {point.gpus} GPUs"
            yield TableNote("doubled_row", text, (first, point.line))
    for group in dict.fromkeys(row.group for row in rows):
        own = [row for row in rows if row.group == group]
        if sum(row.samples_per_second is not None for row in own) < 2:
            yield TableNote("too_few", f"fewer than two sizes were measured{_of(group)}: nothing tells how it scales")
        per_node = {row.gpus / row.nodes for row in own}
        if len(per_node) > 1:
            yield TableNote("uneven", f"nodes have different numbers of GPUs{_of(group)}: factors are by GPU")
    for row in rows:
        if row.step_factor is not None and row.step_factor > _SUPERLINEAR_RATIO:
            text = (
                f"at {row.nodes} nodes a GPU does {row.step_factor:.2f} times what it does on fewer{_of(row.group)}: "
                "a number or a unit may be wrong"
            )
            yield TableNote("superlinear", text, tuple(p.line for p in points if p.nodes == row.nodes))


def _of(group: str) -> str:
    return f" for {group}" if group else ""


def table_document(table: Table) -> TableDocument:
    errors = cell_errors(table)
    notes = [TableNote("too_few", "fewer than three rows: nothing can be checked")] if len(table.rows) < 3 else []
    return TableDocument(errors, tuple(notes))
