"""Steps over time: a few that stall for much of all the time, and steps that become slower and stay so."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.job.lines import PROGRESS_WORDS
from laggard.diagnose.numbers.parts import LONG_SECONDS, every, is_whole
from laggard.diagnose.numbers.quantities import Kind, Quantity
from laggard.diagnose.numbers.rows import STEP, Row, Who
from laggard.diagnose.rules import table
from laggard.kit.words import seconds_text, times_text
from laggard.locate.shares import HALF, MOST
from laggard.model import Finding
from laggard.rings.judge import MIN_MEASURED, centre_of

_MIN_STEPS: Final = 4 * MIN_MEASURED
"""The fewest steps that tell a course: a quarter of them is told by a median."""
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
)


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
    series: dict[tuple[Who, str], list[_Step]] = {}
    for row in rows:
        for it in row.quantities:
            if it.value > 0 and _tells_steps(it):
                seconds = it.value if it.kind is Kind.TIME else 1 / it.value
                series.setdefault((row.who, it.name), []).append(_Step(seconds, it.shown, row))
    found = [each for steps in series.values() if len(steps) > _MIN_STEPS for each in _judge(steps)]
    return (found or list(_gaps(rows)))[:1]


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
    is_rate = it.shown.endswith(_PER_SECOND) or ("/s" in it.shown and "B/s" not in it.shown)
    return it.name.startswith(_STEP_RATES) or (is_rate and not it.name)


def _judge(steps: Sequence[_Step]) -> Iterator[Finding]:
    """`steps`: of one series; the first of them warm up."""
    kept = steps[len(steps) // _MIN_STEPS :]
    values = [step.seconds for step in kept]
    if all(one <= other for one, other in zip(values, values[1:], strict=False)):
        return  # a clock that runs on
    quarter = len(kept) // 4
    before, after = centre_of(values[:quarter]), centre_of(values[-quarter:])
    if before and after:
        slower = sum(value > before.limit for value in values[-quarter:])
        ratio = after.seconds / before.seconds
        if slower >= MOST * quarter and ratio >= 1 + HALF:
            since = next(step for step in kept[quarter:] if step.seconds > before.limit)
            yield _slower(ratio, kept[quarter // 2], kept[-1], since)
            return
    usual = sorted(values)[len(values) // 4]  # what holds a step up makes it longer
    stalls = [step for step in kept if step.seconds * HALF > usual]
    if stalls and stalls[-1] is kept[len(stalls) - 1] and _begins(steps[0].row):
        return  # the first steps compile and fill caches: what held them up is over
    lost = sum(step.seconds - usual for step in stalls)
    least = 1 - MOST if len(stalls) < (1 - MOST) * len(kept) else HALF  # inputs of many lengths spread as well
    if stalls and lost >= least * sum(values) and _are_times(kept):
        often = every([place for place, step in enumerate(kept) if step in stalls])
        longest = sorted(stalls, reverse=True, key=lambda step: step.seconds)
        yield _stalled(lost, sum(values), f"{seconds_text(usual)}{often}", longest)


def _begins(row: Row) -> bool:
    """Whether a line can be of a training's beginning: it names no later epoch."""
    return all(int(number) <= 1 for number in _EPOCH.findall(row.text))


def _are_times(steps: Sequence[_Step]) -> bool:
    return all(it.kind is Kind.TIME for it in steps[0].row.quantities if it.shown == steps[0].shown)


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
