"""What the benchmarks share: timings in pairs, and the form of their tables."""

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

MAX_DISTURBANCE = 1.15  # a disturbed run takes longer than this times an undisturbed one


class Figure(NamedTuple):
    """One row of a table: a measured value, its quartiles, and its budget. `budget` None: there is none."""

    name: str
    value: float
    unit: str
    low: float
    high: float
    budget: float | None = None


def quartiles(name: str, values: Sequence[float], unit: str, budget: float | None = None) -> Figure:
    """Returns the median of `values` with the quartiles; of one value, itself."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else tuple(values) * 3
    return Figure(name, middle, unit, low, high, budget)


def single(name: str, value: float, unit: str, budget: float | None = None) -> Figure:
    """Returns a value that was measured once."""
    return Figure(name, value, unit, value, value, budget)


def interleaved(pairs: int, bare: Callable[[], float], other: Callable[[], float]) -> list[tuple[float, float]]:
    """Times `bare` and `other` in turn, so that a machine that slows down slows both. The first pair, a warm-up, is not
    returned."""
    bare(), other()
    return [(bare(), other()) for _ in range(pairs)]


def undisturbed(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the pairs during which nothing else slowed the machine: a shared one loses half of its speed for seconds
    at a time. Only the bare half decides: it may take MAX_DISTURBANCE times as long as its fastest tenth."""
    fastest = statistics.quantiles((bare for bare, _ in pairs), n=10, method="inclusive")[0]
    return [(bare, other) for bare, other in pairs if bare <= MAX_DISTURBANCE * fastest]


def show(title: str, figures: Sequence[Figure]) -> bool:
    """Prints the table. Returns whether every figure is within its budget."""
    print(f"\n{title}\n")
    print("| what | median | quartiles | budget | |")
    print("|---|---|---|---|---|")
    for figure in figures:
        budget = "" if figure.budget is None else f"{figure.budget:g} {figure.unit}"
        mark = "" if figure.budget is None else "ok" if figure.value <= figure.budget else "OVER"
        spread = f"{figure.low:.3g} to {figure.high:.3g}"
        print(f"| {figure.name} | {figure.value:.3g} {figure.unit} | {spread} | {budget} | {mark} |")
    return all(figure.budget is None or figure.value <= figure.budget for figure in figures)


def put_into(page: str, name: str, text: str) -> str:
    """The page with the text between the marks of that name. Raises ValueError where it has none."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, begun, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise ValueError(f"the page has no {begin} and {end}")
    return f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}"
