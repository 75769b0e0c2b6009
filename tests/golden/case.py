"""A case of the golden set: a recording that is made or unpacked when it is asked for, and the truth about it."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from support import memory

from laggard.locate.job_timings import JobTimings
from laggard.recording.reader import read_recording
from laggard.recording.recorded_timings import RecordedTimings


class Culprit(NamedTuple):
    """Somebody at fault. `kinds`: laggard's kinds of culprit that are right. `within`: `ranks`, and those that no
    recording tells from them; of a link, `ranks` are those whose messages pass it. An answer finds it that names ranks
    among `within`, and has missed it, where it is `required`, if it names none."""

    kinds: tuple[str, ...]
    ranks: tuple[int, ...]
    within: tuple[int, ...]
    required: bool = True


class Truth(NamedTuple):
    """`culprits`: empty where nobody is at fault. `verdicts`: those of a location that are right. `tolerated`: who may
    be named with a reason, though nothing is broken."""

    culprits: tuple[Culprit, ...]
    verdicts: tuple[str, ...]
    tolerated: tuple[Culprit, ...] = ()

    @property
    def healthy(self) -> bool:
        return not self.culprits


class Made(NamedTuple):
    """Where a case's recording lies, and its truth, which may need to know the job's machines."""

    recording: Path
    truth: Callable[[JobTimings], Truth]


@dataclasses.dataclass(frozen=True)
class Case:
    """`name`: FAMILY/WHICH, and a family begins with where it comes from: `fluid/nic/3`. `make` writes the recording
    into an empty folder; the same name gives the same recording."""

    name: str
    make: Callable[[Path], Made]

    @property
    def family(self) -> str:
        return self.name.rpartition("/")[0]


class Loaded(NamedTuple):
    """A case that was made and read."""

    name: str
    family: str
    truth: Truth
    recording: RecordedTimings

    @property
    def timings(self) -> JobTimings:
        """What laggard.locate.verdict.locate judges."""
        return self.recording.timings


def load(case: Case) -> Loaded:
    """Makes the case and reads it, once; nothing is left of its files. Raises UsageError where laggard reads none of
    them."""
    place = memory.MEMORY if memory.has_room() else None
    with tempfile.TemporaryDirectory(prefix="laggard-golden-", dir=place) as folder:
        made = case.make(Path(folder))
        recording = read_recording([made.recording])
    return Loaded(case.name, case.family, made.truth(recording.timings), recording)


def loaded(cases: Iterable[Case]) -> Iterator[Loaded]:
    """The cases, one after another, each made and read when it is its turn."""
    return map(load, cases)


def chosen(cases: Iterable[Case], only: Iterable[str]) -> list[Case]:
    """The cases of these names or families (all: none given), such as `fluid`, `fluid/nic` or `fluid/nic/3`. Raises
    ValueError where there is none of a name."""
    found, names = list(cases), list(only)
    for name in names:
        if not any(is_part(case.name, name) for case in found):
            raise ValueError(f"no case or family {name!r}; families: {', '.join(families(found))}")
    return [case for case in found if not names or any(is_part(case.name, name) for name in names)]


def is_part(case: str, name: str) -> bool:
    """Whether the case has this name, or is of the family of this name."""
    return f"{case}/".startswith(f"{name.rstrip('/')}/")


def families(cases: Iterable[Case]) -> list[str]:
    return sorted({case.family for case in cases})
