"""Judges what laggard and other tools say of the dumps of a simulated job, whose truth is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from simulator.dump_cases import DumpCase

from laggard.kit.errors import UsageError
from laggard.locate import verdict
from laggard.recording.reader import read_recording
from quality.answer import NO_DUMP, Named
from quality.scope import NOBODY, dump_scope_of

HELD_OUT = 1000
"""The first of the seeds that nobody has looked at while rules were written."""

MARKS = ("right", "narrowed", "unsure", "wrong")
REFUSED = "refused"
"""The mark of dumps that another tool ended with an error on."""
ACCUSING = ("mismatch", "deadlock")
UNSEEN = "unseen_ranks"
"""The note of ranks that left no dump, which accuses nobody."""
OUT_OF_SCOPE = "out of scope"


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
    """What another tool said of the dumps beside the folder. One that names several ranks accuses all of them, each;
    where it says no more than that a rank left no dump, it accuses nobody. Its failure is no answer, but REFUSED."""
    try:
        named = tool(folder)
    except RuntimeError as refused:
        return Answer(REFUSED, (), (), (str(refused),))
    accused = tuple(one.ranks for one in named if one.kind != NO_DUMP)
    unseen = tuple(rank for one in named if one.kind == NO_DUMP for rank in one.ranks)
    return Answer("fail" if accused else "unknown", accused, ((UNSEEN, unseen),) if unseen else (), ())


def judge_tool(case: DumpCase, answer: Answer) -> str:
    """One of MARKS, or REFUSED, for a tool that names ranks alone. Several, with the one at fault, are narrowed."""
    accused = {rank for ranks in answer.culprits for rank in ranks}
    if answer.verdict == REFUSED:
        return REFUSED
    if case.expected == "nobody":
        return "wrong" if accused else "right"
    if not accused:
        return "right" if all_left_none(case, answer) else "unsure"
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
    return "right" if all_left_none(case, answer) else "unsure"


def all_left_none(case: DumpCase, answer: Answer) -> bool:
    """Whether all at fault left no dump, and the answer says so of one of them."""
    unseen = {rank for kind, ranks in answer.notes if kind == UNSEEN for rank in ranks}
    return not case.culprits - case.without and bool(case.culprits & unseen)


def table(results: Counter[tuple[str, str]]) -> str:
    """The counts of each kind, as a table in Markdown."""
    kinds = list(dict.fromkeys(kind for kind, _ in results))
    marks = [*MARKS, *([REFUSED] if any(mark == REFUSED for _, mark in results) else [])]
    lines = [f"| kind | {' | '.join(marks)} |", "|---|" + "---|" * len(marks)]
    for kind in kinds:
        lines.append(f"| {kind} | {' | '.join(str(results[kind, mark]) for mark in marks)} |")
    sums = [sum(results[kind, mark] for kind in kinds) for mark in marks]
    return "\n".join([*lines, f"| all | {' | '.join(map(str, sums))} |"])


HEAD = (
    "tool",
    "as",
    "recall in its scope",
    "recall over all",
    "wrong in its scope",
    "wrong over all",
    "accuses where nobody is at fault",
    "ended with an error",
)


class Judged(NamedTuple):
    """What an answer to one case was worth: one of MARKS, or REFUSED. `state`: WHOLE or FOUND; `sends`: whether the
    job's ranks send to each other, as those of a pipeline do."""

    kind: str
    state: str
    sends: bool
    mark: str

    def claimed(self, tool: str) -> bool:
        """Whether the tool claims to name somebody in it. It is asked about jobs in which nobody is at fault."""
        return self.kind in NOBODY or dump_scope_of(tool).holds(self.kind, self.state, self.sends)


def compared(of_tools: Mapping[str, Sequence[Judged]], run_as: Mapping[str, str]) -> str:
    """The tools beside each other, as tables in Markdown: in what each claims and over all, and by kind. Recall is of
    the cases in which somebody is at fault: those right or narrowed, first as a share, then both counts."""
    parts = ["\n".join(markdown([HEAD, *(of_tool(found, tool, run_as[tool]) for tool, found in of_tools.items())]))]
    for state in dict.fromkeys(one.state for found in of_tools.values() for one in found):
        rows = [(f"dumps {state}", *of_tools)]
        kinds = dict.fromkeys(one.kind for found in of_tools.values() for one in found)
        rows += [(kind, *(cell(found, tool, kind, state) for tool, found in of_tools.items())) for kind in kinds]
        parts.append("\n".join(markdown(rows)))
    return "\n\n".join(parts)


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]


def of_tool(found: Sequence[Judged], tool: str, run_as: str) -> tuple[str, ...]:
    """A tool's row."""
    faulty = [one for one in found if one.kind not in NOBODY]
    claimed = Counter(one.mark for one in faulty if one.claimed(tool))
    over_all = Counter(one.mark for one in faulty)
    nobody = Counter(one.mark for one in found if one.kind in NOBODY)
    answered = sum(nobody.values()) - nobody[REFUSED]
    return (
        tool,
        run_as,
        recall(claimed),
        recall(over_all),
        share(claimed, "wrong"),
        share(over_all, "wrong"),
        f"{nobody['wrong']} of {answered}" if answered else "-",
        share(Counter(one.mark for one in found), REFUSED),
    )


def recall(marks: Counter[str]) -> str:
    cases = sum(marks.values())
    if not cases:
        return OUT_OF_SCOPE
    found = marks["right"] + marks["narrowed"]
    return f"{found / cases:.2f} ({marks['right']} right, {marks['narrowed']} narrowed, of {cases})"


def share(marks: Counter[str], mark: str) -> str:
    cases = sum(marks.values())
    return f"{marks[mark]} of {cases}" if cases else OUT_OF_SCOPE


def cell(found: Sequence[Judged], tool: str, kind: str, state: str) -> str:
    """The marks of a kind that there are, such as `17 right, 3 wrong`, and apart those of what the tool claims not."""
    here = [one for one in found if (one.kind, one.state) == (kind, state)]
    ours = Counter(one.mark for one in here if one.claimed(tool))
    others = Counter(one.mark for one in here if not one.claimed(tool))
    said = [told(ours)] if ours else []
    return "; ".join([*said, *([f"{OUT_OF_SCOPE}: {told(others)}"] if others else [])]) or "-"


def told(marks: Counter[str]) -> str:
    return ", ".join(f"{marks[mark]} {mark}" for mark in (*MARKS, REFUSED) if marks[mark])


def failures(errors: Mapping[str, Counter[str]]) -> list[str]:
    """A line for each tool that ended with errors: with which, and how often."""
    return [
        f"- {tool} ended with an error: " + ", ".join(f"{text} ({count})" for text, count in found.most_common())
        for tool, found in errors.items()
        if found
    ]
