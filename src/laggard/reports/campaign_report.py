"""`laggard report campaign`: a table of measured runs to its document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from laggard.recommend.campaign import find_best, find_gains, find_winners
from laggard.recommend.crossover import Crossover, find_crossovers
from laggard.recommend.relations import find_table_errors
from laggard.recommend.runs import Configuration, Run, merge_repeats, speed
from laggard.recommend.surface import MIN_RUNS, Outlier, find_outliers
from laggard.reports.documents import (
    BestConfiguration,
    CampaignDocument,
    CellError,
    GainOverBaseline,
    MeasuredConfiguration,
    OutlierRow,
    StageCrossover,
    StageWinner,
)
from laggard.reports.notes import campaign_notes
from laggard.reports.table import OUT_OF_MEMORY, Row, Table

COLUMNS: Final = ("platform", "stage", "micro_batch", "grad_accum", "samples_per_second")
_REMARKS: Final = ("seed", "trial", "run", "run_id", "repeat", "rep", "attempt", "job_id", "date", "time", "comment")
"""Columns that tell runs of one configuration apart."""
UNKNOWN: Final = -1
"""The stage, micro-batch or accumulation that is not in the table."""
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
        known = None if speed_of_row is OUT_OF_MEMORY else speed_of_row
        runs.append(
            Run(
                row.line,
                row.text("platform"),
                _whole(row, "stage", 0, 3, partly),
                _whole(row, "micro_batch", 1, _MAX_WHOLE, partly),
                _whole(row, "grad_accum", 1, _MAX_WHOLE, partly),
                known if isinstance(known, float) else None,
                _row_values(row),
                tuple((name, row.cells[name]) for name in settings),
            )
        )
    return tuple(runs), tuple(empty)


def campaign_document(table: Table, within: float) -> CampaignDocument:
    runs, empty = read_runs(table)
    configurations = merge_repeats(runs)
    outliers = find_outliers(runs)
    return CampaignDocument(
        best=tuple(
            BestConfiguration(*_core(best.configuration), tuple(map(measured, best.ties)))
            for best in find_best(configurations, within)
        ),
        outliers=tuple(map(outlier_row, outliers)),
        winners=tuple(
            StageWinner(
                winner.configuration.platform,
                winner.configuration.grad_accum,
                winner.configuration.micro_batch,
                winner.configuration.stage,
                speed(winner.configuration),
                winner.lead,
                tuple(each.stage for each in winner.ties),
            )
            for winner in find_winners(configurations, within)
        ),
        crossovers=tuple(map(_crossover, find_crossovers(configurations))),
        gains=gains_of(configurations),
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
    numbers = {name: [_number(row.values().get(name)) for row in table.rows] for name in table.columns}
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


def gains_of(configurations: Sequence[Configuration]) -> tuple[GainOverBaseline, ...]:
    return tuple(
        GainOverBaseline(gain.best.platform, measured(gain.baseline), measured(gain.best), gain.ratio)
        for gain in find_gains(configurations)
    )


def outlier_row(outlier: Outlier) -> OutlierRow:
    return OutlierRow(dict(outlier.run.row), outlier.expected, outlier.ratio, outlier.run.line)


def measured(configuration: Configuration) -> MeasuredConfiguration:
    return MeasuredConfiguration(*_core(configuration))


def _core(each: Configuration) -> tuple[str, int, int, int, float]:
    return each.platform, each.stage, each.micro_batch, each.grad_accum, speed(each)


def _crossover(each: Crossover) -> StageCrossover:
    return StageCrossover(
        each.platform,
        (each.lower_stage, each.higher_stage),
        each.grad_accum,
        each.low,
        each.high,
        each.basis,
        each.winner_everywhere,
    )


def _row_values(row: Row) -> dict[str, Any]:
    return {**row.values(), "platform": row.text("platform")}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
