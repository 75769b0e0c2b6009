"""The results of a campaign of measured runs: the best configuration of each platform, with what is as fast; which ZeRO
stage wins at which accumulation; what the best gains over the baseline. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from laggard.recommend.runs import TIE_RATIO, Configuration, by_platform, speed, ties_of

BASELINE: Final = "baseline"
"""The word in a column `config` that names the configuration to compare with."""


class Best(NamedTuple):
    configuration: Configuration
    ties: tuple[Configuration, ...]


class Winner(NamedTuple):
    """The fastest stage of a platform at one accumulation."""

    configuration: Configuration
    ties: tuple[Configuration, ...]
    """The other stages that are as fast."""
    lead: float
    """Its speed over that of the fastest other stage."""


class Gain(NamedTuple):
    baseline: Configuration
    best: Configuration

    @property
    def ratio(self) -> float:
        return speed(self.best) / speed(self.baseline)


def find_best(configurations: Sequence[Configuration], within: float = TIE_RATIO) -> tuple[Best, ...]:
    """Returns the fastest configuration of each platform that has one that runs."""
    found = []
    for own in by_platform(configurations).values():
        best = max(own, key=speed)
        if best.samples_per_second:
            found.append(Best(best, ties_of(best, sorted(own, key=speed, reverse=True), within)))
    return tuple(found)


def find_winners(configurations: Sequence[Configuration], within: float = TIE_RATIO) -> tuple[Winner, ...]:
    """Returns which stage wins, for each platform and accumulation at which two stages were measured; the largest
    accumulation first. Stages are compared at the same micro-batch."""
    groups: dict[tuple[str, int, int], list[Configuration]] = {}
    for each in configurations:
        if each.samples_per_second:
            groups.setdefault((each.platform, each.grad_accum, each.micro_batch), []).append(each)
    winners = [_winner(group, within) for group in groups.values() if len({each.stage for each in group}) > 1]
    platforms = list(by_platform(configurations))
    return tuple(
        sorted(
            winners,
            key=lambda winner: (
                platforms.index(winner.configuration.platform),
                -winner.configuration.grad_accum,
                -winner.configuration.micro_batch,
            ),
        )
    )


def _winner(group: Sequence[Configuration], within: float) -> Winner:
    stages = {stage: max((each for each in group if each.stage == stage), key=speed) for stage in _stages(group)}
    first, *rest = sorted(stages.values(), key=speed, reverse=True)
    return Winner(first, ties_of(first, rest, within), speed(first) / speed(rest[0]))


def _stages(group: Sequence[Configuration]) -> list[int]:
    return sorted({each.stage for each in group})


def find_gains(configurations: Sequence[Configuration]) -> tuple[Gain, ...]:
    """Returns what each platform's best gains over its baseline: the configuration that the column `config` calls so;
    without one, ZeRO stage 1 with the largest micro-batch that runs, which is where users start."""
    found = []
    for own in by_platform(configurations).values():
        running = [each for each in own if each.samples_per_second]
        baseline = _baseline(running)
        if baseline:
            found.append(Gain(baseline, max(running, key=speed)))
    return tuple(found)


def _baseline(running: Sequence[Configuration]) -> Configuration | None:
    named = [each for each in running if str(dict(each.others).get("config", "")).lower() == BASELINE]
    plain = [each for each in running if each.stage == 1 and "config" not in dict(each.others)]
    return next(iter(named), None) or max(plain, key=lambda each: each.micro_batch, default=None)
