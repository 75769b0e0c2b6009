"""Errors in a table of numbers: columns that are the sum, the product or the quotient of others in most rows, and the
rows where they are not. Pure.

Tables that people make carry their own check: a total beside its parts, hours beside seconds a step. A relation counts
where most rows keep it closely, and it is not used to judge the columns that it is made of: which cell of the row is
wrong the table cannot tell, unless another relation clears the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MIN_SHARE: Final = 0.6
"""The share of the rows that a relation must hold for, to be one; and never fewer than MIN_ROWS."""
MIN_ROWS: Final = 3
KEPT_DEVIATION: Final = 0.01
"""The share within which rows keep a relation: rounding, and times that were taken apart."""
BROKEN_DEVIATION: Final = 0.015
"""The share from which on a row that is off breaks a relation. Between the two nothing is said."""
TREND_KEPT_DEVIATION: Final = 0.3
TREND_BROKEN_DEVIATION: Final = 1.0
"""The deviation of a row that breaks a trend: more than twice or less than half of what the others' power law
expects."""
MAX_COLUMNS: Final = 12
MAX_ERRORS: Final = 50
_MAX_NUMBER: Final = 1e30
"""Products of several larger numbers, and quotients of smaller ones than its inverse, are no numbers."""


class Relation(NamedTuple):
    """`result` is the sum of two terms (`sign` is +), `scale` times their product or quotient (*, /), or goes with one
    term to the power of `scale` (^)."""

    result: str
    terms: tuple[str, ...]
    sign: str
    scale: float

    def __str__(self) -> str:
        if self.sign == "^":
            return f"{self.result} goes with {self.terms[0]} ^ {self.scale:.2g}"
        right = f" {self.sign} ".join(self.terms)
        return f"{self.result} = {right}" if self.scale == 1 else f"{self.result} = {self.scale:.4g} * {right}"


class TableError(NamedTuple):
    """A row that breaks a relation which most rows keep. `expected`: what `relation.result` should be there."""

    place: int
    """The place of the row among the rows, from 0."""
    relation: Relation
    measured: float
    expected: float


def find_table_errors(columns: Mapping[str, Sequence[float | None]]) -> tuple[TableError, ...]:
    """Returns the rows that break a relation, each once, by the relation that most rows keep. `columns`: numbers by
    name; None: no number in that row."""
    arrays = {
        name: np.array([np.nan if value is None else value for value in values], float)
        for name, values in list(columns.items())[:MAX_COLUMNS]
    }
    arrays = {name: np.where(_is_usual(values), values, np.nan) for name, values in arrays.items()}
    arrays = {name: values for name, values in arrays.items() if len(np.unique(values[np.isfinite(values)])) > 1}
    order = list(arrays)  # what is derived stands on the right: of relations that say the same, that one is told
    candidates = [*_sums(arrays), *_products(arrays), *_trends(arrays)]
    candidates.sort(key=lambda each: (each.relation.sign == "^", -each.share, -order.index(each.relation.result)))
    found: dict[int, TableError] = {}
    told: set[frozenset[str]] = set()
    for relation, _, expected, off in candidates:
        names = frozenset((relation.result, *relation.terms))
        if names in told:  # a weaker relation of the same columns: rows where a part is 0 would keep it too
            continue
        told.add(names)
        measured = arrays[relation.result]
        for place in np.flatnonzero(off > (BROKEN_DEVIATION if relation.sign != "^" else TREND_BROKEN_DEVIATION)):
            found.setdefault(int(place), TableError(int(place), relation, measured[place], expected[place]))
    return tuple(found[place] for place in sorted(found))[:MAX_ERRORS]


class _Candidate(NamedTuple):
    relation: Relation
    share: float
    """The share of rows that keep it."""
    expected: Floats
    off: Floats
    """The share by which each row breaks it."""


def _is_usual(values: Floats) -> npt.NDArray[np.bool_]:
    sizes = np.abs(values)
    return np.asarray((sizes == 0) | (sizes > 1 / _MAX_NUMBER) & (sizes < _MAX_NUMBER))


def _sums(arrays: Mapping[str, Floats]) -> list[_Candidate]:
    """Returns the sums of two columns that another one is: the total is the largest of the three."""
    found = []
    for total, first, second in _triples(arrays):
        parts = arrays[first], arrays[second]
        expected = parts[0] + parts[1]
        if first > second or np.any(parts[0] < 0) or np.any(parts[1] < 0):
            continue
        smallest = min(float(np.nanmax(part)) for part in parts)  # else a small part could be anything
        if min(np.ptp(part[np.isfinite(part)]) for part in parts) > 0:
            off = np.abs(arrays[total] - expected) / smallest
            found += _kept(Relation(total, (first, second), "+", 1.0), expected, off)
    return found


def _products(arrays: Mapping[str, Floats]) -> list[_Candidate]:
    """Returns the products and quotients of two columns that another one is, but for a constant factor."""
    positive = {name: values for name, values in arrays.items() if not np.any(values[np.isfinite(values)] <= 0)}
    found = []
    for result, first, second in _triples(positive):
        for sign in "*/":
            if sign == "*" and first > second:
                continue
            other = positive[second] if sign == "*" else 1 / positive[second]
            combined = positive[first] * other
            scale = _nice(float(np.nanmedian(positive[result] / combined)))
            off = _off(positive[result], scale * combined)
            if _varies(positive[result], off):
                found += _kept(Relation(result, (first, second), sign, scale), scale * combined, off)
    return found


def _trends(arrays: Mapping[str, Floats]) -> list[_Candidate]:
    """Returns the power laws of the first column that rises or falls throughout (what was varied) which other columns
    follow, by the median of the slopes between rows (Theil 1950, Sen 1968). They are rough, and told of last."""
    swept = next((name for name, values in arrays.items() if _is_swept(values)), None)
    if swept is None:
        return []
    found = []
    for name, values in arrays.items():
        if name == swept or not np.all(values > 0):
            continue
        steps = np.log(arrays[swept])
        ones, others = np.triu_indices(len(steps), 1)
        slope = np.median((np.log(values[ones]) - np.log(values[others])) / (steps[ones] - steps[others]))
        level = np.exp(np.median(np.log(values) - slope * steps))
        expected = level * np.exp(slope * steps)
        off = np.maximum(values / expected, expected / values) - 1
        kept = off <= TREND_KEPT_DEVIATION
        if kept.mean() > MIN_SHARE and len(values) >= MIN_ROWS:
            found.append(_Candidate(Relation(name, (swept,), "^", float(slope)), float(kept.mean()), expected, off))
    return found


def _is_swept(values: Floats) -> bool:
    changes = np.diff(values)
    return bool(np.all(values > 0) and (np.all(changes > 0) or np.all(changes < 0)))


def _nice(scale: float) -> float:
    return 1.0 if abs(scale - 1) < KEPT_DEVIATION / 2 else scale


def _triples(arrays: Mapping[str, Floats]) -> list[tuple[str, str, str]]:
    return list(itertools.permutations(arrays, 3))


def _kept(relation: Relation, expected: Floats, off: Floats) -> list[_Candidate]:
    """Returns the relation where most rows keep it."""
    known = np.isfinite(off)
    kept = off[known] <= KEPT_DEVIATION
    if kept.sum() < max(MIN_ROWS, MIN_SHARE * known.sum()):
        return []
    return [_Candidate(relation, float(kept.mean()), expected, off)]


def _varies(measured: Floats, off: Floats) -> bool:
    """Returns whether the rows that keep a relation have different results: else any column could be a part of it."""
    own = measured[np.isfinite(off) & (off <= KEPT_DEVIATION)]
    return len(own) > 1 and bool(np.ptp(own) > 3 * KEPT_DEVIATION * np.abs(own).max())


def _off(measured: Floats, expected: Floats) -> Floats:
    with np.errstate(all="ignore"):
        return np.asarray(np.abs(measured - expected) / np.maximum(np.abs(expected), np.abs(measured)))
