"""Measured runs of a training, as values. What could not run for want of memory is a run too, without a speed."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

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

    @property
    def global_batch(self) -> int:
        """The samples of an optimizer step, up to the number of ranks, which is that of `micro_batch`'s unit."""
        return self.micro_batch * self.grad_accum


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
    groups: dict[Hashable, list[Run]] = {}
    for run in runs:
        key = (run.platform, run.stage, run.micro_batch, run.grad_accum, run.others)
        groups.setdefault(key, []).append(run)
    return tuple(_merge(group) for group in groups.values())


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
    found: dict[str, list[Configuration]] = {}
    for each in configurations:
        found.setdefault(each.platform, []).append(each)
    return found
