"""Makes cases of the simulator by events (bench/fluid_simulator), in the form of laggard-bench's. Needs numpy.

python bench/fluid.py --seed 11 --count 240 --out CASES              a set: cases 0 to 239
python bench/fluid.py --seed 11 --case 7 --out CASES                 one case
python bench/fluid.py --seed 11 --case 7 --family gpu --out CASES    one case of a family
python bench/laggard_bench/score.py CASES bench/laggard_bench/laggard_entry.py
"""

import argparse
import concurrent.futures
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fluid_simulator.cases import NoCase, family_of, make_case
from fluid_simulator.families import FAMILIES
from laggard_bench.lasting import Lasting, read


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seed", type=int, required=True)
    made.add_argument("--count", type=int, default=0, help="cases of the set")
    made.add_argument("--first", type=int, default=0, help="the number of the first of them")
    made.add_argument("--case", type=int, action="append", default=[], help="make this one alone; may be given again")
    made.add_argument("--family", default="", choices=("", *FAMILIES), help="of all cases; else as the set has them")
    made.add_argument(
        "--lasting",
        default="",
        metavar="[rho=0.95][,sd=0.02][,lengths=0.08][,data=0.08]",
        help="noise that lasts: of ranks (sd) and of micro-batches (lengths), and of replicas' data for good",
    )
    made.add_argument("--out", type=Path, help="the folder for the cases")
    made.add_argument("--list", action="store_true", help="print what the cases are, and make nothing")
    made.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    return made


def make(seed: int, family: str, lasting: Lasting | None, out: Path, number: int) -> str:
    """Makes one case; returns what it is."""
    truth = make_case(seed, number, out, family, lasting)
    return f"{truth['case']} {truth['family']}"


def problem(flags: argparse.Namespace) -> str:
    """What is wrong with the flags; empty: nothing."""
    if flags.seed < 0 or flags.first < 0 or min(flags.case, default=0) < 0:
        return "a seed and a case are numbers from 0 on"
    if not flags.case and flags.count <= flags.first:
        return "--count or --case is needed"
    if not flags.list and flags.out is None:
        return "--out is needed"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    flags = parser().parse_args(arguments)
    wrong = problem(flags)
    if wrong:
        print(f"fluid: {wrong}", file=sys.stderr)
        return 64
    numbers = flags.case or range(flags.first, flags.count)
    if flags.list:
        print("\n".join(f"{number:04d} {flags.family or family_of(flags.seed, number)}" for number in numbers))
        return 0
    try:
        lasting = read(flags.lasting)
    except ValueError as reason:
        print(f"fluid: {reason}", file=sys.stderr)
        return 64
    made = functools.partial(make, flags.seed, flags.family, lasting, flags.out)
    try:
        with concurrent.futures.ProcessPoolExecutor(flags.workers) as pool:
            for done, words in enumerate(pool.map(made, numbers), 1):
                print(f"{done}/{len(numbers)} {words}", file=sys.stderr)
    except NoCase as reason:
        print(f"fluid: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
