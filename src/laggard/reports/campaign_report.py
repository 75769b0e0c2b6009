"""`laggard tune report campaign`, `portability`, `scaling` and `table`: a table of measured runs to its document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from laggard.reports.documents import (
    CampaignDocument,
    CellError,
    OutlierRow,
    PortabilityDocument,
    ScalingDocument,
    ScalingRow,
    TableDocument,
    TableNote,
)
from laggard.reports.outliers import MIN_RUNS, Outlier, find_outliers, find_table_errors
from laggard.reports.runs import (
    UNKNOWN,
    Point,
    Run,
    find_best,
    find_gains,
    find_portability,
    find_scaling,
    find_winners,
    merge_repeats,
)
from laggard.reports.step_model import find_crossovers
from laggard.reports.table import Row, Table, campaign_notes, empty_notes, repeat_notes

COLUMNS: Final = ("platform", "stage", "micro_batch", "grad_accum", "samples_per_second")
_REMARKS: Final = ("seed", "trial", "run", "run_id", "repeat", "rep", "attempt", "job_id", "date", "time", "comment")
"""Columns that tell runs of one configuration apart."""
_MAX_WHOLE: Final = 1 << 30


def read_runs(table: Table, partly: bool = False) -> tuple[tuple[Run, ...], tuple[Row, ...]]:
    """Returns the runs, and the rows that hold no measurement. Raises UsageError for a row that is wrong. `partly`:
    stage, micro-batch and accumulation may be left out; they are UNKNOWN then."""
    table.require(*(COLUMNS if not partly else ("platform", "samples_per_second")))
    settings = _settings(table)
    runs, empty = [], []
    for row in table.rows:
        speed_of_row = row.speed("samples_per_second")
        if speed_of_row is None:
            empty.append(row)
            continue
        if not row.text("platform"):
            row.fail("platform is empty: name the machine on which it was measured")
        runs.append(
            Run(
                row.line,
                row.text("platform"),
                _whole(row, "stage", 0, 3, partly),
                _whole(row, "micro_batch", 1, _MAX_WHOLE, partly),
                _whole(row, "grad_accum", 1, _MAX_WHOLE, partly),
                speed_of_row if isinstance(speed_of_row, float) else None,
                {**row.values(), "platform": row.text("platform")},
                tuple((name, row.cells[name]) for name in settings),
            )
        )
    return tuple(runs), tuple(empty)


def campaign_document(table: Table, within: float) -> CampaignDocument:
    runs, empty = read_runs(table)
    configurations = merge_repeats(runs)
    outliers = find_outliers(runs)
    return CampaignDocument(
        best=find_best(configurations, within),
        outliers=tuple(map(outlier_row, outliers)),
        winners=find_winners(configurations, within),
        crossovers=find_crossovers(configurations),
        gains=find_gains(configurations),
        out_of_memory=tuple(dict(run.row) for run in runs if run.samples_per_second is None),
        errors=cell_errors(table),
        notes=campaign_notes(configurations, outliers, empty, within, MIN_RUNS),
    )


def _whole(row: Row, column: str, least: int, most: int, partly: bool) -> int:
    return UNKNOWN if partly and row.number(column) is None else row.whole(column, least, most)


def _settings(table: Table) -> tuple[str, ...]:
    """Returns the other columns that make rows different configurations: `config`, and those with few values. A column
    with a value of its own for nearly each row is a result, as a step's time is, or a remark."""
    most = max(2, len(table.rows) // 3)
    others = [name for name in table.columns if name not in COLUMNS and name not in _REMARKS]
    return tuple(name for name in others if name == "config" or len({row.cells[name] for row in table.rows}) <= most)


def cell_errors(table: Table) -> tuple[CellError, ...]:
    rows = [row.values() for row in table.rows]
    numbers = {name: [_number(row.get(name)) for row in rows] for name in table.columns}
    columns = {name: values for name, values in numbers.items() if sum(value is not None for value in values) > 2}
    return tuple(
        CellError(
            table.rows[error.place].values(),
            table.rows[error.place].line,
            str(error.relation),
            error.relation.result,
            float(error.measured),
            float(error.expected),
        )
        for error in find_table_errors(columns)
    )


def outlier_row(outlier: Outlier) -> OutlierRow:
    return OutlierRow(dict(outlier.run.row), outlier.expected, outlier.ratio, outlier.run.line)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


_GROUPS: Final = ("platform", "network", "model", "stage", "config", "sharding", "precision")
"""Columns that make rows of a table of scaling incomparable."""
_SUPERLINEAR_RATIO: Final = 1.3


def portability_document(table: Table, within: float) -> PortabilityDocument:
    named = "config" in table.columns
    runs, empty = read_runs(table, partly=named)
    configurations = merge_repeats(runs)
    found = find_portability(configurations, named)
    return PortabilityDocument(
        tuple(each.row for each in found),
        find_gains(configurations),
        tuple(map(outlier_row, find_outliers([run for run in runs if UNKNOWN not in run[2:5]]))),
        (
            *empty_notes(empty),
            *_one_platform(runs),
            *_missing_notes(each.missing for each in found if each.missing and each.row.value is None),
            *repeat_notes(configurations, within),
        ),
    )


def _one_platform(runs: Sequence[Run]) -> Iterator[TableNote]:
    platforms = {run.platform for run in runs}
    if len(platforms) == 1:
        yield TableNote("one_platform", f"all rows are of {platforms.pop()}: portability is between platforms")


def _missing_notes(missing: Iterable[tuple[str, ...]]) -> Iterator[TableNote]:
    for platforms in dict.fromkeys(missing):
        text = f"some configurations were not measured on {', '.join(platforms)}: their portability is not known"
        yield TableNote("not_measured", text)


def scaling_document(table: Table) -> ScalingDocument:
    table.require("nodes", "gpus")
    if "samples_per_second" not in table.columns and "micro_batch" not in table.columns:
        table.require("samples_per_second")
    points = tuple(map(_point, table.rows))
    rows = find_scaling(points)
    return ScalingDocument(rows, tuple(row for row in rows if row.alarm), tuple(_scaling_notes(points, rows)))


def _point(row: Row) -> Point:
    speed = row.speed("samples_per_second")
    nodes, gpus = row.whole("nodes", 1, _MAX_WHOLE), row.whole("gpus", 1, _MAX_WHOLE)
    if gpus < nodes:
        row.fail(f"{gpus} gpus on {nodes} nodes: gpus counts those of all nodes together")
    group = ", ".join(filter(None, (row.text(name) for name in _GROUPS)))
    return Point(row.line, group, nodes, gpus, speed if isinstance(speed, float) else None, row.positive("micro_batch"))


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
