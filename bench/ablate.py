"""Measures which rules and thresholds of localisation earn their place: each is switched off, or moved, and every case
judged anew.

    make bench-ablate                                 all cases of the golden set, some hours on one core
    make bench-ablate ARGS=--quick                    a quarter of an hour on two cores
    make bench-ablate ARGS="--rule moments"            one rule; may be given again
    make bench-ablate ARGS="--family fluid/nic"       a family, a set or a case; may be given again
    make bench-ablate ARGS="--seed 12345"             fresh cases of the three simulators
    make bench-ablate ARGS=--write                    and puts the tables into benchmark-tables.md

A run that was stopped goes on where it was: answers are kept in out/ablate, for these sources alone.
docs/development/benchmark.md says how to read the tables."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from ablation.report import text
from ablation.rules import RULES
from ablation.run import Plan, digest, in_turn, run
from ablation.thresholds import thresholds
from common.figures import put_into
from golden.case import Case, chosen
from golden.cases import all_cases
from golden.simulated import benchmark_cases, fluid_cases, simulated

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "development" / "benchmark-tables.md"
QUICK_MINUTES = 14.0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rule", action="append", metavar="NAME", help="this rule alone, and no thresholds")
    made.add_argument("--family", action="append", metavar="NAME", help="cases of this set or family, or this case")
    made.add_argument("--quick", action="store_true", help=f"the same as --minutes {QUICK_MINUTES:g}")
    made.add_argument("--minutes", type=float, help="begin no case after so many")
    made.add_argument("--factor", type=float, default=2.0, help="by which thresholds are moved, up and down")
    made.add_argument("--seed", type=int, help="fresh cases of the three simulators, in place of the golden set")
    made.add_argument("--processes", type=int, default=2)
    made.add_argument("--out", type=Path, default=ROOT / "out" / "ablate", help="where answers are kept")
    made.add_argument("--list", action="store_true", help="the rules that can be switched off, and nothing more")
    made.add_argument("--write", action="store_true", help="put the tables into benchmark-tables.md, too")
    return made


def problem(flags: argparse.Namespace) -> str:
    """What is wrong with the flags; empty: nothing."""
    unknown = sorted(set(flags.rule or ()) - {rule.name for rule in RULES})
    if unknown:
        return f"no rule {unknown[0]!r}; --list shows them"
    if flags.factor <= 1.0:
        return "--factor is a number above 1"
    if flags.seed is not None and flags.seed < 0:
        return "--seed is a number from 0 on"
    return "--processes is a number from 1 on" if flags.processes < 1 else ""


def cases_of(seed: int | None) -> list[Case]:
    """The golden set, or that of another seed."""
    return all_cases() if seed is None else [*simulated(seed), *fluid_cases(seed), *benchmark_cases(seed)]


def main(arguments: Sequence[str] | None = None) -> int:
    flags = parser().parse_args(arguments)
    if flags.list:
        print("\n".join(f"{rule.name}  ({rule.where})" for rule in RULES))
        return 0
    wrong, cases = problem(flags), list[Case]()
    if not wrong:
        try:
            cases = in_turn(chosen(cases_of(flags.seed), flags.family or ()), flags.seed or 0)
        except ValueError as error:
            wrong = str(error)
    if wrong:
        print(f"ablate: {wrong}", file=sys.stderr)
        return 64
    rules = [rule for rule in RULES if not flags.rule or rule.name in flags.rule]
    moved = () if flags.rule else thresholds()
    plan = Plan(rules, moved, (1 / flags.factor, flags.factor))
    minutes = flags.minutes or (QUICK_MINUTES if flags.quick else None)
    which = "golden" if flags.seed is None else f"seed-{flags.seed}"
    journal = flags.out / f"{which}-{digest(plan, cases)}.jsonl"
    kept = run(cases, plan, journal, flags.processes, minutes)
    report = text(plan, kept)
    print("\n".join(report))
    if flags.write:
        PAGE.write_text(put_into(PAGE.read_text(), "ablation", "\n".join(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
