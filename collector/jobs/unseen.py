"""The processes that train, or are about to, and are not seen as ranks: which jobs they are of, in words. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from laggard.collector.jobs.job import JobKey
from laggard.locate.unseen_note import unseen_note
from laggard.model import Note
from laggard.rankfile.unseen import UNSEEN
from laggard.text.job_names import is_numbered
from laggard.text.words import printable_line, ranks_text
from laggard.wire.ranks import UnseenProcess

_MAX_LINE_CHARACTERS: Final = 600
_MAX_NAMED: Final = 4
_LAUNCHERS: Final = ("torchrun", "deepspeed", "accelerate", "run.py", "launch.py")
"""The scripts of processes that start others: they are told where nothing else is known."""
_STANDS: Final = re.compile(r"for ([0-9]{1,9}) s in (.+)")  # trainer_hooks/output/start_watch.py writes it


class UnseenOn(NamedTuple):
    """A process, the node that it is on, and the URL of the agent that tells of it."""

    process: UnseenProcess
    node: str
    agent: str


@dataclasses.dataclass(frozen=True)
class UnseenJob:
    """The unseen processes of one job that have trained."""

    key: JobKey
    found: tuple[UnseenOn, ...]

    @property
    def running(self) -> bool:
        return any(each.process.running for each in self.found)

    @property
    def world_size(self) -> int:
        return max(each.process.world_size for each in self.found)

    @property
    def script(self) -> str:
        return self.found[0].process.script

    @property
    def agents(self) -> frozenset[str]:
        return frozenset(each.agent for each in self.found)

    def note(self) -> Note:
        """The note that says so."""
        ranks = [each.process.rank for each in self.found]
        return unseen_note(ranks, [each.process.why for each in self.found], self.world_size)


def unseen_jobs(found: Iterable[UnseenOn]) -> dict[JobKey, UnseenJob]:
    """Those that trained, by job."""
    of_job: dict[JobKey, list[UnseenOn]] = {}
    for each in found:
        if each.process.kind == UNSEEN:
            of_job.setdefault(_key(each), []).append(each)
    return {key: UnseenJob(key, tuple(each)) for key, each in of_job.items()}


def starting(found: Iterable[UnseenOn], known: Mapping[JobKey, bool]) -> Iterator[UnseenOn]:
    """Those that have begun and made no step yet, and run. `known`: which jobs are held, and whether each runs."""
    for each in found:
        if each.process.kind != UNSEEN and each.process.running and not known.get(_key(each)):
            yield each


def starting_text(found: Sequence[UnseenOn], ended: str) -> str:
    """The reason why there is no answer while they start. `ended`: the job that ended last; empty where there is
    none."""
    trains = [each for each in found if each.process.script not in _LAUNCHERS] or found
    names = dict.fromkeys(_name(each) for each in trains)
    shown = ", ".join(list(names)[:_MAX_NAMED])
    shown += f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    text = f"{shown} {'has' if len(names) == 1 else 'have'} begun and made no step yet"
    text += f"; {stands}" if (stands := _standing_text(found)) else ""
    hint = f"; the job that ended last is {ended}: ask for it with --job" if ended else ""
    return printable_line(text + hint, _MAX_LINE_CHARACTERS)


def _standing_text(found: Sequence[UnseenOn]) -> str:
    """Where the processes of one job stand, the fewest first: all wait for them, perhaps. Empty where none says so. Of
    several jobs it is the first that stands, by its name."""
    standing = [(each, said) for each in found if (said := _STANDS.fullmatch(each.process.why)) is not None]
    if not standing:
        return ""
    first = standing[0][0]
    places: dict[str, set[int]] = {}
    times = []
    for each, said in standing:
        if _key(each) == _key(first):
            times.append(int(said[1]))
            places.setdefault(said[2], set()).add(each.process.rank)
    rarest = sorted(places.items(), key=lambda place: (len(place[1]), min(place[1])))[:_MAX_NAMED]
    told = "; ".join(f"{ranks_text(sorted(ranks))} in {place}" for place, ranks in rarest)
    whose = f"{_name(first)}: " if any(_key(each) != _key(first) for each in found) else ""
    return f"{whose}{'they stand' if len(times) > 1 else 'it stands'} still for {min(times)} s or more: {told}"


def _key(each: UnseenOn) -> JobKey:
    return JobKey(each.process.owner, each.process.job_id)


def _name(each: UnseenOn) -> str:
    process = each.process
    name = process.script if process.script and is_numbered(process.job_id) else process.job_id
    return f"{name} on {each.node}"
