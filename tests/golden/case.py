"""A case of the golden set: a recording that is made or unpacked when it is asked for, and the truth about it."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from support import memory

from laggard.locate.job_timings import JobTimings
from laggard.recording.reader import read_recording
from laggard.recording.recorded_timings import RecordedTimings


class Culprit(NamedTuple):
    """Somebody at fault. `kinds`: laggard's kinds of culprit that are right; none where it is told in a note. `within`:
    `ranks`, and those that no recording tells from them; of a link, `ranks` are those whose messages pass it. An answer
    finds it that names ranks among `within`, and has missed it, where it is `required`, if it names none."""

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
        return family(self.name)


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
    with own_folder() as folder:
        made = case.make(folder)
        recording = read_recording([made.recording])
    return Loaded(case.name, case.family, made.truth(recording.timings), recording)


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """A folder, in memory where there is room. Of a process that was killed, the next run of tests removes it."""
    own = memory.OwnFolder(memory.MEMORY if memory.has_room() else Path(tempfile.gettempdir()))
    try:
        yield own.path
    finally:
        own.remove()


def loaded(cases: Iterable[Case]) -> Iterator[Loaded]:
    """The cases, one after another, each made and read when it is its turn."""
    return map(load, cases)


Named = TypeVar("Named", bound="HasName")


class HasName(Protocol):
    @property
    def name(self) -> str: ...


def family(name: str) -> str:
    return name.rpartition("/")[0]


def chosen(cases: Iterable[Named], only: Iterable[str], gone: Iterable[str] = ()) -> list[Named]:
    """The cases of these names or families (all: none given), such as `fluid`, `fluid/nic` or `fluid/nic/3`. Raises
    ValueError where there is none of a name, also not among the names of those that are `gone`."""
    found, names = list(cases), list(only)
    known = [*(case.name for case in found), *gone]
    for name in names:
        if not any(is_part(case, name) for case in known):
            beside = {family(case) for case in known if is_part(case, name.partition("/")[0])}
            there = sorted(beside or {case.partition("/")[0] for case in known})
            raise ValueError(f"no case or family {name!r}; there are {', '.join(there)}")
    return [case for case in found if not names or any(is_part(case.name, name) for name in names)]


def is_part(case: str, name: str) -> bool:
    """Whether the case has this name, or is of the family of this name."""
    return f"{case}/".startswith(f"{name.rstrip('/')}/")
