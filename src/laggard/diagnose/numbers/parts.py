"""The parts of a training's time that compute nothing, beside the whole: data, checkpoints, communication, waiting.

The whole of a step is what its line calls so (`time`, `step time`, `elapsed time per iteration`), where it is the
longest of the line, or else all of them together. The whole of a checkpoint that a line tells by itself is the time
between the lines of steps around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.numbers.quantities import Kind, Quantity, part_of_step
from laggard.diagnose.numbers.rows import STEP, Row, Who
from laggard.diagnose.rules import patterns, table
from laggard.kit.words import seconds_text
from laggard.locate.shares import ALIKE, HALF, MOST
from laggard.model import Finding
from laggard.rings.judge import MIN_MEASURED

_P: Final = patterns("quantities")

_LEAST: Final = {"data": 1 - MOST, "waiting": 1 - MOST, "checkpoint": 1 - MOST, "communication": HALF}
"""The share of the whole from which on a part is a loss. Communication is a part of each step by design."""
LONG_SECONDS: Final = 120.0
"""The shortest time of a checkpoint that is a loss: in that time a node's eight GPUs, 640 GB, are written at 5 GB/s."""


def is_whole(name: str) -> bool:
    """Whether a time of this name is that of a whole step."""
    return _P["whole"].fullmatch(name) is not None


def every(places: Sequence[int]) -> str:
    """`, every 8 steps`: how often something comes, where always so many steps are between; empty: it does not."""
    gaps = {after - before for before, after in zip(places, places[1:], strict=False)}
    return f", every {gaps.pop()} steps" if len(places) >= MIN_MEASURED and len(gaps) == 1 and gaps != {1} else ""


class _Record(NamedTuple):
    """The times of one step, as one line or several tell them, each name once."""

    times: dict[str, Quantity]
    row: Row


class Lost(NamedTuple):
    """`part` and `whole` in seconds a step."""

    kind: str
    name: str
    part: float
    whole: float
    longest: tuple[float, ...]
    row: Row
    every: str = ""

    @property
    def share(self) -> float:
        return self.part / self.whole


def lost_parts(rows: Iterable[Row]) -> list[Finding]:
    """Returns a finding for each kind of part that takes too much, of the one that loses most."""
    by_who: dict[Who, list[Row]] = {}
    for row in rows:
        by_who.setdefault(row.who, []).append(row)
    worst: dict[str, Lost] = {}
    for own in by_who.values():
        for lost in (*_of_steps(own), *_of_checkpoints(own)):
            if lost.kind not in worst or lost.share > worst[lost.kind].share:
                worst[lost.kind] = lost
    return [_finding(lost) for lost in worst.values()]


def _records(rows: Iterable[Row]) -> list[_Record]:
    records: list[_Record] = []
    for row in rows:
        times = {it.name: it for it in row.quantities if it.kind is Kind.TIME and it.name}
        if records and times and not records[-1].times.keys() & times.keys():
            records[-1].times.update(times)
        elif times:
            records.append(_Record(times, row))
    return records


def _of_steps(rows: Sequence[Row]) -> Iterator[Lost]:
    records = _records(rows)
    averaged = bool(records) and any(it.mean is not None for it in records[-1].times.values())
    if len(records) < MIN_MEASURED and not averaged:
        return
    records = records[-1:] if averaged else records[1:]  # the first step warms up
    own = rows if averaged else ()
    for name in dict.fromkeys(name for record in records for name in record.times):
        kind = part_of_step(name)
        if not kind or is_whole(name):
            continue
        told = [
            (record, _value(record.times[name], kind), _whole(record)) for record in records if name in record.times
        ]
        parts, wholes = sum(part for _, part, _ in told), sum(whole for _, _, whole in told)
        fits = sum(part <= (1 + ALIKE) * whole for _, part, whole in told)
        often = averaged or len(told) >= MIN_MEASURED
        if often and wholes > 0 and fits >= MOST * len(told) and 1 + ALIKE >= parts / wholes >= _LEAST[kind]:
            mean = parts / len(told)
            values = [it.value for row in own or [it.row for it in records] for it in row.quantities if it.name == name]
            longest = tuple(sorted((it for it in values if it > mean), reverse=True)[:2])
            stalls = longest if longest and longest[0] * HALF > mean else ()
            long = [place for place, (_, part, _) in enumerate(told) if part * HALF > mean]
            yield Lost(kind, name, mean, wholes / len(told), stalls, told[-1][0].row, every(long))


def _value(quantity: Quantity, kind: str) -> float:
    """The mean where it is told. Of the least and the most over ranks all wait for the rank that takes most, but in
    communication that rank waits for the others."""
    if quantity.most is not None and kind != "communication":
        return quantity.most
    return quantity.value if quantity.mean is None else quantity.mean


def _whole(record: _Record) -> float:
    times = {name: max(_value(it, ""), it.most or 0.0) for name, it in record.times.items()}
    longest = max(times.values())
    named = [value for name, value in times.items() if is_whole(name)]
    if named and max(named) >= longest / (1 + ALIKE):
        return max(named)
    return sum(times.values()) if named or any(map(_P["computes"].search, times)) else 0.0


def _of_checkpoints(rows: Sequence[Row]) -> Iterator[Lost]:
    """The checkpoints that lines tell by themselves, as a share of the time between the first and the last step."""
    steps = [row.seconds for row in rows if row.seconds is not None and STEP.search(row.text)]
    if len(steps) < 2 or steps[-1] <= steps[0]:
        return
    told = [(each, row) for each, row in _saves(rows) if steps[0] <= (row.seconds or 0.0) <= steps[-1]]
    seconds, whole = sum(each for each, _ in told), steps[-1] - steps[0]
    if told and seconds / len(told) >= LONG_SECONDS and _LEAST["checkpoint"] <= seconds / whole <= 1 + ALIKE:
        longest, row = max(told, key=lambda it: it[0])
        yield Lost("checkpoint", "", seconds / len(told), whole / len(told), (longest,), row)


def _saves(rows: Iterable[Row]) -> Iterator[tuple[float, Row]]:
    """The checkpoints with the seconds that each took: as its line says, or between the lines that begin and end it."""
    began: Row | None = None
    for row in rows:
        if not _P["saves"].search(row.text):
            continue
        bare = [it.value for it in row.quantities if it.kind is Kind.TIME and len(it.name) < 8]
        if bare:
            yield max(bare), row
            began = None
        elif _P["ends"].search(row.text) and began is not None:
            yield (row.seconds or 0.0) - (began.seconds or 0.0), row
            began = None
        elif _P["begins"].search(row.text) and row.seconds is not None:
            began = row


def _finding(lost: Lost) -> Finding:
    longest = f", the longest {' and '.join(map(seconds_text, lost.longest))}{lost.every}" if lost.longest else ""
    share = min(lost.share, 1.0)
    return (
        table("numbers")
        .sections[lost.kind]
        .found(
            {
                "line": lost.row.text[:300],
                "part_seconds": round(lost.part, 4),
                "whole_seconds": round(lost.whole, 4),
                "share": round(share, 3),
            },
            who=lost.row.who if lost.row.who.kind else "the training",
            part=seconds_text(lost.part),
            whole=seconds_text(lost.whole),
            of="a step" if lost.name else "the time between two steps",
            share=f"{100 * share:.0f} %",
            name=f" ({lost.name})" if lost.name else "",
            longest=longest,
        )
    )
