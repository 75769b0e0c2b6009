"""A campaign for people: one line a trial while it runs, and the answer at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from laggard.collector.recommend.advice.words import gain_text
from laggard.text.words import ascii_line, counted, printable_line, seconds_text
from laggard.tune.campaign import Progress
from laggard.tune.report.documents import FinalistRow, TuneDocument
from laggard.tune.space import changes


def progress_line(progress: Progress) -> str:
    """`[14/120] channels  NCCL_BUFFSIZE=8388608: 3.1 ms; best so far 1.21 times the default; 2 min used`."""
    board = progress.search.board
    what = changes_text(changes(board.space, progress.proposal.configuration)) or "the default"
    outcome = progress.outcome
    result = seconds_text(outcome.seconds) if outcome.seconds is not None else outcome.status.value
    detail = f" ({printable_line(outcome.detail, 80)})" if outcome.detail else ""
    resumed = ", measured before" if progress.resumed else ""
    place = f"[{progress.measured}/{progress.budget.trials}]"
    return ascii_line(f"{place} {progress.proposal.phase}: {what}: {result}{detail}{resumed}{_so_far(progress)}")


def _so_far(progress: Progress) -> str:
    board, best = progress.search.board, progress.search.best
    old, new = board.mean(board.default), board.mean(best)
    limit = progress.budget.seconds
    left = "" if limit is None else f"; {max(0.0, limit - progress.spent_seconds) / 60:.0f} min left"
    if old is None or new is None or best == board.default:
        return left
    return f"; best so far {2.718281828459045 ** (old - new):.2f} times the default{left}"


def changes_text(found: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={'unset' if value is None else value}" for name, value in found.items())


def render(document: TuneDocument) -> str:
    return "".join(f"{ascii_line(line)}\n" for line in _lines(document))


def _lines(own: TuneDocument) -> Iterator[str]:
    yield _headline(own)
    for item in own.recommendation.items:
        yield f"  {item.apply}"
    if own.finalists:
        yield ""
        yield "Against the default, in interleaved pairs:"
        yield from (f"  {_finalist_line(each)}" for each in own.finalists)
    yield from (f"  as fast, or not told apart: {changes_text(each)}" for each in own.tied)
    yield ""
    counts = Counter(each.status for each in own.trials)
    yield f"{counted(len(own.trials), 'trial')} ({', '.join(f'{count} {name}' for name, count in counts.items())})."
    yield f"Ended: {own.ended}. A repeat differs by {own.noise:.1%}; {_drift(own)}."
    yield from _importance_lines(own)
    yield from (f"Rejected: {name}={value} gave wrong results." for name, value in own.rejected.items())
    yield from (
        f"Never tried: {name} {', '.join('unset' if value is None else str(value) for value in values)}"
        for name, values in own.never_tried.items()
    )
    yield from own.notes


def _headline(own: TuneDocument) -> str:
    if not own.recommendation.items:
        return own.recommendation.notes[0]
    return f"Change {counted(len(own.recommendation.items), 'setting')}: {gain_text(own.recommendation.items[0].gain)}."


def _finalist_line(each: FinalistRow) -> str:
    between = "" if each.low is None or each.high is None else f" ({each.low:.3f} to {each.high:.3f})"
    return f"{each.ratio:.3f}{between} {each.verdict}, {counted(each.pairs, 'pair')}: {changes_text(each.changes)}"


def _drift(own: TuneDocument) -> str:
    if own.drift is None:
        return "the machine did not drift"
    return f"the machine drifted: the default takes {own.drift:.2f} times what it took at first"


def _importance_lines(own: TuneDocument) -> Iterator[str]:
    if own.importances:
        yield "What the parameters change, best value over worst (90 %):"
    for each in own.importances:
        word = "" if each.matters else ", within the noise"
        yield f"  {each.parameter}: {each.effect:.2f} ({each.low:.2f} to {each.high:.2f}){word}"
