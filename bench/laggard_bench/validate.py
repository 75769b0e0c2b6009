"""Checks cases: their files, each line of their recordings, and the truths that are there. Standard library alone.

    python laggard_bench/validate.py CASES

A line for each thing that is wrong, the first of each file. Status 0: all is right; 1: something is not; 64: no cases.
"""

import argparse
import concurrent.futures
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from laggard_bench.answer import USAGE, cases_in, chosen
from laggard_bench.formats import ANY_NUMBER, FormatError, checker, lines, parse, read, schema, shown
from laggard_bench.score import truth_problem

RANK_FILE: Final = re.compile(r"rank-(0|[1-9]\d{0,6})\.jsonl")
BY_KIND: Final = {kind: checker("recording", kind) for kind in schema("recording")["$defs"]}
"""What checks a line, by its kind; the first line of a file is `head`."""


def case_problems(case: Path) -> Iterator[str]:
    """What is wrong with a case."""
    yield from (f"{path}: no file of a case" for path in sorted(case.iterdir()) if path.name not in NAMES)
    truth = None
    if (case / "truth.json").exists():
        try:
            truth = read(case / "truth.json")
            truth_problem(truth, case.name)
        except (OSError, FormatError) as error:
            yield f"{case / 'truth.json'}: {error}"
            truth = None
    files = sorted((case / "recording").iterdir())
    if not files:
        yield f"{case / 'recording'}: no rank's file"
    for path in files:
        problem = file_problem(path, truth)
        if problem:
            yield problem


NAMES: Final = ("recording", "truth.json")


def file_problem(path: Path, truth: dict[str, Any] | None) -> str:
    """The first thing that is wrong with a rank's file; empty: nothing."""
    found = RANK_FILE.fullmatch(path.name)
    if not found or path.is_symlink() or not path.is_file():
        return f"{path}: no file rank-N.jsonl"
    rank, at = int(found[1]), 0
    if truth is not None and rank >= truth["ranks"]:
        return f"{path}: a rank of a job of {truth['ranks']}"
    wanted = ["head", "rank"]
    try:
        for number, line in lines(path):
            at = number
            line_problem(parse(line, ANY_NUMBER), rank, wanted.pop(0) if wanted else "")
    except FormatError as error:
        return f"{path}:{at}: {error}"
    except OSError as error:
        return f"{path}: {error}"
    return f"{path}: lacks a line of kind {wanted[0]}" if wanted else ""


def line_problem(line: Any, rank: int, wanted: str) -> None:
    """Raises FormatError where a line is not of the kind that is wanted (empty: any but the first), or of that rank."""
    if not isinstance(line, dict):
        raise FormatError(f"{shown(line)} is no object")
    kind = line.get("kind", "head")
    if not isinstance(kind, str) or kind not in BY_KIND:
        raise FormatError(f"kind: {shown(kind)} is none of {', '.join(BY_KIND)}")
    if wanted and kind != wanted:
        raise FormatError(f"a line of kind {kind} where {wanted} stands")
    if not wanted and kind == "head":
        raise FormatError('lacks "kind"')
    BY_KIND[kind](line)
    if kind != "head" and line["rank"] != rank:
        raise FormatError(f"it is of rank {line['rank']}")


def problems(case: Path) -> list[str]:
    return list(case_problems(case))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="CASES")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes beside each other")
    parser.add_argument("--case", action="append", default=[], help="this one alone; may be given again")
    flags = parser.parse_args(arguments)
    try:
        cases = chosen(cases_in(flags.folder), flags.case)
    except ValueError as error:
        print(f"validate: {error}", file=sys.stderr)
        return USAGE
    wrong = 0
    with concurrent.futures.ProcessPoolExecutor(flags.workers) as pool:
        for found in pool.map(problems, cases):
            wrong += bool(found)
            for problem in found:
                print(ascii(problem)[1:-1])
    print(f"{len(cases)} cases, something wrong in {wrong}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
