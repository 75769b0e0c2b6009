"""Charts as SVG, written by hand: they open in every browser, and are text in a repository."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Final, NamedTuple

_WIDTH: Final = 720
_HEIGHT: Final = 320
_LEFT: Final = 70
_RIGHT: Final = 170
_TOP: Final = 40
_BOTTOM: Final = 50
_ACROSS: Final = _WIDTH - _LEFT - _RIGHT
_MAX_DOTS: Final = 100
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""Okabe and Ito's: told apart by readers who see few colours, too."""
MAX_SERIES: Final = 24
MAX_CHARTS: Final = 24
_LABEL_CHARACTERS: Final = 24


class Series(NamedTuple):
    name: str
    points: tuple[tuple[float, float], ...]


class Chart(NamedTuple):
    title: str
    x_name: str
    y_name: str
    series: tuple[Series, ...]
    marked: tuple[tuple[float, float], ...] = ()
    """Points with a ring around them: outliers."""
    level: float | None = None
    """Height of a dashed line across."""
    over_time: bool = False
    """True: x is a time from 0 on, the axis is linear, and lines of many points have no dots."""


class _Axes(NamedTuple):
    """`x` and `y` place a value, `x_marks` and `y_marks` are values to write beside the axes."""

    x: Callable[[float], float]
    y: Callable[[float], float]
    x_marks: tuple[float, ...]
    y_marks: tuple[float, ...]


def render_charts(charts: Sequence[Chart]) -> str:
    """Returns one SVG document with the charts below one another."""
    shown = charts[:MAX_CHARTS]
    height = _HEIGHT * max(1, len(shown))
    body = "\n".join(line for place, chart in enumerate(shown) for line in _chart(chart, place * _HEIGHT))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _chart(chart: Chart, offset: int) -> Iterator[str]:
    axes = _axes(chart, offset)
    yield "<g>"
    yield _words(_LEFT, offset + 22, chart.title, 'font-size="15" font-weight="bold"')
    yield from _frame(chart, axes, offset)
    for place, series in enumerate(chart.series[:MAX_SERIES]):
        dots = not (chart.over_time and len(series.points) > _MAX_DOTS)
        yield from _line(series, axes, _colour(place), dots)
        at = offset + _TOP + 14 * place
        yield f'<rect x="{_WIDTH - _RIGHT + 14}" y="{at}" width="10" height="10" fill="{_colour(place)}"/>'
        yield _words(_WIDTH - _RIGHT + 30, at + 9, series.name)
    for x, y in chart.marked:
        yield f'<circle cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="9" fill="none" stroke="#c00" stroke-width="2"/>'
    yield "</g>"


def _colour(place: int) -> str:
    return _COLOURS[place % len(_COLOURS)]


def _axes(chart: Chart, offset: int) -> _Axes:
    points = [point for series in chart.series for point in series.points]
    highest = max([y for _, y in points] + ([chart.level] if chart.level else []), default=1.0) * 1.1 or 1.0
    y_marks = _round_marks(highest, 4)
    depth = _HEIGHT - _TOP - _BOTTOM

    def y(value: float) -> float:
        return offset + _TOP + depth * (1 - value / y_marks[-1])

    x, x_marks = (_linear if chart.over_time else _logarithmic)(sorted({x for x, _ in points}))
    return _Axes(x, y, x_marks, y_marks)


def _logarithmic(values: Sequence[float]) -> tuple[Callable[[float], float], tuple[float, ...]]:
    """An axis for nodes and accumulations, which double."""
    low, high = (math.log(values[0]), math.log(values[-1])) if values else (0.0, 1.0)

    def x(value: float) -> float:
        return _LEFT + 20 + (_ACROSS - 40) * ((math.log(value) - low) / (high - low) if high > low else 0.5)

    return x, tuple(values[:: -(-len(values) // 12) or 1])


def _linear(values: Sequence[float]) -> tuple[Callable[[float], float], tuple[float, ...]]:
    """An axis for a time, from 0 on."""
    last = max(values, default=1.0) or 1.0

    def x(value: float) -> float:
        return _LEFT + _ACROSS * value / last

    return x, tuple(mark for mark in _round_marks(last, 8) if mark <= last)


def _round_marks(highest: float, parts: int) -> tuple[float, ...]:
    """The marks from 0 in steps of 1, 2, 2.5 or 5 and a power of ten, at most `parts` steps, the last at or above
    `highest`."""
    power: float = 10.0 ** math.floor(math.log10(highest / parts))
    step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each * parts >= highest * (1 - 1e-9))
    return tuple(step * place for place in range(math.ceil(highest / step - 1e-9) + 1))


def _frame(chart: Chart, axes: _Axes, offset: int) -> Iterator[str]:
    bottom = offset + _HEIGHT - _BOTTOM
    right = _WIDTH - _RIGHT
    yield f'<path d="M{_LEFT} {offset + _TOP}V{bottom}H{right}" fill="none" stroke="#444"/>'
    for value in axes.y_marks:
        yield f'<path d="M{_LEFT} {axes.y(value):.1f}H{right}" stroke="#ddd"/>'
        yield _words(_LEFT - 6, axes.y(value) + 4, f"{value:.4g}", 'text-anchor="end"')
    for value in axes.x_marks:
        yield _words(axes.x(value), bottom + 16, f"{value:g}", 'text-anchor="middle"')
    yield _words((_LEFT + right) / 2, bottom + 36, chart.x_name, 'text-anchor="middle"')
    yield _words(_LEFT, offset + _TOP - 4, chart.y_name, 'fill="#444"')
    if chart.level is not None:
        yield f'<path d="M{_LEFT} {axes.y(chart.level):.1f}H{right}" stroke="#c00" stroke-dasharray="6 4"/>'


def _line(series: Series, axes: _Axes, colour: str, dots: bool) -> Iterator[str]:
    places = [(axes.x(x), axes.y(y)) for x, y in sorted(series.points)]
    if len(places) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for x, y in places if dots else ():
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'


def _words(x: float, y: float, text: str, attributes: str = "") -> str:
    shown = "".join(character if character.isprintable() else " " for character in text)
    shown = shown if len(shown) <= 3 * _LABEL_CHARACTERS else shown[: 3 * _LABEL_CHARACTERS - 3] + "..."
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(shown)}</text>'
