"""Judges what laggard says of the dumps of a simulated job, whose truth is known."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from simulator.dump_cases import DumpCase

from laggard.kit.errors import UsageError
from laggard.locate import verdict
from laggard.recording.reader import read_recording

HELD_OUT = 1000
"""The first of the seeds that nobody has looked at while rules were written."""

MARKS = ("right", "narrowed", "unsure", "wrong")
ACCUSING = ("mismatch", "deadlock")
UNSEEN = "unseen_ranks"
"""The note of ranks that left no dump, which accuses nobody."""


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
        return Answer("refused", (), (), (str(refused),))
    reasons = tuple(text for culprit in location.culprits for text in culprit.evidence[:1])
    return Answer(
        location.verdict.value,
        tuple(culprit.ranks for culprit in location.culprits),
        tuple((note.kind, note.ranks) for note in location.notes),
        (*reasons, *(note.text for note in location.notes)),
    )


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
    return "right" if all_left_none(case, answer) else "unsure"


def all_left_none(case: DumpCase, answer: Answer) -> bool:
    """Whether all at fault left no dump, and the answer says so of one of them."""
    unseen = {rank for kind, ranks in answer.notes if kind == UNSEEN for rank in ranks}
    return not case.culprits - case.without and bool(case.culprits & unseen)


def table(results: Counter[tuple[str, str]]) -> str:
    """The counts of each kind, as a table in Markdown."""
    kinds = list(dict.fromkeys(kind for kind, _ in results))
    lines = [f"| kind | {' | '.join(MARKS)} |", "|---|" + "---|" * len(MARKS)]
    for kind in kinds:
        lines.append(f"| {kind} | {' | '.join(str(results[kind, mark]) for mark in MARKS)} |")
    sums = [sum(results[kind, mark] for kind in kinds) for mark in MARKS]
    return "\n".join([*lines, f"| all | {' | '.join(map(str, sums))} |"])
