"""What a case says: who is at fault, and which verdicts are right. The docstring of its function says why."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from golden.case import Culprit, Truth

from written_jobs.job import Job

COMPUTE = ("slow_compute", "slow_host")
INPUT = ("slow_input", "slow_host")
LINK = ("slow_link",)
HOST = ("slow_host",)

Make = Callable[[], Job | Mapping[str, str]]
"""Returns the job that ran, or the text of each file by its name."""


class WrittenCase(NamedTuple):
    make: Make
    truth: Truth

    def write(self, folder: Path) -> None:
        """Writes the recording into the folder, which it makes, and whose name is the job's."""
        made = self.make()
        folder.mkdir()
        for name, text in (made.files(folder.name) if isinstance(made, Job) else made).items():
            (folder / name).write_text(text)


CASES: dict[str, WrittenCase] = {}


def who(*ranks: int, kinds: Iterable[str] = COMPUTE, within: Iterable[int] = ()) -> Culprit:
    """Somebody who has to be named."""
    return Culprit(tuple(kinds), ranks, tuple(within) or ranks)


def maybe(*ranks: int, kinds: Iterable[str] = COMPUTE) -> Culprit:
    """Somebody who may be named as well, or instead."""
    return Culprit(tuple(kinds), ranks, ranks, required=False)


def case(*culprits: Culprit, verdicts: tuple[str, ...] = ()) -> Callable[[Make], Make]:
    """Keeps a case by the name of its function. `verdicts`: those that are right, where it is not `fail` for who has to
    be named, and else `ok`."""

    def keep(make: Make) -> Make:
        right = verdicts or (("fail",) if any(each.required for each in culprits) else ("ok",))
        CASES[make.__name__] = WrittenCase(make, Truth(culprits, right))
        return make

    return keep
