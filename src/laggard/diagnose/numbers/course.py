"""Steps over time: some stall for much of all the time, a rate jumps up and down, or steps become slower and stay so.
Where the work of a step grows, or another rate stays as it is, more work is the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.job.lines import PROGRESS_WORDS
from laggard.diagnose.numbers.parts import LONG_SECONDS, every, is_whole
from laggard.diagnose.numbers.quantities import Kind, Quantity, number_of
from laggard.diagnose.numbers.rows import STEP, Row, Who
from laggard.diagnose.rules import patterns, table
from laggard.kit.words import seconds_text, times_text
from laggard.locate.shares import HALF, MOST
from laggard.model import Finding
from laggard.probes.active.measuring.rates import ActiveThresholds
from laggard.rings.judge import MIN_MEASURED, MIN_RATIO, centre_of

_MIN_STEPS: Final = 4 * MIN_MEASURED
"""The fewest steps that tell a course: a quarter of them is told by a median."""
_MIN_HALVES: Final = 8
"""The fewest steps whose halves tell it, if each of the second is slower than any of the first: of 70 orders of as many
equal steps one is so."""
_SLOWER: Final = 1 / ActiveThresholds().critical_ratio
"""How many times as long steps take at the end: what healthy devices differ by at most is less."""
_STEP_RATES: Final = (
    "tps",
    "wps",
    "ups",
    "throughput",
    "speed",
    "step",
    "samples per",
    "tokens per",
    "it",
    "steps per",
    "tflops",
    "flops",
)


_P: Final = patterns("quantities")
_SAYS: Final = table("numbers").sections
_EPOCH: Final = re.compile(r"(?i)\bep(?:och)?\b\W{0,4}(\d{1,7})")
_PER_SECOND: Final = " Hz"


class _Step(NamedTuple):
    seconds: float
    """The time of the step, or the inverse of its rate."""
    shown: str
    row: Row


def courses(rows: Sequence[Row]) -> list[Finding]:
    """Returns at most one finding: of the first series in which something stands out."""
    series: dict[tuple[Who, str, Kind], list[_Step]] = {}
    for row in rows:
        for it in row.quantities:
            if it.value > 0 and _tells_steps(it):
                seconds = it.value if it.kind is Kind.TIME else 1 / it.value
                series.setdefault((row.who, it.name or _unit(it), it.kind), []).append(_Step(seconds, it.shown, row))
    steady = {who for (who, _, kind), steps in series.items() if kind is Kind.RATE and _is_steady(steps)}
    found = [
        each
        for (who, name, kind), steps in series.items()
        if len(steps) >= _MIN_HALVES and who not in steady
        for each in _judge(steps, kind is Kind.TIME, name)
    ]
    return (found or list(_gaps(rows)))[:1]


def _unit(it: Quantity) -> str:
    return it.shown.lstrip("0123456789.,e+- ")


def _is_steady(steps: Sequence[_Step]) -> bool:
    """Whether all but a few steps are as fast as the usual one."""
    centre = centre_of(step.seconds for step in steps)
    slow = sum(step.seconds > centre.seconds * MIN_RATIO for step in steps) if centre else len(steps)
    return len(steps) >= _MIN_HALVES and slow <= (1 - MOST) * HALF * len(steps)


def _gaps(rows: Sequence[Row]) -> Iterator[Finding]:
    """Times in which no step is told, between others that come as ever: half of all the time is lost in them."""
    by_who: dict[Who, list[Row]] = {}
    for row in rows:
        if row.seconds is not None and STEP.search(row.text) and any(word in row.text for word in PROGRESS_WORDS):
            by_who.setdefault(row.who, []).append(row)
    for own in by_who.values():
        pairs = zip(own, own[1:], strict=False)
        gaps = [_Step((after.seconds or 0.0) - (before.seconds or 0.0), "", after) for before, after in pairs]
        values = sorted(it.seconds for it in gaps)
        if len(gaps) <= _MIN_STEPS or values[0] < 0:
            continue
        usual = values[len(values) // 2]
        long = sorted((it for it in gaps if it.seconds >= max(LONG_SECONDS, usual / HALF)), key=lambda it: -it.seconds)
        lost = sum(it.seconds - usual for it in long)
        warms_up = _begins(own[0]) and max(map(gaps.index, long), default=0) < len(long)
        if long and lost >= HALF * sum(values) and not warms_up:
            shown = [it._replace(shown=seconds_text(it.seconds)) for it in long]
            yield _stalled(lost, sum(values), f"{seconds_text(usual)} between two lines", shown)


def _tells_steps(it: Quantity) -> bool:
    if it.kind is Kind.TIME:
        return is_whole(it.name)
    is_rate = it.shown.endswith(_PER_SECOND) or "FLOP" in it.shown or ("/s" in it.shown and "B/s" not in it.shown)
    return it.name.startswith(_STEP_RATES) or (is_rate and not it.name)


def _judge(steps: Sequence[_Step], is_time: bool, name: str) -> Iterator[Finding]:
    """`steps`: of one series; the first of them warm up."""
    kept = steps[len(steps) // _MIN_STEPS :]
    values = [step.seconds for step in kept]
    rises = all(one <= other for one, other in zip(values, values[1:], strict=False))
    if rises and is_time and not _P["of_each"].search(name):
        return  # a clock that runs on
    if slower := _becomes_slower(kept):
        yield slower
    elif len(steps) > _MIN_STEPS:
        yield from _stalls(kept, is_time, _begins(steps[0].row))


def _becomes_slower(kept: Sequence[_Step]) -> Finding | None:
    few = len(kept) < _MIN_STEPS
    part = max(len(kept) // 4, MIN_MEASURED)
    first, last = kept[:part], kept[-part:]
    before, after = (centre_of(step.seconds for step in own) for own in (first, last))
    if not before or not after or after.seconds < _SLOWER * before.seconds:
        return None
    middle, seconds = len(kept) // 2, [step.seconds for step in kept]
    slower = sum(step.seconds > before.limit for step in last)
    if slower < MOST * part or (few and max(seconds[:middle]) > min(seconds[middle:])):
        return None
    ratio = after.seconds / before.seconds
    if _grown(first[part // 2].row, last[part // 2].row) >= 1 + HALF * (ratio - 1):
        return None
    since = next((step for step in kept[part:] if step.seconds > before.limit), kept[-1])
    return _slower(ratio, first[part // 2], kept[-1], since)


def _grown(early: Row, late: Row) -> float:
    """How many times as much work a later step has: longer sequences, larger batches, larger images."""
    told = [{it["name"]: number_of(it["value"]) for it in _P["work"].finditer(row.text)} for row in (early, late)]
    return max((told[1].get(name, 0.0) / value for name, value in told[0].items() if value), default=1.0)


def _stalls(kept: Sequence[_Step], is_time: bool, begins: bool) -> Iterator[Finding]:
    values = [step.seconds for step in kept]
    usual = sorted(kept, key=lambda step: step.seconds)[len(kept) // 4]  # what holds a step up makes it longer
    from_level = _upper_level(values)
    least_seconds = from_level or usual.seconds / HALF
    stalls = [step for step in kept if step.seconds >= least_seconds]
    if stalls and stalls[-1] is kept[len(stalls) - 1] and begins:
        return  # the first steps compile and fill caches: what held them up is over
    lost = sum(step.seconds - usual.seconds for step in stalls)
    few = len(stalls) < (1 - MOST) * len(kept)
    least = 1 - MOST if few or from_level else HALF  # inputs of many lengths spread as well
    if stalls and lost >= least * sum(values) and (is_time or from_level):
        often = every([place for place, step in enumerate(kept) if step in stalls])
        longest = sorted(stalls, reverse=True, key=lambda step: step.seconds)
        yield _stalled(lost, sum(values), f"{usual.shown}{often}", longest)


def _upper_level(values: Sequence[float]) -> float | None:
    """The least of the times of the upper of two levels between which steps go up and down again and again: the gap
    between them is wider than what each of them spreads by. None: there are no two levels."""
    ordered = sorted(values)
    gaps = [after / before for before, after in zip(ordered, ordered[1:], strict=False)]
    place = max(range(len(gaps)), key=gaps.__getitem__) + 1
    low, high = ordered[:place], ordered[place:]
    widest = max(_SLOWER, low[-1] / low[0], high[-1] / high[0])
    turns = sum((one < high[0]) != (other < high[0]) for one, other in zip(values, values[1:], strict=False))
    return high[0] if gaps[place - 1] >= widest and turns > 2 * MIN_MEASURED else None


def _begins(row: Row) -> bool:
    """Whether a line can be of a training's beginning: it names no later epoch."""
    return all(int(number) <= 1 for number in _EPOCH.findall(row.text))


def _slower(ratio: float, early: _Step, last: _Step, since: _Step) -> Finding:
    return _SAYS["slower"].found(
        {"line": since.row.text[:300], "last": last.row.text[:300], "ratio": round(ratio, 2)},
        who=_subject(last.row),
        times=times_text(ratio),
        last=last.shown,
        early=early.shown,
    )


def _stalled(lost: float, whole: float, usual: str, stalls: Sequence[_Step]) -> Finding:
    return _SAYS["stalls"].found(
        {"line": stalls[0].row.text[:300], "lost_seconds": round(lost, 3), "share": round(lost / whole, 3)},
        who=_subject(stalls[0].row),
        count=len(stalls),
        share=f"{100 * lost / whole:.0f}",
        longest=" and ".join(step.shown for step in stalls[:2]),
        usual=usual,
    )


def _subject(row: Row) -> str:
    return str(row.who) if row.who.kind else "the training"
