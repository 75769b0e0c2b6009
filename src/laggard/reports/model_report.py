"""`laggard tune report model`: the cost model fitted to a table of measured runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from laggard.recommend.zero import (
    MemoryPlan,
    Network,
    Observation,
    StateBytes,
    activation_bounds,
    stage_seconds,
    state_bytes,
)
from laggard.reports import documents
from laggard.reports.campaign_report import outlier_row, read_runs
from laggard.reports.outliers import find_outliers
from laggard.reports.runs import Configuration, by_platform, merge_repeats
from laggard.reports.step_model import StepModel, fit_step_model, predict
from laggard.reports.table import Table, empty_notes


class ModelSettings(NamedTuple):
    """The facts that the table does not say. None: not given."""

    parameters: float | None = None
    gpus: int | None = None
    nodes: int = 1
    bus_bandwidth: float | None = None
    gpu_memory: float | None = None
    resident: float = 0.0
    gradient_bytes: float = 2.0


def model_document(table: Table, settings: ModelSettings) -> documents.ModelDocument:
    runs, empty = read_runs(table)
    outliers = find_outliers(runs)
    wrong = {outlier.run.line for outlier in outliers}
    groups = by_platform(merge_repeats([run for run in runs if run.line not in wrong]))
    models = [(group, model) for group in groups.values() if (model := fit_step_model(group))]
    return documents.ModelDocument(
        tuple(_platform(group, model, settings) for group, model in models),
        tuple(_memory(platform, own, settings) for platform, own in groups.items()) if settings.gpu_memory else (),
        tuple(map(outlier_row, outliers)),
        (*empty_notes(empty), *_notes([model for _, model in models], wrong)),
    )


def _platform(group: Sequence[Configuration], model: StepModel, settings: ModelSettings) -> documents.PlatformModel:
    return documents.PlatformModel(
        model.platform,
        model.runs,
        model.noise,
        model.parameters,
        tuple(_predictions(group, model)),
        tuple(_communication(model, settings)),
    )


def _predictions(group: Sequence[Configuration], model: StepModel) -> Iterator[documents.PredictedSpeed]:
    """Yields each stage at each micro-batch and accumulation of the table, but for what ran out of memory."""
    measured = {(each.stage, each.micro_batch, each.grad_accum): each.samples_per_second for each in group}
    too_large = {
        stage: min(each.micro_batch for each in group if each.stage == stage and each.samples_per_second is None)
        for stage in {each.stage for each in group if each.samples_per_second is None}
    }
    sizes = sorted({(each.micro_batch, each.grad_accum) for each in group})
    for stage in sorted({each.stage for each in group}):
        for micro_batch, grad_accum in sizes:
            found = predict(model, stage, micro_batch, grad_accum, measured.get((stage, micro_batch, grad_accum)))
            if found and micro_batch < too_large.get(stage, micro_batch + 1):
                yield found


def _communication(model: StepModel, settings: ModelSettings) -> Iterator[documents.StageCommunication]:
    """Yields what each stage's micro-step should communicate, beside what was fitted: their ratio is its
    inefficiency."""
    if not (settings.parameters and settings.gpus and settings.bus_bandwidth):
        return
    network = Network(settings.gpus, settings.bus_bandwidth, nodes=settings.nodes)
    fitted = {each.name: each for each in model.parameters}
    for stage in (2, 3):
        parameter = fitted.get(f"stage {stage} a micro-step")
        if parameter:
            two, one = (
                stage_seconds(stage, settings.parameters, count, network, settings.gradient_bytes) for count in (2, 1)
            )
            inefficiency = parameter.seconds / (two - one) if two > one and parameter.identifiable else None
            yield documents.StageCommunication(stage, two - one, parameter.seconds, inefficiency)


def _memory(platform: str, group: Sequence[Configuration], settings: ModelSettings) -> documents.ActivationMemory:
    plan = MemoryPlan(
        settings.parameters or 0.0,
        settings.gpus or 1,
        settings.gpu_memory or 0.0,
        StateBytes(gradient=settings.gradient_bytes),
        settings.resident,
    )
    seen = [Observation(each.stage, each.micro_batch, each.samples_per_second is not None) for each in group]
    bounds = activation_bounds(seen, plan)
    stages = sorted({each.stage for each in group})
    return documents.ActivationMemory(
        platform,
        bounds.low,
        bounds.high,
        bounds.consistent,
        {str(stage): state_bytes(stage, plan) for stage in stages},
    )


def _notes(models: Sequence[StepModel], wrong: set[int]) -> Iterator[documents.TableNote]:
    if wrong:
        lines = tuple(sorted(wrong))
        yield documents.TableNote("outliers", f"left out of the fit: line {', '.join(map(str, lines))}", lines)
    for model in models:
        loose = [each.name for each in model.parameters if not each.identifiable]
        if loose:
            text = (
                f"{model.platform}: the runs do not tell apart {', '.join(loose)}: only sums of them are known. "
                "Measure other global batches (micro_batch times grad_accum), and each stage at two accumulations"
            )
            yield documents.TableNote("not_identifiable", text)
        if model.noise is None:
            yield documents.TableNote("no_interval", f"{model.platform}: as many parameters as runs: no intervals")
