"""What the benchmarks share: paired timings, and one table form."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

DISTURBED = 1.15  # times the time of an undisturbed run


class Figure(NamedTuple):
    """One measured row. `budget` None: shown beside the others, with nothing to hold it to."""

    what: str
    value: float
    unit: str
    low: float
    high: float
    budget: float | None = None


def quartiles(what: str, values: Sequence[float], unit: str, budget: float | None = None) -> Figure:
    """The median of `values`, with the quartiles beside it."""
    low, middle, high = statistics.quantiles(values, n=4)
    return Figure(what, middle, unit, low, high, budget)


def interleaved(pairs: int, bare: Callable[[], float], other: Callable[[], float]) -> list[tuple[float, float]]:
    """(bare, other) timed in turn, so that a machine that slows down slows both; one pair of warm-up is not counted."""
    bare(), other()
    return [(bare(), other()) for _ in range(pairs)]


def undisturbed(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The pairs during which nothing else slowed the machine: a shared one loses half its speed for seconds at a time.
    Told by the bare half alone, at most DISTURBED times its fastest tenth."""
    fastest = statistics.quantiles((bare for bare, _ in pairs), n=10)[0]
    return [(bare, other) for bare, other in pairs if bare <= DISTURBED * fastest]


def show(title: str, figures: Sequence[Figure]) -> bool:
    """Prints the table. Returns whether every figure is inside its budget."""
    print(f"\n{title}\n")
    print("| what | median | quartiles | budget | |")
    print("|---|---|---|---|---|")
    for figure in figures:
        budget = "" if figure.budget is None else f"{figure.budget:g} {figure.unit}"
        mark = "" if figure.budget is None else "ok" if figure.value <= figure.budget else "OVER"
        spread = f"{figure.low:.3g} to {figure.high:.3g}"
        print(f"| {figure.what} | {figure.value:.3g} {figure.unit} | {spread} | {budget} | {mark} |")
    return all(figure.budget is None or figure.value <= figure.budget for figure in figures)
