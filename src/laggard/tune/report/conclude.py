"""The step from a search that has ended to its document, with a recommendation whose gain was measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laggard.recommend.advice.files import recommended_files
from laggard.recommend.advice.values import Gain, Item, Recommendation
from laggard.tune.campaign import Ended
from laggard.tune.report.documents import FinalistRow, ImportanceRow, TrialRow, TuneDocument
from laggard.tune.search.board import Board
from laggard.tune.search.importance import importances
from laggard.tune.search.plan import Finalist, Found
from laggard.tune.space import Space, changes
from laggard.tune.statistics import TIE, Comparison
from laggard.tune.study.store import Kept
from laggard.tune.subject import Subject


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
        importances=tuple(ImportanceRow(*each) for each in importances(board, TIE)),
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
    return Recommendation((), items, recommended_files(items, subject.situation), subject.notes)


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
