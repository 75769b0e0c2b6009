"""Measures how right localisation is: simulated jobs with known faults.

    make bench-locate                           the whole benchmark, about an hour on two cores
    make bench-locate ARGS=--quick              a part of it, some minutes
    make bench-locate ARGS="--seed 12345"       cases that nobody has seen
    make bench-locate ARGS=--resume             goes on where a run was stopped
    make bench-locate ARGS="--tool my_adapter:locate --pythonpath DIR"

docs/development/benchmark.md says what a case is, how answers are scored, and how another tool is entered."""

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from common.figures import put_into
from common.refused import known, numbers, refuse
from quality.answer import Tool
from quality.laggard import locate
from quality.matrix import DEVELOPMENT_SEED, entries
from quality.report import document, misses
from quality.run import run

REPOSITORY = Path(__file__).resolve().parents[1]
WHOLE, QUICK = (6, 9, 39), (1, 1, 2)  # cases of each slow fault and size, of each way to stop, of each innocent kind


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seed", type=int, default=DEVELOPMENT_SEED, help="of the cases; another one gives fresh cases")
    made.add_argument("--quick", action="store_true")
    made.add_argument("--cases", type=numbers(3), metavar="SLOW,STOPPED,INNOCENT", help="how many of each kind")
    made.add_argument("--row", action="append", help="only these rows of the tables, such as NIC")
    made.add_argument("--tool", metavar="MODULE:FUNCTION", help="another tool, in laggard's place")
    made.add_argument("--pythonpath", type=Path, help="where its module lies")
    made.add_argument(
        "--no-steps", action="store_true", help="do not count steps to the verdict, which takes half the time"
    )
    made.add_argument("--processes", type=int, default=2)
    made.add_argument("--out", type=Path, default=REPOSITORY / "out" / "bench-locate", help="where the results go")
    made.add_argument("--resume", action="store_true", help="go on where a run with the same arguments was stopped")
    made.add_argument("--minutes", type=float, help="stop after so many, and report on the cases that were done")
    made.add_argument("--write", action="store_true", help="put the tables into benchmark-tables.md, too")
    return made


def chosen_tool(flags: argparse.Namespace) -> tuple[str, Tool]:
    if not flags.tool:
        return "laggard", locate
    if flags.pythonpath:
        sys.path.insert(0, str(flags.pythonpath))
    module, _, function = flags.tool.partition(":")
    try:
        tool: Tool = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        refuse(f"--tool {flags.tool}: {error}")
    return module, tool


def main(arguments: Sequence[str] | None = None) -> int:
    flags = parser().parse_args(arguments)
    name, tool = chosen_tool(flags)
    counts = flags.cases or (QUICK if flags.quick else WHOLE)
    made = entries(flags.seed, *counts)
    known(flags.row or (), dict.fromkeys(one.row for one in made), "row")
    asked = [one for one in made if not flags.row or one.row in flags.row]
    again = f"--seed {flags.seed} --cases {','.join(map(str, counts))}"
    flags.out.mkdir(parents=True, exist_ok=True)
    journal = flags.out / f"journal-{flags.seed}.jsonl"
    if not flags.resume:
        journal.unlink(missing_ok=True)
    results = run(asked, tool, not flags.no_steps, flags.processes, journal, flags.minutes)
    part = f" of {len(asked)}, drawn at random," if flags.minutes else ","
    told = f'{len(results)} cases{part} made by `make bench-locate ARGS="{again}"`.'
    report = document(results, name, told)
    print(report)
    (flags.out / "results.json").write_text(json.dumps([one._asdict() for one in results], indent=1))
    (flags.out / "report.md").write_text(report)
    (flags.out / "misses.md").write_text(misses(results, name))
    print(f"Everything, and each miss with its command: {flags.out}", file=sys.stderr)
    if flags.write:
        page = REPOSITORY / "docs" / "development" / "benchmark-tables.md"
        page.write_text(put_into(page.read_text(), "results", report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
