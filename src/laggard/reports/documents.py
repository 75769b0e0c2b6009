"""The documents of `laggard tune report`."""

from __future__ import annotations

from typing import Any

import msgspec


class TableNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that the reader of a table should know before believing what it says. `lines`: of the file, from 1."""

    kind: str
    text: str
    lines: tuple[int, ...] = ()


class MeasuredConfiguration(msgspec.Struct, frozen=True):
    platform: str
    stage: int
    micro_batch: int
    grad_accum: int
    samples_per_second: float


class BestConfiguration(MeasuredConfiguration, frozen=True):
    ties: tuple[MeasuredConfiguration, ...]
    """Those that are as fast, as far as measuring can tell."""


class OutlierRow(msgspec.Struct, frozen=True):
    row: dict[str, Any]
    expected: float
    ratio: float
    """The measured value over the expected one."""
    line: int


class StageWinner(msgspec.Struct, frozen=True):
    """The fastest ZeRO stage of a platform at one accumulation and micro-batch."""

    platform: str
    grad_accum: int
    micro_batch: int
    stage: int
    samples_per_second: float
    lead: float
    """Its speed over that of the next stage."""
    ties: tuple[int, ...]


class StageCrossover(msgspec.Struct, frozen=True):
    """The number of accumulated micro-steps at which two stages are as fast as each other; the higher stage wins
    below."""

    platform: str
    stages: tuple[int, int]
    grad_accum: float | None
    low: float | None
    """`low` to `high` holds the crossing with 90 %; None: not known, or without a bound."""
    high: float | None
    basis: str
    """The basis of the point. fit: of three points and more; bracket: between two neighbours; one_side: one stage wins
    everywhere."""
    winner: int | None
    """The stage that wins at every accumulation measured."""


class GainOverBaseline(msgspec.Struct, frozen=True):
    platform: str
    baseline: MeasuredConfiguration
    best: MeasuredConfiguration
    gain: float
    """The speed of the best over that of the baseline."""


class CellError(msgspec.Struct, frozen=True):
    """A row that breaks a relation between columns which most rows keep."""

    row: dict[str, Any]
    line: int
    relation: str
    column: str
    measured: float
    expected: float


class CampaignDocument(msgspec.Struct, frozen=True):
    best: tuple[BestConfiguration, ...]
    outliers: tuple[OutlierRow, ...]
    winners: tuple[StageWinner, ...]
    crossovers: tuple[StageCrossover, ...]
    gains: tuple[GainOverBaseline, ...]
    out_of_memory: tuple[dict[str, Any], ...]
    errors: tuple[CellError, ...]
    notes: tuple[TableNote, ...]
    schema: str = "laggard.campaign/1"


class PortabilityRow(msgspec.Struct, frozen=True):
    config: str | None
    stage: int | None
    """null, as the next two: it differs between the platforms, or is not in the table."""
    micro_batch: int | None
    grad_accum: int | None
    value: float | None
    """null: it was not measured on every platform, and ran on those where it was."""
    efficiencies: dict[str, float]
    """The efficiency by platform; 0: out of memory."""


class PortabilityDocument(msgspec.Struct, frozen=True):
    portability: tuple[PortabilityRow, ...]
    gains: tuple[GainOverBaseline, ...]
    outliers: tuple[OutlierRow, ...]
    notes: tuple[TableNote, ...]
    schema: str = "laggard.portability/1"


class ScalingRow(msgspec.Struct, frozen=True):
    group: str
    nodes: int
    gpus: int
    samples_per_second: float | None
    samples_per_second_per_gpu: float | None
    scaling_factor: float | None
    """The throughput per GPU over that of the smallest configuration of the group."""
    step_factor: float | None
    """The throughput per GPU over that of the next smaller one, which shows where the loss happens."""
    alarm: bool
    micro_batch: float | None
    z_gain: float | None
    """Share by which the micro-batch is larger than on the smallest configuration; 0: ZeRO adds nothing."""


class ScalingDocument(msgspec.Struct, frozen=True):
    scaling: tuple[ScalingRow, ...]
    alarms: tuple[ScalingRow, ...]
    notes: tuple[TableNote, ...]
    schema: str = "laggard.scaling/1"


class TableDocument(msgspec.Struct, frozen=True):
    errors: tuple[CellError, ...]
    notes: tuple[TableNote, ...]
    schema: str = "laggard.table/1"


class ModelParameter(msgspec.Struct, frozen=True):
    """Seconds, with an interval of 90 %; null: too few runs for one."""

    name: str
    seconds: float
    low: float | None
    high: float | None
    identifiable: bool
    """False: the runs fix it only together with others; its value is one of many that fit as well."""


class PredictedSpeed(msgspec.Struct, frozen=True):
    stage: int
    micro_batch: int
    grad_accum: int
    samples_per_second: float
    low: float | None
    high: float | None
    measured: float | None


class StageCommunication(msgspec.Struct, frozen=True):
    """The communication of a micro-step: by volume and bandwidth, and as it was fitted."""

    stage: int
    expected_seconds: float
    fitted_seconds: float
    inefficiency: float | None
    """Fitted over expected; null: not identifiable."""


class PlatformModel(msgspec.Struct, frozen=True):
    platform: str
    runs: int
    noise: float | None
    parameters: tuple[ModelParameter, ...]
    predictions: tuple[PredictedSpeed, ...]
    communication: tuple[StageCommunication, ...]


class ActivationMemory(msgspec.Struct, frozen=True):
    """The bytes of activations for each unit of micro-batch that make every run fit, or not, as it did."""

    platform: str
    low: float
    high: float | None
    consistent: bool
    state_bytes: dict[str, float]
    """Weights, gradients and optimizer states of a GPU, by stage."""


class ModelDocument(msgspec.Struct, frozen=True):
    models: tuple[PlatformModel, ...]
    memory: tuple[ActivationMemory, ...]
    outliers: tuple[OutlierRow, ...]
    notes: tuple[TableNote, ...]
    schema: str = "laggard.model/1"


class LogChange(msgspec.Struct, frozen=True):
    what: str
    old: str
    new: str


class DefaultChange(msgspec.Struct, frozen=True):
    """A default that moved between the two versions, and that no variable sets."""

    variable: str
    since: str
    old: str
    new: str


class NcclComparison(msgspec.Struct, frozen=True):
    changes: tuple[LogChange, ...]
    defaults: tuple[DefaultChange, ...]
    notes: tuple[str, ...]
    """The notes on what a log lacks."""
    schema: str = "laggard.nccl_comparison/1"
