"""The ranks of a job with their hosts and files, and its events with the rank and host that their files tell. What the
joiner takes and gives, as values."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.job.events import Event, JobEvidence, Writer
from laggard.diagnose.joined.exhibit import Origin
from laggard.diagnose.joined.processes import Identity
from laggard.kit.words import joined as listed
from laggard.kit.words import ranks_text
from laggard.model import Fix


class JobFile(NamedTuple):
    """One file that a job wrote. `twins`: the origins of files with the same content."""

    path: str
    origin: Origin = Origin()
    twins: tuple[Origin, ...] = ()
    holds_stacks: bool = False
    """True: its last line is the outermost frame of a stack, and says nothing of where the process stood at its end."""


class Fault(NamedTuple):
    """A finding about a host, or about ranks, that may stand before a job's failure."""

    code: str
    device: str
    summary: str
    critical: bool
    path: str
    host: str | None = None
    quote: str = ""
    """The line of the file that says so, without its head; empty: it is not known."""
    seconds: float | None = None
    """The wall clock of that line; None: it has none."""
    fix: Fix = Fix("")
    ranks: tuple[int, ...] = ()
    """The ranks that it accuses: of a recording, of RAS' report."""
    direct: bool = False
    """True: somebody looked at the process itself while it hung."""
    offset: int = 0
    """The place in the file, in characters, from which on the line is looked for."""
    left: bool = False
    """True: the rank ended by itself, without an error, and before the others."""


class Role(enum.Enum):
    FIRST = "first"
    """It says what came first."""
    SHOWS = "shows"
    """It supports that."""
    THEN = "then"
    """It followed."""


class Clue(NamedTuple):
    """A line that is shown, to be looked up in its file: `quote` from `offset` on, in characters; or its last line."""

    role: Role
    path: str
    quote: str = ""
    offset: int = 0
    seconds: float | None = None
    host: str | None = None
    ranks: tuple[int, ...] = ()
    is_last_line: bool = False

    @classmethod
    def of_event(cls, role: Role, event: Event, roster: Roster) -> Clue:
        place, writer = event.place, event.writer
        seconds = place.seconds if place.dated else None
        ranks = () if writer.rank is None else (writer.rank,)
        return cls(role, roster.logs[place.file], event.line, place.offset, seconds, writer.host, ranks)

    @classmethod
    def of_fault(cls, role: Role, fault: Fault) -> Clue:
        return cls(role, fault.path, fault.quote, fault.offset, fault.seconds, fault.host, fault.ranks)


class First(NamedTuple):
    """The answer. `subject` and `says` make a sentence: `rank 3 on n2`, `was killed by ...`."""

    code: str
    subject: str
    says: str
    fix: Fix
    clues: tuple[Clue, ...]
    host: str | None = None
    ranks: tuple[int, ...] = ()
    by_cause: bool = True
    """True where causes, and not clocks, put it before the others."""


OF_A_LAUNCHER: Final = ("status", "summary", "aborted", "terminated", "killed", "stuck_process")
"""The kinds of what launchers say about processes."""
LOOPBACK: Final = ("localhost", "localhost.localdomain", "127.0.0.1", "::1")
"""Names that every host has."""
_PID = re.compile(r"\(pid: (\d{1,10})\)|^.{0,200}?Unable to shutdown process (\d{1,10}) ")
_MAX_WORLD: Final = 1 << 17


class Roster(NamedTuple):
    evidence: JobEvidence
    """The job's, with ranks and hosts filled in where files tell them."""
    files: Mapping[int, tuple[str, ...]]
    """The files that are of one rank alone, by rank."""
    hosts: Mapping[int, str]
    """The host of each rank, where it is known."""
    ranks: frozenset[int]
    """All ranks that are known of."""
    stuck: frozenset[int]
    """Those that did not end when their launcher asked them to."""
    all_hosts: frozenset[str]
    names: Mapping[str, str]
    """The name of each host by its other names."""
    dumps: frozenset[str]
    """The files that hold stacks alone: their last lines tell no end."""
    pids: Mapping[int, int]
    """The process of each rank, by its number, where it is known."""
    logs: tuple[str, ...]
    """The paths of the job's files, as the places of its events number them."""

    def hosts_of(self, ranks: Iterable[int]) -> list[str]:
        """The hosts that are known of some ranks."""
        return sorted({self.hosts[rank] for rank in ranks if rank in self.hosts})

    def named(self, ranks: Collection[int]) -> str:
        """`rank 3 on n2`, `ranks 3 and 4 on n2 and n3`, `rank 3`."""
        hosts = self.hosts_of(ranks)
        return ranks_text(ranks) + (f" on {listed(hosts)}" if hosts else "")

    def one_host(self, ranks: Iterable[int]) -> str | None:
        """The host that ranks have in common."""
        hosts = self.hosts_of(ranks)
        return hosts[0] if len(hosts) == 1 else None


