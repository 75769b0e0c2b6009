"""The outcomes of advice in words: one sentence, the table of kinds, then each piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from laggard.recommend.advice.values import Gain
from laggard.recommend.advice.words import gain_text
from laggard.recommend.outcome.calibration import (
    NOT_COMPARABLE,
    NOT_DONE,
    NOT_KNOWN,
    WAITING,
    outcome_of,
)
from laggard.recommend.outcome.values import (
    CULPRIT,
    FINDING,
    GAINED,
    LOST,
    NO_DIFFERENCE,
    AdviceDocument,
    Advised,
    KindOutcomes,
    RunOutcomes,
)
from laggard.text.users import user_text
from laggard.text.words import counted, joined, printable_line, utc_text

_WORDS: Final = {
    WAITING: "no later run yet",
    NOT_DONE: "not done",
    NOT_KNOWN: "not known whether it was done",
    GAINED: "done, and gained",
    NO_DIFFERENCE: "done, and made no difference",
    LOST: "done, and made it slower",
    NOT_COMPARABLE: "done; what it gained is not known",
}


def sentence(kinds: Sequence[KindOutcomes]) -> str:
    """`Of 5 pieces of advice that were done and measured, 3 gained, 1 made no difference and 1 made it slower.`"""
    gained, same, lost = (sum(getattr(it, name) for it in kinds) for name in ("gained", "no_difference", "lost"))
    measured, every = gained + same + lost, sum(it.advised for it in kinds)
    if not every:
        return "No advice is known."
    if not measured:
        done = sum(it.done for it in kinds)
        text = f", of which {done} {'was' if done == 1 else 'were'} done" if done else ", none known to be done"
        return f"{counted(every, 'piece')} of advice{text}; what was gained is not known of any."
    parts = [f"{gained} gained"]
    parts += [f"{same} made no difference"] if same else []
    parts += [f"{lost} made it slower"] if lost else []
    within, promised = (sum(getattr(it, name) for it in kinds) for name in ("as_promised", "promised"))
    as_promised = f" {within} of {promised} gained what was promised." if promised else ""
    which = "the one piece of advice that was" if measured == 1 else f"{measured} pieces of advice that were"
    return f"Of {which} done and measured, {joined(parts)}.{as_promised}"


def table(kinds: Iterable[KindOutcomes]) -> Iterator[str]:
    """A line for each kind, under one that names the columns."""
    rows: list[tuple[str, ...]] = [
        ("kind", "advised", "done", "gained", "no difference", "slower", "not comparable", "as promised")
    ]
    rows += [
        (
            printable_line(it.kind, 60),
            *map(str, (it.advised, it.done, it.gained, it.no_difference, it.lost, it.not_comparable)),
            f"{it.as_promised} of {it.promised}" if it.promised else "-",
        )
        for it in kinds
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        first, *numbers = row
        cells = [first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()


def lines(advised: Advised) -> Iterator[str]:
    """Yields what was advised, what became of it, and by what that is known."""
    yield printable_line(f"{advice_text(advised)}: {outcome_text(advised)}", 400)
    told = advised.outcome
    if told is None:
        return
    if told.how:
        yield f"    {printable_line(told.how, 400)}"
    if told.why:
        yield f"    {printable_line(told.why, 400)}"
    if told.as_promised is not None or (told.ratio is not None and _is_promised(advised.promised)):
        within = "" if told.as_promised is None else ", as promised" if told.as_promised else ", not as promised"
        yield f"    promised: {gain_text(advised.promised)}{within}"


def advice_text(advised: Advised) -> str:
    if advised.target == FINDING:
        return f"Repair {advised.key} on {joined(advised.nodes[:4])}"
    if advised.target == CULPRIT:
        return advised.reason or f"A {advised.key}"
    if not advised.recommended:
        return f"Remove {advised.key}{f'={advised.current}' if advised.current else ''}"
    return f"Set {advised.key} to {advised.recommended}{f', then {advised.current}' if advised.current else ''}"


def outcome_text(advised: Advised) -> str:
    told, words = advised.outcome, _WORDS[outcome_of(advised)]
    if told is None or told.ratio is None:
        return words
    between = "" if told.low is None or told.high is None else f" ({told.low:.2f} to {told.high:.2f})"
    since = "" if outcome_of(advised) in (GAINED, NO_DIFFERENCE, LOST) else "the later run was "
    return f"{words}: {since}{told.ratio:.2f} times as fast{between}"


def _is_promised(gain: Gain) -> bool:
    return gain.ratio is not None or gain.low is not None or gain.high is not None


def document_lines(document: AdviceDocument) -> Iterator[str]:
    """The answer, the table of kinds, then run after run."""
    yield sentence(document.kinds)
    if document.history.state in ("off", "failed"):
        yield f"  No history is kept: {printable_line(document.history.reason)}"
    if document.kinds:
        yield ""
        yield from table(document.kinds)
    for run in document.runs:
        if run.advised:
            yield ""
            yield _run_text(run)
            for it in run.advised:
                yield from (f"  {line}" for line in lines(it))


def _run_text(run: RunOutcomes) -> str:
    began = f", began {utc_text(run.started_at)}" if run.started_at else ""
    script = f" ({run.script})" if run.script else ""
    whose = f" of {user_text(run.owner)}" if run.owner >= 0 else ""
    return printable_line(f"Job {run.job_id or '?'}{script}{whose}{began}, {counted(run.world_size, 'rank')}:")
