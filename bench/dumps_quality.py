"""Measures how right a hang is told from Flight Recorder dumps: simulated jobs, dumped by torch 2.4 to 2.15.

    python bench/dumps_quality.py                         220 cases of the seeds to work with
    python bench/dumps_quality.py --held-out              as many that nobody has seen
    python bench/dumps_quality.py --kind gpu_tp --seeds 5 --misses

An answer is `right` where every culprit named is at fault (or the very note that the case asks for), `narrowed` where
all at fault are among the ranks of one culprit or note that names a group, `wrong` where somebody else is named,
`unsure` where nobody is. Where nobody is at fault, `right` is to name nobody."""

import argparse
import itertools
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from common.scratch import scratch
from quality.dumps import HELD_OUT, Answer, answer_of, judge_answer, table
from simulator.dump_cases import KINDS, DumpCase, dump_case, write_case


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seeds", type=int, default=20, help="cases of each kind")
    made.add_argument("--first", type=int, default=0, help="the first seed")
    made.add_argument("--held-out", action="store_true", help=f"the seeds from {HELD_OUT} on")
    made.add_argument("--kind", action="append", choices=KINDS)
    made.add_argument("--misses", action="store_true", help="show each answer that is wrong or unsure")
    made.add_argument("--keep", type=Path, help="leave the dumps in this folder")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    flags = parser().parse_args(arguments)
    first = HELD_OUT if flags.held_out else flags.first
    found: Counter[tuple[str, str]] = Counter()
    for kind, seed in itertools.product(flags.kind or KINDS, range(first, first + flags.seeds)):
        case = dump_case(kind, seed)
        said = answer(case, flags.keep)
        mark = judge_answer(case, said)
        found[kind, mark] += 1
        if flags.misses and mark != "right":
            print(f"{mark}: {kind} {seed}, {case.layout} {case.place} at fault {sorted(case.culprits)}: {said}")
    print(table(found))
    return 0


def answer(case: DumpCase, keep: Path | None) -> Answer:
    with tempfile.TemporaryDirectory(prefix="laggard-dumps-", dir=scratch()) as name:
        folder = Path(name)
        write_case(case, folder)
        if keep:
            shutil.copytree(folder, keep / f"{case.kind}-{case.seed}", dirs_exist_ok=True)
        return answer_of(folder)


if __name__ == "__main__":
    raise SystemExit(main())
