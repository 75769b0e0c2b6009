"""Records that a recording has twice: lines that were doubled, and two processes under one rank number. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.recording.columns import Table


class Deduplicated(NamedTuple):
    """`table` has each record once. `repeated` counts the records that were there before, word for word; `conflicting`
    has the rank of each record that another contradicts."""

    table: Table
    repeated: int
    conflicting: NDArray[np.int32]


def without_duplicates(table: Table, keys: Sequence[str]) -> Deduplicated:
    """The records of `table` whose `keys` no record before has. A record that lacks a `seq` has none like it."""
    nothing = np.zeros(0, np.int32)
    if not len(table["rank"]):
        return Deduplicated(table, 0, nothing)
    hashes = _hashes([table[name] for name in keys])
    order = np.argsort(hashes, kind="stable")
    again = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    before, after = order[again], order[again + 1]
    same = _equal(table, keys, before, after)
    if "seq" in keys:
        same &= table["seq"][after] >= 0
    before, after = before[same], after[same]
    if not len(after):
        return Deduplicated(table, 0, nothing)
    alike = _equal(table, [name for name in table if name not in keys and name != "own"], before, after)
    keep = np.ones(len(hashes), np.bool_)
    keep[after] = False
    kept = {name: values[keep] for name, values in table.items()}
    return Deduplicated(kept, int(alike.sum()), table["rank"][after[~alike]])


def _hashes(columns: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """Equal for equal rows; the finalizer of splitmix64 mixes each column in."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        bits = column.view(np.uint64) if column.dtype == np.float64 else column.astype(np.int64).view(np.uint64)
        mixed = (mixed ^ bits) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def _equal(table: Table, names: Sequence[str], one: NDArray[np.intp], other: NDArray[np.intp]) -> NDArray[np.bool_]:
    equal = np.ones(len(one), np.bool_)
    for name in names:
        left, right = table[name][one], table[name][other]
        equal &= (left == right) | ((left != left) & (right != right))  # nan equals nan here
    return equal
