"""Reports as text for a terminal: the answer first, then what to know before believing it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from laggard.kit.parts import Line, Part, Table
from laggard.kit.words import counted
from laggard.reports import documents
from laggard.reports.runs import ALARM_RATIO

_OUTLIERS: Final = "Measure again, these rows are off the surface through the others:"


T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Columns(Generic[T]):
    """A table's: the names, what a row has under them, which are numbers, and which a narrow terminal goes without."""

    names: tuple[str, ...]
    cells: Callable[[T], tuple[str, ...]]
    right: frozenset[str] = frozenset()
    spare: tuple[str, ...] = ()


def campaign_parts(document: documents.CampaignDocument) -> Iterator[Part]:
    yield from (Line(_best_line(best), "name") for best in document.best)
    if not document.best:
        yield Line("No configuration ran.", "unknown")
    yield from _section(_OUTLIERS, _outliers(document.outliers))
    yield from _section("Out of memory:", map(_row_text, document.out_of_memory))
    yield from _section("Numbers that contradict the rest of their row:", map(_error_line, document.errors))
    yield from _table("Stages by accumulation:", document.winners, _WINNERS)
    yield from _section("Where one stage overtakes another:", map(_crossover_line, document.crossovers))
    yield from _table("Gain over the baseline:", document.gains, _GAINS)
    yield from _notes(document.notes)


def portability_parts(document: documents.PortabilityDocument) -> Iterator[Part]:
    known = [row for row in document.portability if row.value is not None]
    if known:
        best = known[0]
        text = f"{_portable_name(best)}: {best.value:.3f} of each platform's best."
        yield Line(f"The most portable configuration is {text}", "name")
    else:
        yield Line("Cannot tell: no configuration was measured on every platform.", "unknown")
    columns = _portability_columns(document.portability)
    yield from _table("Performance portability:", document.portability, columns)
    yield from _table("Gain over the baseline:", document.gains, _GAINS)
    yield from _section(_OUTLIERS, _outliers(document.outliers))
    yield from _notes(document.notes)


def scaling_parts(document: documents.ScalingDocument) -> Iterator[Part]:
    yield _scaling_headline(document)
    yield from _table("By size:", document.scaling, _SCALING)
    yield from _notes(document.notes)


def table_parts(document: documents.TableDocument) -> Iterator[Part]:
    count = len(document.errors)
    text = f"{counted(count, 'row')} with a contradiction." if count else "No row contradicts the others."
    yield Line(text, "fail" if count else "ok")
    yield from (Line(_error_line(error)) for error in document.errors)
    yield from _notes(document.notes)


def model_parts(document: documents.ModelDocument) -> Iterator[Part]:
    for model in document.models:
        yield Line(_model_headline(model), "name")
        if model.parameters:
            yield _drawn(model.parameters, _PARAMETERS)
        for stage in model.communication:
            if stage.inefficiency is not None:
                expected = f"{1e3 * stage.expected_seconds:.3g} ms by volume"
                text = f"  stage {stage.stage} communicates {stage.inefficiency:.2g} times as long as {expected}"
                yield Line(text)
    if not document.models:
        yield Line("Cannot tell: no configuration ran.", "unknown")
    yield from _section("Memory:", map(_memory_line, document.memory))
    yield from _notes(document.notes)


def nccl_parts(document: documents.NcclComparison) -> Iterator[Part]:
    count = len(document.changes)
    text = f"{counted(count, 'difference')} between the logs." if count else "Nothing differs, as far as the logs tell."
    yield Line(text, "name")
    for each in document.changes:
        yield Line(f"  {each.what}: {each.old or 'not logged'} -> {each.new or 'not logged'}")
    yield from _section(
        "Defaults that moved between the versions:",
        (f"{each.variable}: {each.old} -> {each.new}, since {each.since}" for each in document.defaults),
    )
    yield from _section("Before you believe it:", document.notes)


