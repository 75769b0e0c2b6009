"""Answers the cases: in this process, or in several."""

import multiprocessing
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from support import memory
from support.machines import Shelf

from golden.case import Case, load, own_folder
from golden.cases import all_cases
from golden.machines import Machine, machines
from golden.row import Row, row_of
from laggard.recording.judged import judge

Asked = Case | Machine


def everything() -> list[Asked]:
    return [*all_cases(), *machines()]


def answer(asked: Asked, shelf: Shelf) -> Row:
    """The answer of laggard as it is now. An exception is one, too, and told: the others are answered all the same."""
    try:
        if isinstance(asked, Machine):
            return asked.row(shelf)
        return row_of(judge(load(asked).recording).location)
    except Exception as error:
        print(f"\n{asked.name}: {type(error).__name__}: {error}", file=sys.stderr)
        return Row(error=type(error).__name__)


def answers(asked: Sequence[Asked], workers: int) -> Iterator[tuple[str, Row]]:
    """Each case's name and answer, in the order in which they come."""
    memory.remove_abandoned()
    with own_folder() as folder:
        if workers < 2:
            shelf = Shelf(folder)
            yield from ((each.name, answer(each, shelf)) for each in asked)
            return
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin, [folder])
        try:
            waiting = [pool.submit(_answer, each.name) for each in asked]
            yield from (each.result() for each in as_completed(waiting))
        finally:
            pool.shutdown(cancel_futures=True)  # also where somebody interrupts it


_by_name: dict[str, Asked] = {}
_shelf: Shelf


def _begin(folder: Path) -> None:
    """Prepares a worker: it makes the cases anew, since a function that changes a twin cannot be sent."""
    global _shelf
    _by_name.update((each.name, each) for each in everything())
    _shelf = Shelf(Path(tempfile.mkdtemp(dir=folder)))


def _answer(name: str) -> tuple[str, Row]:
    return name, answer(_by_name[name], _shelf)
