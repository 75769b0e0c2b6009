"""Measured runs of a training: the best configuration of each platform, how one does on all of them, and how it
scales with nodes. Pure.

What could not run for want of memory is a run too, without a speed. Portability is the performance portability of
Pennycook, Sewall and Lee (2016): the harmonic mean of a configuration's efficiency over the platforms, and 0 where one
of them cannot run it. Efficiency is the speed over that of the platform's best known configuration.

The scaling factor is the throughput per GPU of the larger configuration over that of the smaller one. Z-gain is what
partitioned optimizer states, gradients and weights add to the largest batch: the memory that ZeRO frees grows with the
number of GPUs, so that a GPU's micro-batch may grow as well.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from laggard.kit.majority import grouped
from laggard.reports.documents import (
    BestConfiguration,
    GainOverBaseline,
    MeasuredConfiguration,
    PortabilityRow,
    ScalingRow,
    StageWinner,
)

UNKNOWN: Final = -1
"""The stage, micro-batch or accumulation that is not in the table."""
TIE_RATIO: Final = 0.01
"""The share within which runs are as fast as each other: training steps repeat within about as much."""


class Run(NamedTuple):
    """One row of a table of measured runs."""

    line: int
    """The place in its file, from 1; 0: from no file."""
    platform: str
    stage: int
    micro_batch: int
    grad_accum: int
    samples_per_second: float | None
    """None: out of memory."""
    row: Mapping[str, Any] = {}
    """The row as the file has it, with the columns that laggard does not know."""
    others: tuple[tuple[str, Hashable], ...] = ()
    """The columns that laggard does not know, and that may make it another configuration."""


class Configuration(NamedTuple):
    """The runs of one configuration on one platform, as one: the median of their speeds counts."""

    platform: str
    stage: int
    micro_batch: int
    grad_accum: int
    others: tuple[tuple[str, Hashable], ...]
    samples_per_second: float | None
    runs: tuple[Run, ...]


def merge_repeats(runs: Iterable[Run]) -> tuple[Configuration, ...]:
    """Returns the configurations in the order of their first runs. One that ran out of memory only sometimes counts as
    one that runs."""
    groups = grouped(runs, lambda run: (run.platform, run.stage, run.micro_batch, run.grad_accum, run.others))
    return tuple(map(_merge, groups.values()))


def _merge(runs: Sequence[Run]) -> Configuration:
    first = runs[0]
    speeds = [run.samples_per_second for run in runs if run.samples_per_second is not None]
    speed = statistics.median(speeds) if speeds else None
    return Configuration(
        first.platform, first.stage, first.micro_batch, first.grad_accum, first.others, speed, tuple(runs)
    )


def speed(configuration: Configuration) -> float:
    """Returns the samples per second; 0 where it ran out of memory."""
    return configuration.samples_per_second or 0.0


def ties_of(best: Configuration, others: Iterable[Configuration], within: float) -> tuple[Configuration, ...]:
    """Returns those of `others` that are as fast as `best`, as far as measuring can tell."""
    return tuple(
        each
        for each in others
        if each is not best and each.samples_per_second and speed(each) >= speed(best) * (1 - within)
    )


def by_platform(configurations: Iterable[Configuration]) -> dict[str, list[Configuration]]:
    return grouped(configurations, lambda each: each.platform)


BASELINE: Final = "baseline"
"""The word in a column `config` that names the configuration to compare with."""


def measured(each: Configuration) -> MeasuredConfiguration:
    return MeasuredConfiguration(each.platform, each.stage, each.micro_batch, each.grad_accum, speed(each))


def find_best(configurations: Sequence[Configuration], within: float = TIE_RATIO) -> tuple[BestConfiguration, ...]:
    """Returns the fastest configuration of each platform that has one that runs."""
    found = []
    for own in by_platform(configurations).values():
        best = max(own, key=speed)
        if best.samples_per_second:
            ties = ties_of(best, sorted(own, key=speed, reverse=True), within)
            found.append(BestConfiguration(*best[:4], speed(best), tuple(map(measured, ties))))
    return tuple(found)


def find_winners(configurations: Sequence[Configuration], within: float = TIE_RATIO) -> tuple[StageWinner, ...]:
    """Returns which stage wins, for each platform and accumulation at which two stages were measured; the largest
    accumulation first. Stages are compared at the same micro-batch."""
    running = (each for each in configurations if each.samples_per_second)
    groups = grouped(running, lambda each: (each.platform, each.grad_accum, each.micro_batch))
    winners = [_winner(group, within) for group in groups.values() if len({each.stage for each in group}) > 1]
    platforms = list(by_platform(configurations))
    return tuple(sorted(winners, key=lambda it: (platforms.index(it.platform), -it.grad_accum, -it.micro_batch)))


def _winner(group: Sequence[Configuration], within: float) -> StageWinner:
    stages = sorted(grouped(group, lambda each: each.stage).items())
    first, *rest = sorted((max(own, key=speed) for _, own in stages), key=speed, reverse=True)
    lead, ties = speed(first) / speed(rest[0]), tuple(each.stage for each in ties_of(first, rest, within))
    return StageWinner(first.platform, first.grad_accum, first.micro_batch, first.stage, speed(first), lead, ties)


def find_gains(configurations: Sequence[Configuration]) -> tuple[GainOverBaseline, ...]:
    """Returns what each platform's best gains over its baseline: the configuration that the column `config` calls so;
    without one, ZeRO stage 1 with the largest micro-batch that runs, which is where users start."""
    found = []
    for own in by_platform(configurations).values():
        running = [each for each in own if each.samples_per_second]
        baseline = _baseline(running)
        if baseline:
            best = max(running, key=speed)
            gain = speed(best) / speed(baseline)
            found.append(GainOverBaseline(best.platform, measured(baseline), measured(best), gain))
    return tuple(found)


def _baseline(running: Sequence[Configuration]) -> Configuration | None:
    named = [each for each in running if str(dict(each.others).get("config", "")).lower() == BASELINE]
    plain = [each for each in running if each.stage == 1 and "config" not in dict(each.others)]
    return next(iter(named), None) or max(plain, key=lambda each: each.micro_batch, default=None)


class Portability(NamedTuple):
    row: PortabilityRow
    missing: tuple[str, ...]
    """The platforms where it was not measured."""


def find_portability(configurations: Sequence[Configuration], named: bool) -> tuple[Portability, ...]:
    """Returns every configuration, the most portable first. `named`: they are told apart by their column `config`; else
    by stage and accumulation, since each platform has a micro-batch of its own."""
    own = by_platform(configurations)
    best = {platform: max(map(speed, group)) for platform, group in own.items()}
    found = [_portability(group, best, named) for group in grouped(configurations, partial(_key, named)).values()]
    return tuple(sorted(found, key=lambda each: -1.0 if each.row.value is None else each.row.value, reverse=True))


def _key(named: bool, configuration: Configuration) -> tuple[Hashable, ...]:
    if named:
        return (str(dict(configuration.others).get("config")),)
    return (configuration.stage, configuration.grad_accum)


def _portability(group: Sequence[Configuration], best: dict[str, float], named: bool) -> Portability:
    by = by_platform(group)
    fastest = {platform: max(own, key=speed) for platform, own in by.items()}
    efficiencies = {
        platform: speed(each) / best[platform] if best[platform] else 0.0 for platform, each in fastest.items()
    }
    missing = tuple(platform for platform in best if platform not in by)
    row = PortabilityRow(
        str(dict(group[0].others).get("config")) if named else None,
        _common(each.stage for each in fastest.values()),
        _common(each.micro_batch for each in fastest.values()),
        _common(each.grad_accum for each in fastest.values()),
        portability_value(efficiencies.values(), len(missing)),
        efficiencies,
    )
    return Portability(row, missing)


def portability_value(efficiencies: Iterable[float], missing: int = 0) -> float | None:
    """Returns the harmonic mean; 0 where an efficiency is 0; None where platforms are `missing` that may decide."""
    values = list(efficiencies)
    if any(value <= 0 for value in values):
        return 0.0
    return None if missing or not values else statistics.harmonic_mean(values)


def _common(values: Iterable[int]) -> int | None:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 and distinct != {UNKNOWN} else None


ALARM_RATIO: Final = 0.8
"""The scaling factor below which something holds the job up: RDMA scales better on every published cluster."""


class Point(NamedTuple):
    """One row of a table: a training on so many nodes."""

    line: int
    group: str
    nodes: int
    gpus: int
    samples_per_second: float | None
    """None: not measured, or out of memory."""
    micro_batch: float | None
    """Samples that a GPU takes at once; None: not in the table."""


def find_scaling(points: Sequence[Point]) -> tuple[ScalingRow, ...]:
    """Compares the configurations of each group with its smallest one that was measured."""
    groups = grouped(points, lambda point: point.group).values()
    return tuple(each for own in groups for each in _group(sorted(own, key=lambda point: point.gpus)))


def _group(points: Sequence[Point]) -> list[ScalingRow]:
    measured = [point for point in points if point.samples_per_second]
    sized = [point for point in points if point.micro_batch]
    found = []
    for point in points:
        smaller = [each for each in measured if each.gpus < point.gpus]
        factor = _factor(point, measured[0]) if measured else None
        found.append(
            ScalingRow(
                point.group,
                point.nodes,
                point.gpus,
                point.samples_per_second,
                _per_gpu(point),
                factor,
                _factor(point, smaller[-1]) if smaller else None,
                factor is not None and factor < ALARM_RATIO,
                point.micro_batch,
                point.micro_batch / (sized[0].micro_batch or 1) - 1 if sized and point.micro_batch else None,
            )
        )
    return found


def _per_gpu(point: Point) -> float | None:
    return point.samples_per_second / point.gpus if point.samples_per_second else None


def _factor(point: Point, smaller: Point) -> float | None:
    own, reference = _per_gpu(point), _per_gpu(smaller)
    return own / reference if own and reference else None