def _model_headline(model: documents.PlatformModel) -> str:
    best = max(model.predictions, key=lambda each: each.samples_per_second, default=None)
    noise = "" if model.noise is None else f", runs differ from it by {model.noise:.1%}"
    if best is None:
        return f"{model.platform}: fitted to {counted(model.runs, 'run')}{noise}."
    runs = counted(model.runs, "run")
    seen = "measured" if best.measured is not None else "not measured yet"
    between = "" if best.low is None else f" (90 %: {best.low:.4g} to {best.high:.4g})"
    return (
        f"{model.platform}: stage {best.stage}, micro-batch {best.micro_batch}, accumulation {best.grad_accum} "
        f"should do {best.samples_per_second:.4g} samples/s{between}, {seen}; fitted to {runs}{noise}."
    )


_PARAMETERS: Final = Columns[documents.ModelParameter](
    ("part", "ms", "90 %", ""),
    lambda it: (
        it.name,
        f"{1e3 * it.seconds:.4g}",
        "" if it.low is None or it.high is None else f"{1e3 * it.low:.4g} to {1e3 * it.high:.4g}",
        "" if it.identifiable else "not told apart from others",
    ),
    frozenset({"ms"}),
)


def _memory_line(each: documents.ActivationMemory) -> str:
    if not each.consistent:
        return f"{each.platform}: no size of activations explains which runs fitted: check parameters, GPUs and memory"
    high = "" if each.high is None else f", at most {each.high / 1e9:.3g} GB"
    return f"{each.platform}: a unit of micro-batch takes more than {each.low / 1e9:.3g} GB{high}"


def _best_line(best: documents.BestConfiguration) -> str:
    ties = ", ".join(f"{_short(tie)} ({tie.samples_per_second:g})" for tie in best.ties)
    as_fast = f" As fast, as far as can be measured: {ties}." if ties else ""
    return f"{best.platform}: {_short(best)} is best with {best.samples_per_second:g} samples/s.{as_fast}"


def _short(each: documents.BestConfiguration | documents.MeasuredConfiguration) -> str:
    return f"stage {each.stage}, micro-batch {each.micro_batch}, accumulation {each.grad_accum}"


def _row_text(row: dict[str, Any]) -> str:
    return ",".join(str(value) for value in row.values())


def _outliers(outliers: Sequence[documents.OutlierRow]) -> Iterator[str]:
    for each in outliers:
        place = f"line {each.line} ({_row_text(each.row)})"
        yield f"{place}: {each.expected:.4g} samples/s expected, {each.ratio:.2f} of it measured"


def _error_line(error: documents.CellError) -> str:
    return (
        f"line {error.line}: {error.column} is {error.measured:g}, and {error.expected:.5g} by {error.relation}, "
        "which most rows keep"
    )


_WINNERS: Final = Columns[documents.StageWinner](
    ("platform", "accumulation", "stage", "ahead", "as fast"),
    lambda it: (
        it.platform,
        str(it.grad_accum),
        str(it.stage),
        f"{it.lead - 1:.1%}",
        f"stage {', '.join(map(str, it.ties))}" if it.ties else "",
    ),
    frozenset({"accumulation", "stage", "ahead"}),
)


def _crossover_line(each: documents.StageCrossover) -> str:
    lower, higher = each.stages
    if each.winner is not None:
        return f"{each.platform}: stage {each.winner} beats stage {min(set(each.stages) - {each.winner})} everywhere"
    between = f"{_number(each.low)} and {_number(each.high)}"
    if each.grad_accum is None:
        return f"{each.platform}: stages {lower} and {higher} cross between accumulation {between}"
    bounds = "no bound can be given" if each.low is None else f"90 %: between {between}"
    return f"{each.platform}: stages {lower} and {higher} are even at accumulation {each.grad_accum:.1f} ({bounds})"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"


