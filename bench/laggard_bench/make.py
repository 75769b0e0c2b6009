"""Makes cases: for each a folder with the recording of a job, and the truth. Needs numpy.

    python laggard_bench/make.py --seed 1 --count 300 --out CASES               a set
    python laggard_bench/make.py --seed 1 --case 0007-gpu --out CASES           one case: number and family

The folder is called by the number alone. For a part that is held out, draw a seed that nobody can guess, and keep it:
`python -c "import secrets; print(secrets.randbits(63))"`.
"""

import argparse
import concurrent.futures
import functools
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from laggard_bench.cases import make_case, names, number_of
from laggard_bench.lasting import Lasting, read
from laggard_bench.stories import FAMILIES

MAX_SEED = (1 << 63) - 1
"""So that any program can read it from a truth."""
CASE = re.compile(rf"\d{{4,6}}-({'|'.join(name for name, _ in FAMILIES)})")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seed", type=int, required=True)
    made.add_argument("--count", type=int, default=0, help="cases of the set")
    made.add_argument("--case", action="append", default=[], help="make this one alone; may be given again")
    made.add_argument("--out", type=Path, help="the folder for the cases")
    made.add_argument(
        "--lasting",
        default="",
        metavar="[rho=0.95][,sd=0.02][,lengths=0.08][,data=0.08]",
        help="noise that lasts: of ranks (sd) and of batches (lengths), correlated by rho, and of data for good",
    )
    made.add_argument("--list", action="store_true", help="print what the cases are, and make nothing")
    made.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    return made


def write_case(seed: int, lasting: Lasting | None, out: Path, name: str) -> str:
    """Makes one case, unless it is there already; the truth is written last."""
    truth = out / number_of(name) / "truth.json"
    if not truth.exists():
        made = make_case(seed, name, out, lasting)
        truth.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return name


def problem(flags: argparse.Namespace) -> str:
    """What is wrong with the flags; empty: nothing."""
    if not 0 <= flags.seed <= MAX_SEED:
        return f"a seed is from 0 to {MAX_SEED}"
    wrong = [case for case in flags.case if not CASE.fullmatch(case)]
    if wrong:
        return f"{wrong[0]} is no case: a case is a number and a family, such as 0007-gpu"
    if not flags.case and flags.count < 1:
        return "--count or --case is needed"
    if not flags.list and flags.out is None:
        return "--out is needed"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    flags = parser().parse_args(arguments)
    wrong = problem(flags)
    if wrong:
        print(f"make: {wrong}", file=sys.stderr)
        return 64
    try:
        lasting = read(flags.lasting)
    except ValueError as why:
        print(f"make: {why}", file=sys.stderr)
        return 64
    chosen = flags.case or names(flags.seed, flags.count)
    if flags.list:
        print("\n".join(chosen))
        return 0
    with concurrent.futures.ProcessPoolExecutor(flags.workers) as pool:
        made = pool.map(functools.partial(write_case, flags.seed, lasting, flags.out), chosen)
        for number, name in enumerate(made, 1):
            print(f"{number}/{len(chosen)} {name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
