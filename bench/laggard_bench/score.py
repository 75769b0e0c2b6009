"""Scores an entry on a set of cases. Knows truths and answers, and nothing of any tool. Standard library alone.

    python laggard_bench/score.py CASES my_entry.py             asks the entry, and scores its answers
    python laggard_bench/score.py CASES ANSWERS.jsonl           answers that are there: a line of JSON for each case
    python laggard_bench/score.py CASES ANSWERS/                or a file NAME.json for each
    python laggard_bench/score.py CASES ANSWERS.jsonl --truth TRUTHS    truths that lie apart, in TRUTHS/NAME/truth.json
    ... --misses            each case that is not right, and how to make it again
    ... --format json       the figures for a program

Status 0: scored; 1: scored, but some answers are none: there is a line for each, and they count as if nothing had been
said; 64: nothing can be scored.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from laggard_bench.answer import USAGE, NoEntryError, add_flags, answers, cases_in, check_answer, chosen, nothing, told
from laggard_bench.figures import figures, table
from laggard_bench.formats import FormatError, checker, lines, parse, read, shown
from laggard_bench.judge import Judged, judge, named_nodes

MAX_SHOWN = 4
"""How many culprits, nodes or twice as many ranks a line of --misses shows."""

check_truth = checker("truth")


def truths_in(folder: Path) -> dict[str, dict[str, Any]]:
    """The truths of a set, by case. Raises ValueError, with a line for each that is none."""
    found, problems = {}, []
    for path in sorted(folder.glob("*/truth.json")):
        try:
            truth = read(path)
            truth_problem(truth, path.parent.name)
            found[path.parent.name] = truth
        except (OSError, FormatError) as error:
            problems.append(f"{path}: {error}")
    if problems:
        raise ValueError("\n".join(problems))
    if not found:
        raise ValueError(f"{folder} has no truths: a truth is a file CASE/truth.json")
    return found


def truth_problem(truth: Any, case: str) -> None:
    """Raises FormatError where it is not the truth of that case."""
    check_truth(truth)
    if truth["case"] != case:
        raise FormatError(f"it is the truth of {shown(truth['case'])}")
    entries = truth["tolerated"][:]
    for fault in truth["faults"]:
        entries += fault["accepted"] + fault["same_in_any_recording"]
    if any(rank >= truth["ranks"] for entry in entries for rank in entry["ranks"]):
        raise FormatError(f"it names a rank that a job of {truth['ranks']} has not")


def answer_problem(answer: Any, truth: dict[str, Any]) -> None:
    """Raises FormatError where it is no answer on that case."""
    check_answer(answer)
    for name in ("culprits", "suspects"):
        for place, each in enumerate(answer.get(name, ())):
            beyond = [rank for rank in each.get("ranks", ()) if rank >= truth["ranks"]]
            if beyond:
                raise FormatError(f"{name}[{place}] names rank {beyond[0]} of a job of {truth['ranks']}")


def given_in(path: Path) -> Iterator[tuple[str, str, Any]]:
    """Answers that are there: where each stands, of which case it is, and itself, or the FormatError that it is."""
    if path.is_dir():
        for file in sorted(path.glob("*.json")):
            try:
                yield str(file), file.stem, read(file)
            except FormatError as error:
                yield str(file), file.stem, error
        return
    for number, line in lines(path):
        place = f"{path}:{number}"
        try:
            answer = parse(line)
            check_answer(answer)
            if "case" not in answer:
                raise FormatError('lacks "case"')
            yield place, answer["case"], answer
        except FormatError as error:
            yield place, "", error


def sorted_out(
    given: Iterable[tuple[str, str, Any]], truths: dict[str, dict[str, Any]]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The answers by case, and a line for each that is none. Of several on one case the first counts."""
    found: dict[str, dict[str, Any]] = {}
    problems = []
    for place, case, answer in given:
        try:
            if isinstance(answer, FormatError):
                raise answer
            if case not in truths:
                raise FormatError(f"there is no case {shown(case)} with a truth")
            if case in found:
                raise FormatError(f"a second answer on {case}")
            answer_problem(answer, truths[case])
            found[case] = answer
        except FormatError as error:
            problems.append(f"{place}: {error}")
    return found, problems


def asked(flags: argparse.Namespace, truths: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str, Any]]:
    """The answers of an entry, on the cases that have a truth. Raises ValueError, NoEntryError."""
    cases = chosen([case for case in cases_in(flags.folder) if case.name in truths], flags.case)
    for answer in told(answers(cases, flags.entry, flags.workers, flags.seconds), len(cases)):
        if flags.save:
            with flags.save.open("a", encoding="utf-8") as file:
                file.write(json.dumps(answer) + "\n")
        if "error" in answer and answer["verdict"] == "unknown":
            yield answer["case"], answer["case"], FormatError(ascii(answer["error"])[1:-1])
        else:
            yield answer["case"], answer["case"], answer


def misses(judged: Sequence[Judged]) -> Iterable[str]:
    """What was said of each case that is not right, and how to make it again."""
    for each in judged:
        if each.clean:
            continue
        truth = each.truth
        sizes = [(fault["name"], fault["size"]) for fault in truth["faults"]]
        named = [
            (it["kind"], it.get("ranks", [])[: 2 * MAX_SHOWN], named_nodes(it)[:MAX_SHOWN])
            for it in each.answer["culprits"][:MAX_SHOWN]
        ]
        yield f"{truth['case']}: {truth['ranks']} ranks, {truth['layout']}, recorded {truth['recorded'] or 'whole'}"
        yield f"    truth {sizes}, {[it for f in truth['faults'] for it in f['accepted'][:1]]}"
        yield f"    answer {each.answer['verdict']} {ascii(named)}; {', '.join(each.faults)}; false {len(each.false)}"
        command = f"make.py --seed {truth['seed']} --case {truth['case']}-{truth['family']} --out DIR"
        yield f"    python laggard_bench/{command}"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", type=Path, metavar="CASES")
    made.add_argument("entry", metavar="ENTRY", help="a file .py or a module, or answers: a file .jsonl or a folder")
    made.add_argument("--truth", type=Path, metavar="TRUTHS", help="where the truths lie (default: CASES)")
    made.add_argument("--save", type=Path, metavar="FILE", help="add an entry's answers to this file")
    made.add_argument("--format", choices=("text", "json"), default="text")
    made.add_argument("--misses", action="store_true", help="show each case that is not right")
    add_flags(made)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    flags = parser().parse_args(arguments)
    try:
        truths = truths_in(flags.truth or flags.folder)
        unknown = sorted(set(flags.case) - truths.keys())
        if unknown:
            raise ValueError(f"no such case with a truth: {', '.join(unknown)}")
        there = Path(flags.entry)
        is_there = there.is_dir() or flags.entry.endswith(".jsonl")
        found, problems = sorted_out(given_in(there) if is_there else asked(flags, truths), truths)
    except (NoEntryError, OSError, ValueError) as error:
        print(f"score: {error}", file=sys.stderr)
        return USAGE
    if flags.case:
        truths = {case: truth for case, truth in truths.items() if case in flags.case}
    for problem in problems:
        print(f"no answer: {problem}", file=sys.stderr)
    judged = [judge(truth, found.get(case, nothing(""))) for case, truth in truths.items()]
    counted = figures(judged, len(truths.keys() - found.keys()))
    print(json.dumps(counted, indent=1) if flags.format == "json" else table(counted))
    if flags.misses:
        print("\n".join(misses(judged)))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
