"""Judges what became of advice: whether it was done, and what the run that did it gained against the run before. Pure.

A gain is claimed only where the two runs do the same work on the same machines but for what was advised. Whatever else
differs makes it unknown, and is named: a gain that other changes had a part in is nobody's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from laggard.locate.against.alike import differences, not_alike
from laggard.locate.against.compare import DECISION_ERRORS, INTERVAL_ERRORS, MIN_STEP_SHARE
from laggard.locate.against.estimate import MIN_STEPS
from laggard.recommend.advice.values import Gain
from laggard.recommend.outcome.done import Done, done_of
from laggard.recommend.outcome.values import (
    CULPRIT,
    FINDING,
    GAINED,
    LOST,
    MAX_TEXT,
    NO_DIFFERENCE,
    UNKNOWN,
    YES,
    Advised,
    Outcome,
    SeenRun,
)
from laggard.text.words import clipped, counted, joined
from laggard.wire.comparison import Difference
from laggard.wire.digest import MAX_NODES, Digest

_SHAPE: Final = ("script", "world size")
_NODES: Final = "nodes"
_BYTES: Final = "bytes of "
_MAX_REASONS: Final = 4


class _Ratio(NamedTuple):
    """Throughput over that before, with its 95 % interval; `errors`: how many standard errors its logarithm has."""

    ratio: float
    low: float
    high: float
    errors: float


def judged(
    advised: Sequence[Advised], before: SeenRun, now: SeenRun, judged_at: float | None = None
) -> tuple[Advised, ...]:
    """Each piece of advice for the run `before` with what became of it in the run `now`."""
    found = [done_of(it, before, now) for it in advised]
    yes = [(it, done) for it, done in zip(advised, found, strict=True) if done.done == YES]
    reasons = list(not_comparable(before.digest, now.digest, yes))
    causes = _causes([done for _, done in yes])
    ratio = _ratio(before.digest, now.digest) if not reasons else None
    run = {"job_id": now.digest.job_id, "started_at": now.digest.started_at, "judged_at": judged_at}
    return tuple(
        structs.replace(it, outcome=structs.replace(_outcome(it, done, yes, reasons, causes, ratio), **run))
        for it, done in zip(advised, found, strict=True)
    )


def _outcome(
    advised: Advised,
    done: Done,
    yes: Sequence[tuple[Advised, Done]],
    reasons: Sequence[str],
    causes: int,
    ratio: _Ratio | None,
) -> Outcome:
    told = Outcome(done=done.done, how=_clip(done.how))
    if done.done not in (YES, UNKNOWN):
        return told
    if ratio is None:
        return structs.replace(told, why=_clip(f"the two runs cannot be compared: {'; '.join(reasons[:_MAX_REASONS])}"))
    told = structs.replace(told, ratio=_round(ratio.ratio), low=_round(ratio.low), high=_round(ratio.high))
    if done.done == UNKNOWN:
        return structs.replace(told, why="it is not known whether it was done")
    if causes > 1:
        others = joined([it.key for it, _ in yes if it.name != advised.name][:_MAX_REASONS])
        return structs.replace(told, why=_clip(f"done together with {others}: the gain is that of all"))
    return structs.replace(told, result=_result(ratio), as_promised=_as_promised(advised.promised, ratio))


def not_comparable(before: Digest, now: Digest, done: Sequence[tuple[Advised, Done]] = ()) -> Iterator[str]:
    """Yields why a gain could be another change's than those that were done, one reason each. Advice about collectives
    may change how many there are, and how large."""
    for digest, which in ((before, "the run before"), (now, "the later run")):
        if not digest.script:
            yield f"{which} does not tell its script"
        if digest.steps < MIN_STEPS:
            yield f"{which} has {counted(digest.steps, 'step')} after the warm-up, {MIN_STEPS} are needed"
        if digest.ranks_seen < digest.world_size:
            yield f"{which} was seen of {digest.ranks_seen} of {digest.world_size} ranks"
        if not digest.environment:
            yield f"{which} does not tell its versions and variables"
    changes_collectives = any(it.target not in (CULPRIT, FINDING) for it, _ in done)
    for unlike in not_alike(before, now):
        if unlike.name in _SHAPE or not changes_collectives:
            yield _text(unlike)
    names = frozenset[str]().union(*(it.names for _, it in done))
    for other in differences(before, now) or ():
        if other.name == _NODES or other.name in names or (other.name.startswith(_BYTES) and changes_collectives):
            continue
        yield _text(other)
    yield from _of_nodes(before, now, frozenset[str]().union(*(it.left for _, it in done)))


def _of_nodes(before: Digest, now: Digest, exchanged: frozenset[str]) -> Iterator[str]:
    held, holds = set(before.nodes), set(now.nodes)
    if not held or not holds:
        yield "a run does not tell its nodes"
    elif max(len(held), len(holds)) >= MAX_NODES:
        yield f"there are {MAX_NODES} nodes or more, of which not all are kept"
    elif (left := held - holds) - exchanged or len(held) != len(holds):
        came = holds - held
        without_reason = sorted(left - exchanged) or sorted(left)
        yield f"nodes were changed that nobody advised to change: {_names(without_reason)} -> {_names(sorted(came))}"


def _names(nodes: Sequence[str]) -> str:
    return joined(nodes[:_MAX_REASONS]) or "none"


def _text(difference: Difference) -> str:
    return f"{difference.name} {difference.before or 'none'} -> {difference.now or 'none'}"


def _causes(done: Sequence[Done]) -> int:
    """Counts the changes: advice that one change fulfils counts as one."""
    causes: list[frozenset[str]] = []
    for each in done:
        same = [it for it in causes if it & each.cause]
        causes = [it for it in causes if it not in same]
        causes.append(each.cause.union(*same))
    return len(causes)


def _ratio(before: Digest, now: Digest) -> _Ratio | None:
    """Compares a usual step, with what few have beyond it where that is another for certain. The error of its logarithm
    by the delta method."""
    parts = [(before.step, now.step)]
    if abs(now.rare.seconds - before.rare.seconds) > DECISION_ERRORS * math.hypot(before.rare.error, now.rare.error):
        parts.append((before.rare, now.rare))
    old, new = (sum(pair[which].seconds for pair in parts) for which in (0, 1))
    if not (old > 0 and new > 0):
        return None
    old_error, new_error = (math.hypot(*(pair[which].error for pair in parts)) for which in (0, 1))
    error = math.hypot(old_error / old, new_error / new)
    half = min(INTERVAL_ERRORS * error, 50.0)
    ratio = old / new
    errors = abs(math.log(ratio)) / max(error, 1e-9)
    return _Ratio(ratio, ratio * math.exp(-half), ratio * math.exp(half), errors)


def _result(ratio: _Ratio) -> str:
    """Decides as where two runs are compared: a difference counts that is beyond chance and more than a trifle."""
    if ratio.errors < DECISION_ERRORS or abs(1 - 1 / ratio.ratio) < MIN_STEP_SHARE:
        return NO_DIFFERENCE
    return GAINED if ratio.ratio > 1 else LOST


def _as_promised(promised: Gain, ratio: _Ratio) -> bool | None:
    if promised.low is None and promised.high is None:
        return None
    low = 0.0 if promised.low is None else promised.low
    high = math.inf if promised.high is None else promised.high
    return ratio.high >= low and ratio.low <= high


def _clip(text: str) -> str:
    return clipped(text, MAX_TEXT)


def _round(value: float) -> float:
    return float(f"{value:.4g}")