def roster_of(evidence: JobEvidence, files: Sequence[JobFile], identities: Sequence[Identity] = ()) -> Roster:
    """`files`: in the order in which the evidence numbers them, then others that belong to ranks. `identities`: what
    lines of the job say of its processes."""
    latest = max((each.attempt for file in files for each in _origins(file) if each.attempt is not None), default=None)
    names = _host_names(evidence.events, files)
    events = [
        named for event in evidence.events for named in _with_origin(event, files[event.place.file], names, latest)
    ]
    bases = _bases(events, files, names)
    events = [_with_rank(event, bases) for event in events]
    files_of: dict[int, list[str]] = {}
    latest_names = {event.writer.rank: event.writer.host for event in events if event.writer.rank is not None}
    hosts = {rank: host for rank, host in latest_names.items() if host} | {
        it.rank: names.get(it.host, it.host) for it in identities if it.host and it.host not in LOOPBACK
    }
    for file in files:
        for origin in _origins(file):
            rank = _rank_of(origin, names, bases)
            if rank is not None and origin.attempt in (None, latest):
                files_of.setdefault(rank, []).append(file.path)
                if origin.host:
                    hosts.setdefault(rank, names.get(origin.host, origin.host))
    worlds = [it.world for it in identities if it.world is not None and it.world <= _MAX_WORLD]
    known = {*evidence.ranks_seen, *(it.rank for it in identities), *range(max(worlds, default=0))}
    known |= {*files_of, *hosts, *(e.writer.rank for e in events if e.writer.rank is not None)}
    if evidence.world_size is not None and evidence.world_size <= _MAX_WORLD:
        known |= set(range(evidence.world_size))
    return Roster(
        evidence._replace(events=tuple(events), ranks_seen=frozenset(known)),
        {rank: tuple(paths) for rank, paths in files_of.items()},
        {rank: host for rank, host in hosts.items() if rank is not None and host},
        frozenset(known),
        _stuck(events),
        frozenset(host for host in (*hosts.values(), *names.values()) if host),
        names,
        frozenset(file.path for file in files if file.holds_stacks),
        {it.rank: it.pid for it in identities if it.pid is not None} | _pids(events),
        tuple(file.path for file in files),
    )


def reporters(roster: Roster) -> frozenset[int]:
    """The ranks that said themselves that something failed, or ended by themselves with an error."""
    return frozenset(
        event.writer.rank
        for event in roster.evidence.events
        if event.writer.rank is not None and (event.kind not in OF_A_LAUNCHER or event.kind == "status")
    )


def _pids(events: Iterable[Event]) -> dict[int, int]:
    """The processes that launchers name in their tables."""
    found = ((event.writer.rank, _PID.search(event.line)) for event in events if event.kind != "stuck_process")
    return {rank: int(pid[1]) for rank, pid in found if rank is not None and pid is not None and pid[1]}


def _origins(file: JobFile) -> tuple[Origin, ...]:
    return (file.origin, *file.twins)


def _with_origin(event: Event, file: JobFile, names: Mapping[str, str], latest: int | None) -> Iterator[Event]:
    """The event with what its file's name tells; once more for each file with the same content. Those of an attempt
    that was started anew are left out."""
    for origin in _origins(file):
        if origin.attempt not in (None, latest):
            continue
        own = event.writer
        told = own.host if own.host and own.host not in LOOPBACK else origin.host
        host = names.get(told, told) if told else own.host
        anonymous = own.rank is None and own.local_rank is None and own.task is None
        rank = origin.rank if anonymous else own.rank
        local = origin.local_rank if anonymous else own.local_rank
        yield event._replace(writer=Writer(rank, own.task, local, host))
        if not anonymous:
            return


def _host_names(events: Iterable[Event], files: Sequence[JobFile]) -> dict[str, str]:
    """The name that launchers and loggers give to each host, by the name of its folder. Where folders of several hosts
    hold one name, as of containers, the folders' names stay."""
    told: dict[str, set[str]] = {}
    for event in events:
        folder, host = files[event.place.file].origin.host, event.writer.host
        if folder and host and host not in LOOPBACK:
            told.setdefault(folder, set()).add(host)
    single = {folder: next(iter(hosts)) for folder, hosts in told.items() if len(hosts) == 1}
    shared = [host for host in single.values() if list(single.values()).count(host) > 1]
    return {folder: host for folder, host in single.items() if host not in shared}


def _bases(events: Iterable[Event], files: Sequence[JobFile], names: Mapping[str, str]) -> dict[str | None, int]:
    """The rank of each host's local rank 0, by launchers' tables and by lines that name their rank in files of a local
    rank. A launcher gives its processes ranks that follow one another."""
    told: dict[str | None, set[int]] = {}
    for event in events:
        rank, local, host = event.writer.rank, event.writer.local_rank, event.writer.host
        origin = files[event.place.file].origin
        if local is None and origin.local_rank is not None:
            local, host = origin.local_rank, names.get(origin.host, origin.host) if origin.host else host
        if rank is not None and local is not None:
            told.setdefault(host, set()).add(rank - local)
    known = {host: next(iter(bases)) for host, bases in told.items() if len(bases) == 1}
    if len(known) == 1:  # files of no host are of the only one
        known.setdefault(None, next(iter(known.values())))
    if not told and len({origin.host for file in files for origin in _origins(file)}) <= 1:
        known = {origin.host: 0 for file in files for origin in _origins(file)}
    return known


def _with_rank(event: Event, bases: Mapping[str | None, int]) -> Event:
    own = event.writer
    if own.rank is not None or own.local_rank is None or own.host not in bases:
        return event
    return event._replace(writer=own._replace(rank=bases[own.host] + own.local_rank))


def _rank_of(origin: Origin, names: Mapping[str, str], bases: Mapping[str | None, int]) -> int | None:
    if origin.rank is not None or origin.local_rank is None:
        return origin.rank
    host = names.get(origin.host, origin.host) if origin.host else None
    return bases[host] + origin.local_rank if host in bases else None


def _stuck(events: Iterable[Event]) -> frozenset[int]:
    ranks: dict[str, int] = {}
    asked: set[str] = set()
    for event in events:
        if found := _PID.search(event.line):
            if event.kind == "stuck_process":
                asked.add(found[2] or "")
            elif event.writer.rank is not None:
                ranks[found[1] or ""] = event.writer.rank
    return frozenset(ranks[pid] for pid in asked if pid in ranks)
