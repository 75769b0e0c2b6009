"""Answers every recorded and simulated job and the twins of machines, and tells each answer that differs.

    make golden                             all; ends with status 1 where an answer differs
    make golden ARGS=--write                freezes what differs: the diff of the files is what is to be reviewed
    make golden ARGS="--only fluid/nic"     a family, or a case by its name; may be given again

tests/data/golden/recordings.jsonl and machines.jsonl have a line for each case."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from golden import frozen
from golden.answers import answers, everything
from golden.case import chosen, is_part
from laggard.kit.words import counted

USAGE = 64


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="golden", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--write", action="store_true", help="freeze the answers that differ")
    made.add_argument("--only", action="append", default=[], metavar="NAME", help="a family, or a case")
    made.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: %(default)s)")
    return made


def main(arguments: Sequence[str] | None = None, folder: Path = frozen.FOLDER) -> int:
    from quality.run import progress  # of the benches, whose path golden.simulated adds

    flags = parser().parse_args(arguments)
    try:
        was = frozen.read_all(folder, flags.write)
        asked = chosen(everything(), flags.only, was)
    except (ValueError, frozen.DamagedError) as error:
        print(f"golden: {error}", file=sys.stderr)
        return USAGE
    now = dict(progress(answers(asked, flags.workers), len(asked)))
    found = frozen.differences(was, now, lambda case: not flags.only or any(is_part(case, it) for it in flags.only))
    for each in found:
        print(each)
    if not any(each.name.startswith("real/") for each in asked) and not flags.only:
        print("No real runs are packed: bench/real_quality.py records them, tests/golden/pack.py packs them.")
    if flags.write:
        frozen.write_all(was, found, folder)
    differ = "frozen anew" if flags.write else f"{'differs' if len(found) == 1 else 'differ'} from what is frozen"
    print(f"{counted(len(asked), 'case')}, {len(found)} {differ}")
    return int(bool(found) and not flags.write)


if __name__ == "__main__":
    raise SystemExit(main())
