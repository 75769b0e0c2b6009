"""Reports as text for a terminal: the answer first, then what to know before believing it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from laggard.collector.recommend.scaling import ALARM_RATIO
from laggard.collector.reports.documents import (
    ActivationMemory,
    BestConfiguration,
    CampaignDocument,
    CellError,
    GainOverBaseline,
    MeasuredConfiguration,
    ModelDocument,
    ModelParameter,
    NcclComparison,
    OutlierRow,
    PlatformModel,
    PortabilityDocument,
    PortabilityRow,
    ScalingDocument,
    ScalingRow,
    StageCrossover,
    StageWinner,
    TableDocument,
    TableNote,
)
from laggard.text.words import ascii_line, counted

_OUTLIERS: Final = "Measure again, these rows are off the surface through the others:"


def render(lines: Iterable[str]) -> str:
    return "".join(f"{ascii_line(line)}\n" for line in lines)


def campaign_lines(document: CampaignDocument) -> Iterator[str]:
    yield from map(_best_line, document.best)
    if not document.best:
        yield "No configuration ran."
    yield from _section(_OUTLIERS, _outliers(document.outliers))
    yield from _section("Out of memory:", map(_row_text, document.out_of_memory))
    yield from _section("Numbers that contradict the rest of their row:", map(_error_line, document.errors))
    yield from _section("Stages by accumulation:", map(_winner_line, document.winners))
    yield from _section("Where one stage overtakes another:", map(_crossover_line, document.crossovers))
    yield from _section("Gain over the baseline:", map(_gain_line, document.gains))
    yield from _notes(document.notes)


def portability_lines(document: PortabilityDocument) -> Iterator[str]:
    known = [row for row in document.portability if row.value is not None]
    if known:
        best = known[0]
        yield f"The most portable configuration is {_portable_name(best)}: {best.value:.3f} of each platform's best."
    else:
        yield "Cannot tell: no configuration was measured on every platform."
    yield from _section("Performance portability:", map(_portability_line, document.portability))
    yield from _section("Gain over the baseline:", map(_gain_line, document.gains))
    yield from _section(_OUTLIERS, _outliers(document.outliers))
    yield from _notes(document.notes)


def scaling_lines(document: ScalingDocument) -> Iterator[str]:
    yield _scaling_headline(document)
    yield from _section("By size:", map(_scaling_line, document.scaling))
    yield from _notes(document.notes)


def table_lines(document: TableDocument) -> Iterator[str]:
    count = len(document.errors)
    yield f"{counted(count, 'row')} with a contradiction." if count else "No row contradicts the others."
    yield from map(_error_line, document.errors)
    yield from _notes(document.notes)


def model_lines(document: ModelDocument) -> Iterator[str]:
    for model in document.models:
        yield _model_headline(model)
        yield from (f"  {_parameter_line(each)}" for each in model.parameters)
        for stage in model.communication:
            if stage.inefficiency is not None:
                expected = f"{1e3 * stage.expected_seconds:.3g} ms by volume"
                yield f"  stage {stage.stage} communicates {stage.inefficiency:.2g} times as long as {expected}"
    if not document.models:
        yield "Cannot tell: no configuration ran."
    yield from _section("Memory:", map(_memory_line, document.memory))
    yield from _notes(document.notes)


def nccl_lines(document: NcclComparison) -> Iterator[str]:
    count = len(document.changes)
    yield f"{counted(count, 'difference')} between the logs." if count else "Nothing differs, as far as the logs tell."
    yield from (f"  {each.what}: {each.old or 'not logged'} -> {each.new or 'not logged'}" for each in document.changes)
    yield from _section(
        "Defaults that moved between the versions:",
        (f"{each.variable}: {each.old} -> {each.new}, since {each.since}" for each in document.defaults),
    )
    yield from _section("Before you believe it:", document.notes)


def _model_headline(model: PlatformModel) -> str:
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


def _parameter_line(each: ModelParameter) -> str:
    between = "" if each.low is None or each.high is None else f" ({1e3 * each.low:.4g} to {1e3 * each.high:.4g})"
    loose = "" if each.identifiable else ", not told apart from others"
    return f"{each.name}: {1e3 * each.seconds:.4g} ms{between}{loose}"


def _memory_line(each: ActivationMemory) -> str:
    if not each.consistent:
        return f"{each.platform}: no size of activations explains which runs fitted: check parameters, GPUs and memory"
    high = "" if each.high is None else f", at most {each.high / 1e9:.3g} GB"
    return f"{each.platform}: a unit of micro-batch takes more than {each.low / 1e9:.3g} GB{high}"


def _best_line(best: BestConfiguration) -> str:
    ties = ", ".join(f"{_short(tie)} ({tie.samples_per_second:g})" for tie in best.ties)
    as_fast = f" As fast, as far as can be measured: {ties}." if ties else ""
    return f"{best.platform}: {_short(best)} is best with {best.samples_per_second:g} samples/s.{as_fast}"


def _short(each: BestConfiguration | MeasuredConfiguration) -> str:
    return f"stage {each.stage}, micro-batch {each.micro_batch}, accumulation {each.grad_accum}"


def _row_text(row: dict[str, Any]) -> str:
    return ",".join(str(value) for value in row.values())


def _outliers(outliers: Sequence[OutlierRow]) -> Iterator[str]:
    for each in outliers:
        place = f"line {each.line} ({_row_text(each.row)})"
        yield f"{place}: {each.expected:.4g} samples/s expected, {each.ratio:.2f} of it measured"


def _error_line(error: CellError) -> str:
    return (
        f"line {error.line}: {error.column} is {error.measured:g}, and {error.expected:.5g} by {error.relation}, "
        "which most rows keep"
    )


def _winner_line(winner: StageWinner) -> str:
    ties = f", as fast as stage {', '.join(map(str, winner.ties))}" if winner.ties else ""
    return (
        f"{winner.platform}: accumulation {winner.grad_accum}: stage {winner.stage}, {winner.lead - 1:.1%} ahead{ties}"
    )


def _crossover_line(each: StageCrossover) -> str:
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


def _gain_line(each: GainOverBaseline) -> str:
    return (
        f"{each.platform}: {each.gain:.3f} ({each.baseline.samples_per_second:g} with {_short(each.baseline)}, "
        f"{each.best.samples_per_second:g} with {_short(each.best)})"
    )


def _portability_line(row: PortabilityRow) -> str:
    value = "not known" if row.value is None else f"{row.value:.3f}"
    by = ", ".join(f"{platform} {efficiency:.3f}" for platform, efficiency in row.efficiencies.items())
    return f"{value}  {_portable_name(row)} ({by})"


def _portable_name(row: PortabilityRow) -> str:
    parts = [
        f"{word} {value}"
        for word, value in (("stage", row.stage), ("micro-batch", row.micro_batch), ("accumulation", row.grad_accum))
        if value is not None
    ]
    return ": ".join(filter(None, (row.config, ", ".join(parts))))


def _scaling_headline(document: ScalingDocument) -> str:
    if document.alarms:
        worst = min(document.alarms, key=lambda row: row.scaling_factor or 0.0)
        return (
            f"At {counted(worst.nodes, 'node')} a GPU does {worst.scaling_factor:.2f} of what it does on the fewest, "
            f"less than {ALARM_RATIO}: look for TCP in place of RDMA, and for a slow node (`laggard locate`)."
        )
    factors = [row.scaling_factor for row in document.scaling if row.scaling_factor is not None]
    if len(factors) < 2:
        return "Cannot tell how it scales: fewer than two sizes were measured."
    return f"It scales: every GPU does at least {min(factors):.2f} of what it does on the fewest nodes."


def _scaling_line(row: ScalingRow) -> str:
    parts = [f"{counted(row.nodes, 'node')}, {row.gpus} GPUs"]
    if row.group:
        parts.insert(0, row.group)
    if row.scaling_factor is not None:
        parts.append(f"factor {row.scaling_factor:.3f}{' (low)' if row.alarm else ''}")
    if row.z_gain is not None:
        parts.append(f"micro-batch {row.micro_batch:g}, Z-gain {row.z_gain:.1%}")
    return ": ".join((parts[0], ", ".join(parts[1:]))) if len(parts) > 1 else f"{parts[0]}: not measured"


def _notes(notes: Sequence[TableNote]) -> Iterator[str]:
    yield from _section("Before you believe it:", (note.text for note in notes))


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    listed = list(lines)
    if listed:
        yield ""
        yield title
        yield from (f"  {line}" for line in listed)
