"""A campaign for people: one line a trial while it runs, and the answer at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from laggard.recommend.advice.words import gain_text
from laggard.terminal.parts import Line, Part, Table, plain_text
from laggard.text.ascii_parts import ascii_parts
from laggard.text.words import ascii_line, counted, printable_line, seconds_text
from laggard.tune.campaign import Progress
from laggard.tune.report.documents import FinalistRow, ImportanceRow, TuneDocument
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
    return plain_text(tune_parts(document))


def tune_parts(document: TuneDocument) -> list[Part]:
    """The answer, what shows it, and how the campaign went."""
    return ascii_parts(_parts(document))


def _parts(own: TuneDocument) -> Iterator[Part]:
    yield Line(_headline(own), _headline_style(own))
    for item in own.recommendation.items:
        yield Line(f"  {item.apply}", whole=True)
    if own.finalists:
        yield Line("")
        yield Line("Against the default, in interleaved pairs:", "name")
        yield _finalists(own.finalists)
    yield from (Line(f"  as fast, or not told apart: {changes_text(each)}") for each in own.tied)
    yield Line("")
    counts = Counter(each.status for each in own.trials)
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    yield Line(f"{counted(len(own.trials), 'trial')} ({told}).")
    yield Line(f"Ended: {own.ended}. A repeat differs by {own.noise:.1%}; {_drift(own)}.")
    if own.importances:
        yield Line("What the parameters change, best value over worst (90 %):", "name")
        yield _importances(own.importances)
    yield from (Line(f"Rejected: {it}={value} gave wrong results.", "warning") for it, value in own.rejected.items())
    yield from (
        Line(f"Never tried: {name} {', '.join('unset' if value is None else str(value) for value in values)}", "aside")
        for name, values in own.never_tried.items()
    )
    yield from map(Line, own.notes)


def _headline_style(own: TuneDocument) -> str:
    """The style that goes with the exit status: nothing measured is no answer."""
    if own.recommendation.items:
        return "ok"
    return "name" if any(each.seconds is not None for each in own.trials) else "unknown"


def _headline(own: TuneDocument) -> str:
    if not own.recommendation.items:
        return own.recommendation.notes[0]
    return f"Change {counted(len(own.recommendation.items), 'setting')}: {gain_text(own.recommendation.items[0].gain)}."


def _finalists(rows: Sequence[FinalistRow]) -> Table:
    names = ("times", "95 %", "verdict", "pairs", "changed")
    cells = tuple((f"{it.ratio:.3f}", _between(it), it.verdict, str(it.pairs), changes_text(it.changes)) for it in rows)
    return Table(names, cells, right=frozenset({"pairs"}))


def _between(each: FinalistRow) -> str:
    return "" if each.low is None or each.high is None else f"{each.low:.3f} to {each.high:.3f}"


def _drift(own: TuneDocument) -> str:
    if own.drift is None:
        return "the machine did not drift"
    return f"the machine drifted: the default takes {own.drift:.2f} times what it took at first"


def _importances(rows: Sequence[ImportanceRow]) -> Table:
    noise = "within the noise"
    cells = tuple(
        (it.parameter, f"{it.effect:.2f}", f"{it.low:.2f} to {it.high:.2f}", "" if it.matters else noise) for it in rows
    )
    return Table(("parameter", "times", "90 %", ""), cells)
