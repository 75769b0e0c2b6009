"""The work of a rank's peers in the same step. Peers do the same work, on other machines where there are enough.
Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from laggard.locate.job_timings import Floats
from laggard.locate.medians import distinct, last_axis_median, others_median

BLOCK_VALUES = 1 << 21
"""The number of values that are sorted at once."""

CROWDED_SHARE = 0.25
"""The largest share of a rank's peers that its own machine may hold. Where it holds more, and more than one, a rank is
compared with those of other machines: else a slow machine would hide its ranks behind each other."""


@dataclasses.dataclass(frozen=True)
class Peers:
    """The ranks that are compared with each other. `classes` has the columns of ranks that do the same work, those of
    equal size in one array [K, M]. `apart` has, for the ranks of a crowded machine, their columns and those that they
    are compared with."""

    classes: tuple[NDArray[np.int64], ...]
    apart: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]
    number: NDArray[np.int64]  # [R]: each rank's class
    sizes: NDArray[np.int64]  # [R]: how many are in it

    @classmethod
    def of(cls, positions: NDArray[np.int32], nodes: Sequence[str | None]) -> Peers:
        _, number, count = np.unique(positions, return_inverse=True, return_counts=True)
        order = np.argsort(number, kind="stable")
        first = np.cumsum(count) - count
        classes = []
        for size in distinct(count):
            starts = first[count == size]
            classes.append(order[starts[:, None] + np.arange(size)])
        return cls(tuple(classes), tuple(_apart(number, nodes, order, first, count)), number, count[number])

    def medians(
        self, values: Floats, without: NDArray[np.bool_] | None = None, of: NDArray[np.bool_] | None = None
    ) -> Floats:
        """[S, R]: for each of `values` [S, R] the median of the rank's peers in the same step; nan where it has none.
        `without` [R]: ranks that are nobody's peers. `of` [R]: the ranks, whole classes, that it is computed for."""
        result = np.full(values.shape, np.nan, dtype=values.dtype)
        for columns in self.classes:
            wanted = columns if of is None else columns[of[columns[:, 0]]]
            for rows, some in _blocks(len(values), wanted):
                result[rows, some] = others_median(_known(values[rows, some], without, some))
        for members, others in self.apart:
            known = others if without is None else others[~without[others]]
            if len(known) and (of is None or of[members[0]]):
                result[:, members] = last_axis_median(values[:, known])[:, None]
        return result


def _known(values: Floats, without: NDArray[np.bool_] | None, columns: NDArray[np.int64] | slice) -> Floats:
    """`values`, nan for the ranks `without`."""
    if without is None or not without[columns].any():
        return values
    return np.where(without[columns], np.asarray(np.nan, values.dtype), values)


def _blocks(steps: int, columns: NDArray[np.int64]) -> Iterator[tuple[slice, NDArray[np.int64] | slice]]:
    """Parts of `steps` rows and of the classes in `columns` [K, M], each of some BLOCK_VALUES values."""
    count, size = columns.shape
    width = max(1, BLOCK_VALUES // max(1, steps * size))
    height = max(1, BLOCK_VALUES // max(1, size))
    for first in range(0, count, width):
        some = columns[first : first + width]
        for top in range(0, steps, height) if width == 1 else (0,):
            yield slice(top, top + height if width == 1 else steps), _as_slice(some)


def _as_slice(columns: NDArray[np.int64]) -> NDArray[np.int64] | slice:
    """A slice where `columns` is one row of neighbours, as in a job of data parallelism: then nothing is copied."""
    if len(columns) == 1 and (np.diff(columns[0]) == 1).all():
        return slice(int(columns[0, 0]), int(columns[0, -1]) + 1)
    return columns


def _apart(
    number: NDArray[np.int64],
    nodes: Sequence[str | None],
    order: NDArray[np.int64],
    first: NDArray[np.int64],
    count: NDArray[np.int64],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The ranks in a class of each machine that crowds it, and the others."""
    node = node_numbers(nodes)
    width = len(nodes) + 1
    cells, size = np.unique(number * width + node, return_counts=True)
    which, where = cells // width, cells % width
    crowded = (size > 1) & (size > CROWDED_SHARE * count[which]) & (size < count[which])
    for cell, machine in zip(which[crowded], where[crowded], strict=True):
        members = order[first[cell] : first[cell] + count[cell]]
        here = node[members] == machine
        yield members[here], members[~here]


def confined(stage: NDArray[np.int64], machine: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[R]: whether all ranks with a rank's work (`stage` [R]) are on its machine: nobody elsewhere is its peer."""
    _, number = np.unique(stage, return_inverse=True)
    seen = distinct(np.stack((number, machine)), axis=1)
    found: NDArray[np.bool_] = (np.bincount(seen[0]) == 1)[number]
    return found


def node_numbers(nodes: Sequence[str | None]) -> NDArray[np.int64]:
    """[R]: a number for each rank, the same for ranks of one machine; a rank whose machine is not known has its own."""
    return _node_numbers(tuple(nodes))


@lru_cache(4)  # a verdict asks for those of its job again and again
def _node_numbers(nodes: tuple[str | None, ...]) -> NDArray[np.int64]:
    numbers: dict[str | int, int] = {}
    keys = (place if name is None else name for place, name in enumerate(nodes))
    found = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    found.setflags(write=False)
    return found
