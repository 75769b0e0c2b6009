"""Makes a set of cases: for each a folder with the recording of a job, and the truth.

python bench/strange/make.py --seed 1 --count 300 --out DIR
python bench/strange/make.py --seed 1 --count 300 --out DIR --case 0007-gpu    one case of that set
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from strange.cases import make_case, names


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seed", type=int, required=True)
    made.add_argument("--count", type=int, required=True, help="cases of the set")
    made.add_argument("--out", type=Path, help="the folder for the cases")
    made.add_argument("--case", action="append", default=[], help="make this one alone; may be given again")
    made.add_argument("--list", action="store_true", help="print the names of the set, and make nothing")
    made.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    return made


def write_case(seed: int, name: str, out: Path) -> str:
    """Makes one case, unless it is there already; the truth is written last."""
    truth = out / name / "truth.json"
    if not truth.exists():
        made = make_case(seed, name, out)
        truth.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return name


def main(arguments: Sequence[str] | None = None) -> int:
    flags = parser().parse_args(arguments)
    chosen = names(flags.seed, flags.count)
    unknown = set(flags.case) - set(chosen)
    if unknown:
        print(f"no such case in this set: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 64
    chosen = flags.case or chosen
    if flags.list:
        print("\n".join(chosen))
        return 0
    if flags.out is None:
        print("--out DIR is needed", file=sys.stderr)
        return 64
    with concurrent.futures.ProcessPoolExecutor(flags.workers) as pool:
        for number, name in enumerate(
            pool.map(write_case, [flags.seed] * len(chosen), chosen, [flags.out] * len(chosen)), 1
        ):
            print(f"{number}/{len(chosen)} {name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
