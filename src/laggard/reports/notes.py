"""The notes that the reader of a table should know before believing what it says: doubled rows, units mixed, too few
rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from laggard.recommend.runs import Configuration, by_platform, speed
from laggard.recommend.surface import Outlier
from laggard.reports.documents import TableNote
from laggard.reports.table import Row

_UNITS: Final = {
    60.0: "samples a minute",
    3600.0: "samples an hour",
    1000.0: "samples a millisecond, or a separator of thousands",
    1024.0: "tokens a second of sequences of 1024",
    2048.0: "tokens a second of sequences of 2048",
    4096.0: "tokens a second of sequences of 4096",
}
_UNIT_TOLERANCE: Final = 0.3
_MAX_GROWTH_RATIO: Final = 1.05
"""The largest speed-up over the micro-batch's own growth. A larger micro-batch at no more accumulation cannot be faster
by more than its own growth, but for noise."""
_MAX_LINES: Final = 20


def campaign_notes(
    configurations: Sequence[Configuration],
    outliers: Sequence[Outlier],
    empty: Sequence[Row],
    within: float,
    fewest: int,
) -> tuple[TableNote, ...]:
    flagged = {outlier.run.line for outlier in outliers}
    return (
        *empty_notes(empty),
        *_too_few(configurations, fewest),
        *_nothing_ran(configurations),
        *repeat_notes(configurations, within),
        *_best_is_outlier(configurations, flagged),
        *_impossible(configurations, flagged),
        *_memory_contradictions(configurations),
        *_unit_notes(outliers),
    )


def empty_notes(rows: Sequence[Row]) -> Iterator[TableNote]:
    if rows:
        lines = tuple(row.line for row in rows)
        yield TableNote("not_measured", f"{_lines(lines)} without a measurement: left out", lines)


def repeat_notes(configurations: Sequence[Configuration], within: float) -> Iterator[TableNote]:
    """Yields a note for each configuration that has several rows."""
    for each in configurations:
        if len(each.runs) < 2:
            continue
        lines = tuple(run.line for run in each.runs)
        speeds = [run.samples_per_second for run in each.runs]
        known = [value for value in speeds if value is not None]
        if not known or len(set(speeds)) == 1:
            yield TableNote("doubled_row", f"{_lines(lines)} say the same of one configuration: it counts once", lines)
        elif len(known) < len(speeds):
            text = f"{_lines(lines)} contradict each other: one configuration ran, and ran out of memory"
            yield TableNote("contradiction", text, lines)
        else:
            apart = max(known) / min(known) - 1
            kind = "repeats" if apart <= within else "contradiction"
            text = (
                f"{_lines(lines)} measured one configuration, {apart:.1%} apart "
                f"({', '.join(f'{value:g}' for value in known[:6])}): the median counts, {speed(each):g}"
            )
            yield TableNote(kind, text, lines)


def _too_few(configurations: Sequence[Configuration], fewest: int) -> Iterator[TableNote]:
    running = sum(each.samples_per_second is not None for each in configurations)
    if running == 1:
        yield TableNote("too_few", "only one configuration ran: it is the best of itself, and nothing can check it")
    elif 0 < running < fewest:
        text = f"only {running} configurations ran: too few to find outliers"
        yield TableNote("too_few", text)


def _nothing_ran(configurations: Sequence[Configuration]) -> Iterator[TableNote]:
    for platform, own in by_platform(configurations).items():
        if not any(each.samples_per_second for each in own):
            lines = tuple(run.line for each in own for run in each.runs)
            yield TableNote("out_of_memory", f"nothing ran on {platform}: every row is out of memory", lines)


def _best_is_outlier(configurations: Sequence[Configuration], flagged: set[int]) -> Iterator[TableNote]:
    for platform, own in by_platform(configurations).items():
        lines = tuple(run.line for run in max(own, key=speed).runs if run.line in flagged)
        if lines:
            text = f"the best of {platform} ({_lines(lines)}) is an outlier: measure it again before you choose it"
            yield TableNote("best_is_outlier", text, lines)


def _impossible(configurations: Sequence[Configuration], flagged: set[int]) -> Iterator[TableNote]:
    """Yields pairs of rows of which one must be wrong: a step's time does not fall when its micro-batch grows."""
    groups: dict[object, list[Configuration]] = {}
    for each in configurations:
        if each.samples_per_second and not any(run.line in flagged for run in each.runs):
            groups.setdefault((each.platform, each.stage, each.others), []).append(each)
    for group in groups.values():
        ordered = sorted(group, key=lambda each: each.micro_batch)
        for small, large in itertools.pairwise(ordered):
            growth = large.micro_batch / small.micro_batch
            if large.grad_accum <= small.grad_accum and speed(large) > speed(small) * growth * _MAX_GROWTH_RATIO:
                lines = (small.runs[0].line, large.runs[0].line)
                text = (
                    f"{_lines(lines)} contradict each other: {growth:g} times the micro-batch cannot be "
                    f"{speed(large) / speed(small):.2f} times as fast"
                )
                yield TableNote("contradiction", text, lines)


def _memory_contradictions(configurations: Sequence[Configuration]) -> Iterator[TableNote]:
    """Yields pairs of rows of which a larger micro-batch fitted and a smaller one did not."""
    groups: dict[object, list[Configuration]] = {}
    for each in configurations:
        groups.setdefault((each.platform, each.stage, each.others), []).append(each)
    for group in groups.values():
        failed = [each for each in group if each.samples_per_second is None]
        fitted = [each for each in group if each.samples_per_second is not None]
        if failed and fitted:
            small = min(failed, key=lambda each: each.micro_batch)
            large = max(fitted, key=lambda each: each.micro_batch)
            if small.micro_batch < large.micro_batch:
                lines = (small.runs[0].line, large.runs[0].line)
                text = (
                    f"{_lines(lines)} contradict each other: micro-batch {small.micro_batch} ran out of memory, and "
                    f"{large.micro_batch} did not"
                )
                yield TableNote("contradiction", text, lines)


def _unit_notes(outliers: Sequence[Outlier]) -> Iterator[TableNote]:
    for outlier in outliers:
        ratio = max(outlier.ratio, 1 / outlier.ratio)
        factor = min(_UNITS, key=lambda factor: abs(ratio / factor - 1))
        if abs(ratio / factor - 1) <= _UNIT_TOLERANCE:
            side = "above" if outlier.ratio > 1 else "below"
            text = f"line {outlier.run.line} is {ratio:.0f} times {side} what is expected: is it in {_UNITS[factor]}?"
            yield TableNote("unit", text, (outlier.run.line,))


def _lines(lines: Sequence[int]) -> str:
    shown = ", ".join(map(str, lines[:_MAX_LINES])) + (" ..." if len(lines) > _MAX_LINES else "")
    return f"line {shown}" if len(lines) == 1 else f"lines {shown}"
