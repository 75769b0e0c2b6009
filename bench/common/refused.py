"""What a benchmark says in one line, and with exit status 64, in place of a run."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn


def refuse(why: str) -> NoReturn:
    print(f"{Path(sys.argv[0]).stem}: {why}", file=sys.stderr)
    raise SystemExit(os.EX_USAGE)


def numbers(count: int) -> Callable[[str], tuple[int, ...]]:
    """A type for argparse: so many numbers with commas between them."""

    def parsed(text: str) -> tuple[int, ...]:
        found = tuple(int(word) for word in text.split(",") if word.strip().isdecimal())
        if len(found) != count or text.count(",") != count - 1:
            raise argparse.ArgumentTypeError(f"{text!r} is not {count} numbers with commas between them")
        return found

    return parsed


def need(*programs: str, root: bool = False) -> None:
    """Refuses to run where a program is missing, or where it takes root and this is none."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        refuse(f"needs {missing[0]}")
    if root and os.geteuid() != 0:
        refuse("needs root")


def known(asked: Iterable[str], there: Iterable[str], what: str) -> None:
    """Refuses a name that is none of those that there are; `what` they are names of."""
    names = list(there)
    for name in asked:
        if name not in names:
            refuse(f"no {what} {name!r}; there are {', '.join(names)}")
