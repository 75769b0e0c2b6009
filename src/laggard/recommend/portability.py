"""The success of one configuration on all platforms: the performance portability of Pennycook, Sewall and Lee (2016),
the harmonic mean of its efficiency over the platforms, and 0 where one of them cannot run it. Efficiency is the speed
over that of the platform's best known configuration. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from laggard.recommend.runs import Configuration, by_platform, speed

Key = tuple[Hashable, ...]


class Portability(NamedTuple):
    config: str | None
    stage: int | None
    """None, as the next two: it differs between the platforms."""
    micro_batch: int | None
    grad_accum: int | None
    value: float | None
    """None: it was not measured on every platform, and ran on those where it was."""
    efficiencies: dict[str, float]
    """The efficiency by platform; 0: out of memory."""
    missing: tuple[str, ...]
    """The platforms where it was not measured."""


def find_portability(configurations: Sequence[Configuration], named: bool) -> tuple[Portability, ...]:
    """Returns every configuration, the most portable first. `named`: they are told apart by their column `config`; else
    by stage and accumulation, since each platform has a micro-batch of its own."""
    own = by_platform(configurations)
    best = {platform: max(map(speed, group)) for platform, group in own.items()}
    groups: dict[Key, list[Configuration]] = {}
    for each in configurations:
        groups.setdefault(_key(each, named), []).append(each)
    found = [_portability(group, best, named) for group in groups.values()]
    return tuple(sorted(found, key=lambda each: -1.0 if each.value is None else each.value, reverse=True))


def _key(configuration: Configuration, named: bool) -> Key:
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
    return Portability(
        str(dict(group[0].others).get("config")) if named else None,
        _common(each.stage for each in fastest.values()),
        _common(each.micro_batch for each in fastest.values()),
        _common(each.grad_accum for each in fastest.values()),
        portability_value(efficiencies.values(), len(missing)),
        efficiencies,
        missing,
    )


def portability_value(efficiencies: Iterable[float], missing: int = 0) -> float | None:
    """Returns the harmonic mean; 0 where an efficiency is 0; None where platforms are `missing` that may decide."""
    values = list(efficiencies)
    if any(value <= 0 for value in values):
        return 0.0
    return None if missing or not values else statistics.harmonic_mean(values)


def _common(values: Iterable[int]) -> int | None:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None
