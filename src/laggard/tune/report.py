"""The result of a campaign as a document (`laggard.tune/1`), text or HTML page, with a recommendation whose gain was
measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

import msgspec

from laggard.kit.parts import Line, Part, Table, ascii_parts, plain_text
from laggard.kit.words import ascii_line, counted, printable_line, seconds_text
from laggard.nccl.variables import shown
from laggard.recommend.advice.decide import recommended_files
from laggard.recommend.advice.values import Gain, Item, Recommendation, gain_text
from laggard.reports.svg import Chart, Series, render_charts
from laggard.tune.board import Board, ImportanceRow, importances
from laggard.tune.campaign import Ended, Progress, Subject
from laggard.tune.plan import Finalist, Found, Space, changes
from laggard.tune.statistics import TIE, Comparison
from laggard.tune.study import Kept

TUNE_SCHEMA: Final = "laggard.tune/1"


class TrialRow(msgspec.Struct, frozen=True):
    number: int
    phase: str
    changes: dict[str, Any]
    """The settings that differ from the default."""
    status: str
    seconds: float | None
    detail: str


class FinalistRow(msgspec.Struct, frozen=True):
    """One of the best few, against the default in interleaved pairs. `ratio`: throughput over the default's."""

    changes: dict[str, Any]
    ratio: float
    low: float | None
    high: float | None
    pairs: int
    verdict: str


class TuneDocument(msgspec.Struct, frozen=True):
    kind: str
    objective: str
    study: str
    ended: str
    trials: tuple[TrialRow, ...]
    finalists: tuple[FinalistRow, ...]
    tied: tuple[dict[str, Any], ...]
    importances: tuple[ImportanceRow, ...]
    noise: float
    """Standard deviation of a repeat, as a share of the time."""
    drift: float | None
    """The default's time late in the campaign over early; None: none was seen."""
    spent_seconds: float
    never_tried: dict[str, tuple[Any, ...]]
    """The values that no trial had, by parameter."""
    rejected: dict[str, str]
    """Values that made results wrong, by parameter."""
    recommendation: Recommendation
    notes: tuple[str, ...] = ()
    schema: str = TUNE_SCHEMA


def conclude(subject: Subject, ended: Ended, trials: Sequence[Kept], study: str) -> TuneDocument:
    board, found = ended.search.board, ended.found
    drift = board.drift()
    return TuneDocument(
        kind=subject.kind,
        objective=subject.objective,
        study=study,
        ended=found.ended,
        trials=tuple(_trial(subject.space, each) for each in trials),
        finalists=tuple(_finalist(subject.space, each) for each in found.finalists),
        tied=tuple(changes(subject.space, each) for each in found.tied),
        importances=importances(board, TIE),
        noise=board.noise(),
        drift=drift.ratio if drift else None,
        spent_seconds=ended.spent_seconds,
        never_tried=never_tried(board),
        rejected=dict(board.suspects),
        recommendation=recommendation(subject, found, study),
        notes=subject.notes,
    )


def recommendation(subject: Subject, found: Found, study: str) -> Recommendation:
    """Returns the changes of the best configuration; none where nothing is faster than what is, for certain."""
    if found.best is None:
        return Recommendation((), (), {}, (f"Nothing to change: {_why_nothing(found)}.", *subject.notes))
    own = found.best.comparison
    made = subject.changes(found.best.configuration)
    gain = Gain("measured", own.ratio, own.low, own.high)
    together = "" if len(made) == 1 else f", together with {', '.join(each.key for each in made)}"
    items = tuple(
        Item(
            target=each.target,
            key=each.key,
            current=each.current,
            recommended=each.recommended,
            reason=f"The fastest of the configurations that were tried, with right results{together}.",
            evidence=(evidence(own), f"{subject.objective}, study {study}"),
            gain=gain,
            risk="Measured on this machine and this work: measure again after a change of either.",
            apply=_apply(each.target, each.key, each.recommended),
            revert=_apply(each.target, each.key, each.current),
            source=f"laggard tune {subject.kind}",
        )
        for each in made
    )
    known = subject.situation
    files = recommended_files(items, shown(known.environment), known.deepspeed_document)
    return Recommendation((), items, files, subject.notes)


def evidence(own: Comparison) -> str:
    return f"{own.pairs} interleaved pairs with the default: {own.ratio:.3f} times as fast ({_interval(own)})"


def _interval(own: Comparison) -> str:
    return "no interval" if own.low is None or own.high is None else f"{own.low:.3f} to {own.high:.3f}, 95 %"


def _why_nothing(found: Found) -> str:
    if not found.finalists:
        return found.ended
    best = found.finalists[0].comparison
    return f"the best of the others is {best.word.value} against the default, {best.ratio:.3f} ({_interval(best)})"


def _apply(target: str, key: str, value: Any) -> str:
    if target in ("nccl_env", "launcher"):
        return f"unset {key}" if value is None else f"export {key}={value}"
    shown = str(value).lower() if isinstance(value, bool) else value
    return f"remove {key} from the configuration" if value is None else f"{key}: {shown}"


def never_tried(board: Board) -> dict[str, tuple[Any, ...]]:
    """Returns the values that no trial had: what the answer says nothing about."""
    tried = {(name, repr(value)) for each in board.configurations.values() for name, value in each.items()}
    missing = {
        each.name: tuple(value for value in each.choices if (each.name, repr(value)) not in tried)
        for each in board.space.parameters
    }
    return {name: values for name, values in missing.items() if values}


def _trial(space: Space, kept: Kept) -> TrialRow:
    own = kept.outcome
    return TrialRow(
        kept.number, kept.phase, changes(space, kept.configuration), own.status.value, own.seconds, own.detail
    )


def _finalist(space: Space, each: Finalist) -> FinalistRow:
    own = each.comparison
    return FinalistRow(changes(space, each.configuration), own.ratio, own.low, own.high, own.pairs, own.word.value)


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


_STYLE = (
    "body{font:14px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}pre{white-space:pre-wrap}"
    "table{border-collapse:collapse}td,th{padding:.2em .6em;text-align:left;border-bottom:1px solid #ddd}"
)


def render_page(own: TuneDocument) -> str:
    title = f"laggard tune {escape(own.kind)}"
    rows = "".join(
        f"<tr><td>{each.number}</td><td>{escape(each.phase)}</td><td>{escape(changes_text(each.changes) or 'default')}"
        f"</td><td>{'' if each.seconds is None else f'{each.seconds:.6g}'}</td><td>{escape(each.status)} "
        f"{escape(each.detail)}</td></tr>\n"
        for each in own.trials
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"</head><body>\n<h1>{title}</h1>\n<pre>{escape(render(own))}</pre>\n{_chart(own)}\n"
        f"<h2>Trials</h2>\n<table><tr><th>trial</th><th>phase</th><th>changed</th><th>{escape(own.objective)}</th>"
        f"<th>what came of it</th></tr>\n{rows}</table>\n</body></html>\n"
    )


def _chart(own: TuneDocument) -> str:
    times = [(float(each.number + 1), each.seconds, not each.changes) for each in own.trials if each.seconds]
    series = (
        Series("tried", tuple((place, seconds) for place, seconds, default in times if not default)),
        Series("default", tuple((place, seconds) for place, seconds, default in times if default)),
    )
    if not times:
        return ""
    return render_charts([Chart("Each trial", "trial", own.objective, tuple(each for each in series if each.points))])
