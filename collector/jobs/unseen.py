"""The jobs that are not seen as ranks: processes that train, or are about to, and jobs without hooks that NCCL RAS
tells of. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from laggard.kit.words import listed, printable_line, ranks_text
from laggard.locate.describe import unseen_note
from laggard.locate.hang.launches import LaunchedJob
from laggard.model import JobKey, Note
from laggard.wire.job_words import is_numbered
from laggard.wire.ranks import TRAINED_UNSEEN, RasCommunicator, RasJob, RasSource, UnseenProcess

_MAX_LINE_CHARACTERS: Final = 600
_MAX_NAMED: Final = 4
_LAUNCHERS: Final = ("torchrun", "deepspeed", "accelerate", "run.py", "launch.py")
"""The scripts of processes that start others: they are told where nothing else is known."""
_STANDS: Final = re.compile(r"for ([0-9]{1,9}) s in (.+)")  # trainer_hooks/output/witness.py writes it


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
        if each.process.kind == TRAINED_UNSEEN:
            of_job.setdefault(_key(each), []).append(each)
    return {key: UnseenJob(key, tuple(each)) for key, each in of_job.items()}


def starting(found: Iterable[UnseenOn], known: Mapping[JobKey, bool]) -> Iterator[UnseenOn]:
    """Those that have begun and made no step yet, and run. `known`: which jobs are held, and whether each runs."""
    for each in found:
        if each.process.kind != TRAINED_UNSEEN and each.process.running and not known.get(_key(each)):
            yield each


def starting_text(found: Sequence[UnseenOn], ended: str) -> str:
    """The reason why there is no answer while they start. `ended`: the job that ended last; empty where there is
    none."""
    trains = [each for each in found if each.process.script not in _LAUNCHERS] or found
    names = dict.fromkeys(_name(each) for each in trains)
    text = f"{listed(list(names), _MAX_NAMED)} {'has' if len(names) == 1 else 'have'} begun and made no step yet"
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


MAX_AGE_SECONDS = 180.0
"""The largest age of an answer that is judged, by the agent's count and the time since the agent's own answer."""


class RasAnswer(NamedTuple):
    """The report of an agent, its name, and how many seconds ago it reported."""

    node: str
    source: RasSource
    seconds_ago: float


def launched_jobs(answers: Iterable[RasAnswer]) -> tuple[LaunchedJob, ...]:
    """One job for each user and largest communicator: what the newest answer says, with what each agent sees of the
    processes on its own node."""
    reports: dict[tuple[int, str], list[tuple[str, RasJob]]] = {}
    for answer in answers:
        for job in answer.source.jobs:
            aged = structs.replace(job, age_seconds=job.age_seconds + answer.seconds_ago)
            if aged.communicators and aged.age_seconds <= MAX_AGE_SECONDS:
                reports.setdefault((job.owner, _world(job)), []).append((answer.node, aged))
    return tuple(_joined(of_job) for of_job in reports.values())


def _world(job: RasJob) -> str:
    return max(job.communicators, key=lambda it: it.size).id


def _joined(reports: list[tuple[str, RasJob]]) -> LaunchedJob:
    newest = min((report for _, report in reports), key=lambda report: report.age_seconds)
    named = next((report.job_id for _, report in reports if not report.job_id.startswith("nccl-")), newest.job_id)
    hosts: dict[str, set[str]] = {}
    seen: dict[tuple[str, int], str] = {}
    for node, report in sorted(reports, key=lambda each: -each[1].age_seconds):
        for host in report.local_hosts:
            hosts.setdefault(host, set()).add(node)
        seen |= _processes(report)
    nodes = {host: names.pop() for host, names in hosts.items() if len(names) == 1}
    communicators = tuple(_with_processes(it, seen) for it in newest.communicators)
    return LaunchedJob(structs.replace(newest, job_id=named, communicators=communicators), nodes)


def _processes(report: RasJob) -> dict[tuple[str, int], str]:
    return {(rank.host, rank.pid): rank.process for it in report.communicators for rank in it.ranks if rank.process}


def _with_processes(it: RasCommunicator, seen: dict[tuple[str, int], str]) -> RasCommunicator:
    ranks = tuple(
        structs.replace(rank, process=seen.get((rank.host, rank.pid), rank.process)) if rank.pid > 0 else rank
        for rank in it.ranks
    )
    return structs.replace(it, ranks=ranks)
