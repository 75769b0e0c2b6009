"""The scaling of a training with its nodes. Pure.

The scaling factor is the throughput per GPU of the larger configuration over that of the smaller one. Z-gain is what
partitioned optimizer states, gradients and weights add to the largest batch: the memory that ZeRO frees grows with the
number of GPUs, so that a GPU's micro-batch may grow as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

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


class Scaling(NamedTuple):
    point: Point
    per_gpu: float | None
    factor: float | None
    """The throughput per GPU over that of the smallest configuration of the group."""
    step_factor: float | None
    """The throughput per GPU over that of the next smaller one, which shows where the loss happens."""
    alarm: bool
    z_gain: float | None
    """Share by which the micro-batch is larger than on the smallest configuration; 0: ZeRO adds nothing."""


def find_scaling(points: Sequence[Point]) -> tuple[Scaling, ...]:
    """Compares the configurations of each group with its smallest one that was measured."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.group, []).append(point)
    return tuple(each for own in groups.values() for each in _group(sorted(own, key=lambda point: point.gpus)))


def _group(points: Sequence[Point]) -> list[Scaling]:
    measured = [point for point in points if point.samples_per_second]
    sized = [point for point in points if point.micro_batch]
    found = []
    for point in points:
        smaller = [each for each in measured if each.gpus < point.gpus]
        factor = _factor(point, measured[0]) if measured else None
        found.append(
            Scaling(
                point,
                _per_gpu(point),
                factor,
                _factor(point, smaller[-1]) if smaller else None,
                factor is not None and factor < ALARM_RATIO,
                point.micro_batch / (sized[0].micro_batch or 1) - 1 if sized and point.micro_batch else None,
            )
        )
    return found


def _per_gpu(point: Point) -> float | None:
    return point.samples_per_second / point.gpus if point.samples_per_second else None


def _factor(point: Point, smaller: Point) -> float | None:
    own, reference = _per_gpu(point), _per_gpu(smaller)
    return own / reference if own and reference else None