_GAINS: Final = Columns[documents.GainOverBaseline](
    ("platform", "times", "baseline", "samples/s", "best", "samples/s then"),
    lambda it: (
        it.platform,
        f"{it.gain:.3f}",
        _short(it.baseline),
        f"{it.baseline.samples_per_second:g}",
        _short(it.best),
        f"{it.best.samples_per_second:g}",
    ),
    frozenset({"times", "samples/s", "samples/s then"}),
    ("samples/s then", "samples/s", "baseline"),
)


def _portability_columns(rows: Sequence[documents.PortabilityRow]) -> Columns[documents.PortabilityRow]:
    """A column for each platform."""
    platforms = tuple(dict.fromkeys(platform for row in rows for platform in row.efficiencies))

    def cells(row: documents.PortabilityRow) -> tuple[str, ...]:
        found = (row.efficiencies.get(platform) for platform in platforms)
        shares = ("" if share is None else f"{share:.3f}" for share in found)
        return "not known" if row.value is None else f"{row.value:.3f}", *shares, _portable_name(row)

    return Columns(
        ("of the best", *platforms, "configuration"), cells, frozenset({"of the best", *platforms}), platforms[::-1]
    )


def _portable_name(row: documents.PortabilityRow) -> str:
    parts = [
        f"{word} {value}"
        for word, value in (("stage", row.stage), ("micro-batch", row.micro_batch), ("accumulation", row.grad_accum))
        if value is not None
    ]
    return ": ".join(filter(None, (row.config, ", ".join(parts))))


def _scaling_headline(document: documents.ScalingDocument) -> Line:
    if document.alarms:
        worst = min(document.alarms, key=lambda row: row.scaling_factor or 0.0)
        return Line(
            f"At {counted(worst.nodes, 'node')} a GPU does {worst.scaling_factor:.2f} of what it does on the fewest, "
            f"less than {ALARM_RATIO}: look for TCP in place of RDMA, and for a slow node (`laggard locate`).",
            "fail",
        )
    factors = [row.scaling_factor for row in document.scaling if row.scaling_factor is not None]
    if len(factors) < 2:
        return Line("Cannot tell how it scales: fewer than two sizes were measured.", "unknown")
    return Line(f"It scales: every GPU does at least {min(factors):.2f} of what it does on the fewest nodes.", "ok")


_SCALING: Final = Columns[documents.ScalingRow](
    ("group", "nodes", "GPUs", "factor", "", "micro-batch", "Z-gain"),
    lambda it: (
        it.group,
        str(it.nodes),
        str(it.gpus),
        "not measured" if it.scaling_factor is None and it.z_gain is None else _optional(it.scaling_factor, ".3f"),
        "low" if it.alarm else "",
        _optional(it.micro_batch, "g") if it.z_gain is not None else "",
        _optional(it.z_gain, ".1%"),
    ),
    frozenset({"nodes", "GPUs", "factor", "micro-batch", "Z-gain"}),
)


def _optional(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _notes(notes: Sequence[documents.TableNote]) -> Iterator[Part]:
    yield from _section("Before you believe it:", (note.text for note in notes))


def _section(title: str, lines: Iterable[str]) -> Iterator[Part]:
    listed = list(lines)
    if listed:
        yield Line("")
        yield Line(title, "name")
        yield from (Line(f"  {line}") for line in listed)


def _table(title: str, rows: Sequence[T], columns: Columns[T]) -> Iterator[Part]:
    if rows:
        yield Line("")
        yield Line(title, "name")
        yield _drawn(rows, columns)


def _drawn(rows: Sequence[T], columns: Columns[T]) -> Table:
    """The rows under names, without columns that are empty."""
    cells = [columns.cells(row) for row in rows]
    used = [place for place in range(len(columns.names)) if any(row[place] for row in cells)]
    names = tuple(columns.names[place] for place in used)
    shown = tuple(tuple(row[place] for place in used) for row in cells)
    spare = tuple(name for name in columns.spare if name in names)
    return Table(names, shown, columns.right.intersection(names), spare)
