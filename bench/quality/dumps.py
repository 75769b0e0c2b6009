"""Judges what laggard says of the dumps of a simulated job, whose truth is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from simulator.dump_cases import DumpCase

from laggard.errors import UsageError
from laggard.locate import verdict
from laggard.recording.reader import read_recording
from quality.answer import Named

HELD_OUT = 1000
"""The first of the seeds that nobody has looked at while rules were written."""

MARKS = ("right", "narrowed", "unsure", "wrong")
REFUSED = "refused"
"""The mark of dumps that another tool ended with an error on."""
ACCUSING = ("mismatch", "deadlock")


class Answer(NamedTuple):
    """What laggard said: the ranks of each culprit, and the ranks of each note, by its kind."""

    verdict: str
    culprits: tuple[tuple[int, ...], ...]
    notes: tuple[tuple[str, tuple[int, ...]], ...]
    reasons: tuple[str, ...]


def answer_of(folder: Path) -> Answer:
    try:
        location = verdict.locate(read_recording([folder]).timings)
    except UsageError as refused:
        return Answer(REFUSED, (), (), (str(refused),))
    reasons = tuple(text for culprit in location.culprits for text in culprit.evidence[:1])
    return Answer(
        location.verdict.value,
        tuple(culprit.ranks for culprit in location.culprits),
        tuple((note.kind, note.ranks) for note in location.notes),
        (*reasons, *(note.text for note in location.notes)),
    )


def answer_of_tool(tool: Callable[[Path], Sequence[Named]], folder: Path) -> Answer:
    """What another tool said of the dumps in the folder. One that names several ranks accuses all of them, each."""
    try:
        named = tool(folder)
    except RuntimeError as refused:
        return Answer(REFUSED, (), (), (str(refused),))
    return Answer("fail" if named else "unknown", tuple(one.ranks for one in named), (), ())


def judge_tool(case: DumpCase, answer: Answer) -> str:
    """One of MARKS, or REFUSED, for a tool that names ranks alone. Several, with the one at fault, are narrowed."""
    accused = {rank for ranks in answer.culprits for rank in ranks}
    if answer.verdict == REFUSED:
        return REFUSED
    if case.expected == "nobody":
        return "wrong" if accused else "right"
    if not accused:
        return "unsure"
    if accused <= case.culprits:
        return "right"
    return "narrowed" if case.culprits & accused and len(accused) < case.world_size else "wrong"


def judge_answer(case: DumpCase, answer: Answer) -> str:
    """One of MARKS. A culprit that left no dump is found where the note `unseen_ranks` names it."""
    notes = dict(answer.notes)
    said = {kind for kind, _ in answer.notes if kind in ACCUSING}
    if case.expected == "nobody":
        return "wrong" if answer.culprits or said or answer.verdict == "ok" else "right"
    if case.expected != "culprit":
        if answer.culprits or said - {case.expected}:
            return "wrong"
        if not said:
            return "unsure"
        told = set(notes[case.expected]) | {
            rank for rank in case.culprits if f"rank {rank} " in " ".join(answer.reasons)
        }
        return "right" if case.culprits & told else "wrong"
    if said or any(not case.culprits & set(ranks) for ranks in answer.culprits):
        return "wrong"
    if any(len(ranks) == 1 for ranks in answer.culprits):
        return "right"
    if answer.culprits or case.culprits & set(notes.get("stopped_gpu", ())):
        return "narrowed"
    if not case.culprits - case.without and case.culprits & set(notes.get("unseen_ranks", ())):
        return "right"
    return "unsure"


def table(results: Counter[tuple[str, str]]) -> str:
    """The counts of each kind, as a table in Markdown."""
    kinds = list(dict.fromkeys(kind for kind, _ in results))
    marks = [*MARKS, *([REFUSED] if any(mark == REFUSED for _, mark in results) else [])]
    lines = [f"| kind | {' | '.join(marks)} |", "|---|" + "---|" * len(marks)]
    for kind in kinds:
        lines.append(f"| {kind} | {' | '.join(str(results[kind, mark]) for mark in marks)} |")
    sums = [sum(results[kind, mark] for kind in kinds) for mark in marks]
    return "\n".join([*lines, f"| all | {' | '.join(map(str, sums))} |"])
