"""docs/development/engines.md: one row an engine, one column a case. Pure: from results to text."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from engines.cases import BY_NAME, CASES, REFERENCE, Case
from engines.catalogue import ENGINES, LEFT_OUT, Engine
from engines.judge import NOT_TRIED, RIGHT, SILENT, UNSURE, WRONG, Judged, judge, judge_unseen

Results = Mapping[tuple[str, str], Mapping[str, Any]]
BARE: Final = "bare"

_HEAD: Final = (Path(__file__).parent / "head.md").read_text(encoding="utf-8")

_LEGEND: Final = (Path(__file__).parent / "legend.md").read_text(encoding="utf-8")


class Cell(NamedTuple):
    """`worth`: the worse of both answers; `whys`: what is said about each that is not right."""

    worth: str
    whys: tuple[str, ...] = ()


ENDS: Final = ("sigkill", "exception", "collective", "exit")
"""Cases in which a rank ends, so that a launcher that can starts the job anew."""
AFTER_RESTART: Final = "calm"
_ORDER: Final = (RIGHT, UNSURE, WRONG)


def cell(engine: Engine, case: Case, result: Mapping[str, Any]) -> Cell:
    """Judges a run by its recording and by the live answer."""
    amiss = _amiss(engine, case, result)
    if amiss:
        return Cell(NOT_TRIED, (amiss,))
    worst, whys = RIGHT, []
    for name, words in (("recorded", "said"), ("live", "said_live")):
        judged = _judged(engine, case, name, result)
        worth = WRONG if judged.worth == SILENT else judged.worth
        worst = max(worst, worth, key=_ORDER.index)
        if judged.worth != RIGHT:
            whys.append(_why(name, judged, str(result[words])))
    return Cell(worst, tuple(whys))


def _judged(engine: Engine, case: Case, name: str, result: Mapping[str, Any]) -> Judged:
    """Judges one answer. Once a launcher has started the job anew, the live answer may be on the new attempt."""
    if engine.unseen:
        return judge_unseen(result[name])
    names = (case.name, AFTER_RESTART) if engine.start == "torchrun" and name == "live" and case.name in ENDS else ()
    judged = [judge(each, result[name], engine.befallen(case.name), engine.uneven) for each in names or (case.name,)]
    return next((each for each in judged if each.worth == RIGHT), judged[0])


def _why(name: str, judged: Judged, said: str) -> str:
    return f'{name}: {judged.why}: "{said}"' if judged.worth != SILENT else f"{name}: nothing was said ({judged.why})"


def _amiss(engine: Engine, case: Case, result: Mapping[str, Any]) -> str:
    """Why the run says nothing about laggard; empty where it does."""
    if not case.fault and any(status != 0 for status in result["statuses"]):
        return f"the job ended with {result['statuses']}"
    if case.fault and not result["befell"]:
        return "the fault did not happen"
    return ""


def score(results: Results) -> tuple[int, int]:
    """How many of the results are right, and how many there are."""
    worths = [worth for _, _, (worth, _) in _cells(results)]
    return worths.count(RIGHT), len(worths)


def _cells(results: Results) -> Iterator[tuple[Engine, Case, Cell]]:
    for engine in ENGINES:
        for case in CASES:
            result = results.get((engine.name, case.name))
            if result is not None:
                yield engine, case, cell(engine, case, result)


def equal(results: Results, engine: Engine) -> str:
    """Whether the hooks changed nothing: yes, no, or empty where that is not known."""
    hooked, bare = results.get((engine.name, REFERENCE)), results.get((engine.name, BARE))
    if hooked is None or bare is None or not hooked["results"]:
        return ""
    return "yes" if hooked["results"] == bare["results"] else "NO"


def steps(results: Results, engine: Engine) -> str:
    """Whether each rank's steps were recorded, of the case of reference: yes, or how many of how many."""
    hooked = results.get((engine.name, REFERENCE))
    if hooked is None or not hooked["results"]:
        return ""
    pairs = [(hooked["steps"].get(str(each["rank"]), 0), each["steps"]) for each in hooked["results"]]
    return "yes" if all(found == made for found, made in pairs) else ", ".join(f"{f} of {m}" for f, m in pairs)


def page(results: Results) -> str:
    judged = list(_cells(results))
    worths = [each.worth for _, _, each in judged]
    others = {worth: worths.count(worth) for worth in (WRONG, UNSURE, NOT_TRIED) if worth in worths}
    counts = f"**{worths.count(RIGHT)} of {len(worths)} cells are right**"
    counts += "".join(f", {count} {worth}" for worth, count in others.items()) + "."
    head = _HEAD.format(
        cases=len(CASES),
        faults=sum(case.fault for case in CASES),
        innocents=sum(not case.fault for case in CASES),
        counts=counts if worths else "No engine has been tried yet.",
        titles=" | ".join(case.title for case in CASES),
        rules="---|" * len(CASES),
    )
    rows = "".join(_row(results, engine) for engine in ENGINES)
    legend = _LEGEND.format(cases="\n".join(f"| {case.title} | {case.what} |" for case in CASES))
    return head + rows + legend + _explanations(judged) + _words()


def _row(results: Results, engine: Engine) -> str:
    marks = []
    for case in CASES:
        result = results.get((engine.name, case.name))
        if case.name in engine.leaves_out:
            marks.append("-")
        else:
            marks.append("" if result is None else cell(engine, case, result).worth)
    return f"| {engine.title} | {' | '.join(marks)} | {equal(results, engine)} | {steps(results, engine)} |\n"


def _explanations(judged: list[tuple[Engine, Case, Cell]]) -> str:
    lines = [
        f"- {engine.title}, {case.title}, {why}\n"
        for engine, case, (worth, whys) in judged
        if worth != RIGHT
        for why in whys
    ]
    return "\n" + ("".join(lines) or "Nothing.\n")


def _words() -> str:
    """What a reader has to know of single engines."""
    lines = [f"- {engine.title}: {engine.words}.\n" for engine in ENGINES if engine.words]
    for engine in ENGINES:
        lines += [f"- {engine.title}, no {BY_NAME[name].title}: {why}.\n" for name, why in engine.leaves_out.items()]
    lines += [f"- Left out, {name}: {why}.\n" for name, why in LEFT_OUT.items()]
    return "\n## About the engines\n\n" + "".join(lines)
