"""NCCL RAS's status, from JSON to values. It may come from any user's program: what is absurd is refused as a whole.

The form is that of NCCL 2.28.7 to 2.30.7, src/ras/client_support.cc: rasDumpCommsToJSON and the functions that it
calls. AMD's RCCL has the same since it follows those (ROCm/rocm-systems 2386d61, projects/rccl): in `nccl_version` its
own version, in `cuda_runtime_version` HIP's, and its own operations among the counts. Fields that are not used are not
read, and new ones do no harm.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec import structs

from laggard.kit.address import ip_of
from laggard.nccl.ras import RasError
from laggard.wire.ranks import RasCommunicator, RasJob, RasRank

OLDEST_NCCL: Final = (2, 28, 7)

UNKNOWN_HOST: Final = "unknown"
"""NCCL's word for the host of a process that it has no address of."""

_MAX_COMMUNICATORS: Final = 16_384
_MAX_RANK: Final = 1 << 20
_MAX_COUNT: Final = 1 << 53
_MAX_PID: Final = 1 << 22
_MAX_OPERATIONS: Final = 32
_MAX_WORD: Final = 64
_HASH: Final = re.compile(r"0x[0-9a-f]{1,16}(:0x[0-9a-f]{1,16})?")
_WORD: Final = re.compile(r"[A-Za-z0-9_]+")

_MISSING_COMMA: Final = re.compile(rb'("nvml_dev": -?\d+)(\s+"status": \{)')
"""NCCL 2.28.7 and 2.28.9 leave out the comma between the two where they list ranks that are missing."""


class Status(msgspec.Struct, frozen=True):
    init_state: int = 0
    async_error: int = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False

    @property
    def starting(self) -> bool:
        return self.init_state != 0

    @property
    def ending(self) -> bool:
        return self.finalize_called or self.destroy_flag or self.abort_flag


class MissingStatus(msgspec.Struct, frozen=True):
    unresponsive: bool = False
    considered_dead: bool = False


class Member(msgspec.Struct, frozen=True):
    """The known facts of a rank, whether it answered or not."""

    rank: int
    host: str
    pid: int
    cuda_dev: int


class Rank(Member, frozen=True):
    """A rank that answered."""

    status: Status
    collective_counts: dict[str, int]


class MissingRank(Member, frozen=True):
    """A rank that did not answer, or is no longer one of the communicator."""

    status: MissingStatus


class Communicator(msgspec.Struct, frozen=True):
    hash: str
    secondary_hash: str
    size: int
    ranks: tuple[Rank, ...]
    missing_ranks: tuple[MissingRank, ...]

    @property
    def id(self) -> str:
        """Unique among all communicators: the hash alone is not."""
        return f"{self.hash}/{self.secondary_hash}"

    @property
    def members(self) -> tuple[Member, ...]:
        return (*self.ranks, *self.missing_ranks)


class Answer(msgspec.Struct, frozen=True):
    nccl_version: str
    communicators: tuple[Communicator, ...]

    @property
    def starting(self) -> bool:
        """Whether any rank has yet to finish its initialisation."""
        return any(rank.status.starting for each in self.communicators for rank in each.ranks)


def parse(body: bytes) -> Answer:
    """Returns what the status says. Raises RasError that says what is wrong with it."""
    try:
        answer = msgspec.json.decode(_MISSING_COMMA.sub(rb"\1,\2", body), type=Answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RasError(f"its answer is not NCCL's JSON: {error}") from None
    except (RecursionError, OverflowError, MemoryError):
        raise RasError("its answer is not NCCL's JSON: nested too deeply, or a number too large") from None
    if _version(answer.nccl_version) < OLDEST_NCCL:
        raise RasError("its answer has no version of NCCL that is known to answer in JSON")
    _require(len(answer.communicators) <= _MAX_COMMUNICATORS, "too many communicators")
    ids = {each.id for each in answer.communicators}
    _require(len(ids) == len(answer.communicators), "a communicator stands there twice")
    for communicator in answer.communicators:
        _check(communicator)
    return answer


def _check(it: Communicator) -> None:
    _require(bool(_HASH.fullmatch(it.hash) and _HASH.fullmatch(it.secondary_hash)), "a hash is none")
    _require(1 <= it.size <= _MAX_RANK, "a communicator's size is out of range")
    members = it.members
    numbers = {member.rank for member in members}
    _require(len(numbers) == len(members), "a rank stands twice in a communicator")
    _require(all(0 <= number < it.size for number in numbers), "a rank is none of its communicator")
    for member in members:
        _require(-1 <= member.pid <= _MAX_PID and -1 <= member.cuda_dev <= _MAX_RANK, "a pid or device is out of range")
        _require(_is_host(member.host), "a host is no address")
    for rank in it.ranks:
        counts = rank.collective_counts
        _require(len(counts) <= _MAX_OPERATIONS, "too many kinds of collectives")
        _require(all(len(name) <= _MAX_WORD and _WORD.fullmatch(name) for name in counts), "a collective has no name")
        _require(all(0 <= count <= _MAX_COUNT for count in counts.values()), "a count is out of range")
        _require(0 <= rank.status.async_error <= _MAX_OPERATIONS, "an error is out of range")


def _is_host(text: str) -> bool:
    return text in ("", UNKNOWN_HOST) or (len(text) <= _MAX_WORD and ip_of(text) is not None)


def _version(text: str) -> tuple[int, ...]:
    found = re.match(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})", text)
    return tuple(map(int, found.groups())) if found and len(text) <= _MAX_WORD else ()


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise RasError(f"its answer is absurd: {problem}")


# The changes from one answer of NCCL RAS to the next, which tell since when each rank's launch counts stand still.
# Pure.
#
# Times are monotonic seconds of the agent. A count that differs between ranks says nothing by itself: the ranks are
# read one after the other while they go on. Counts that are the same in several answers do.

Counts = tuple[tuple[str, int], ...]

FORGET_SECONDS: Final = 3600.0
"""The time after which a communicator that no answer has had is gone."""

MAX_RANKS: Final = 65_536
"""The most ranks of communicators that are remembered."""


class Device(NamedTuple):
    """One GPU of one process: what launches. In each communicator it is one rank."""

    host: str
    pid: int
    gpu: int


class Still(NamedTuple):
    """Something has been the same in `readings` answers, of which the first came at `since` and the last at `until`."""

    since: float
    until: float
    readings: int = 1

    def again(self, now: float) -> Still:
        return Still(self.since, now, self.readings + 1)

    @property
    def seconds(self) -> float:
        return self.until - self.since


@dataclasses.dataclass(frozen=True)
class Seen:
    """A communicator in the last answer that had it. `counts` is by rank, None for a rank that was missing."""

    counts: Mapping[int, Counts | None]
    still: Still
    missing: Mapping[int, Still]


@dataclasses.dataclass(frozen=True)
class History:
    """Communicators by id, and devices."""

    communicators: Mapping[str, Seen] = dataclasses.field(default_factory=dict)
    devices: Mapping[Device, Still] = dataclasses.field(default_factory=dict)

    def after(self, answer: Answer, now: float) -> History:
        """The history with an answer that came at `now`."""
        kept = {name: seen for name, seen in self.communicators.items() if _is_recent(seen.still, now)}
        changed: set[Device] = set()
        for communicator in answer.communicators:
            seen, moved = _seen(communicator, kept.get(communicator.id), now)
            kept[communicator.id] = seen
            changed |= moved
        devices = {device: still for device, still in self.devices.items() if _is_recent(still, now)}
        devices |= {device: self._device(device, device in changed, now) for device in _devices(answer)}
        return History(_limited(kept, answer), devices)

    def _device(self, device: Device, changed: bool, now: float) -> Still:
        before = self.devices.get(device)
        return Still(now, now) if before is None or changed else before.again(now)


def counts_of(launches: Mapping[str, int]) -> Counts:
    return tuple(sorted((name, count) for name, count in launches.items() if count))


def _seen(communicator: Communicator, before: Seen | None, now: float) -> tuple[Seen, set[Device]]:
    """The communicator as it is now, and the devices whose counts in it changed."""
    counts: dict[int, Counts | None] = {rank.rank: counts_of(rank.collective_counts) for rank in communicator.ranks}
    known = before.counts if before else {}
    moved = {
        Device(rank.host, rank.pid, rank.cuda_dev)
        for rank in communicator.ranks
        if known.get(rank.rank) is not None and known[rank.rank] != counts[rank.rank]
    }
    missing = {rank.rank: Still(now, now) for rank in communicator.missing_ranks}
    if before:
        missing |= {number: before.missing[number].again(now) for number in missing if number in before.missing}
    still = Still(now, now) if before is None or moved else before.still.again(now)
    return Seen(counts | dict.fromkeys(missing), still, missing), moved


def _devices(answer: Answer) -> Iterable[Device]:
    return {
        Device(rank.host, rank.pid, rank.cuda_dev)
        for communicator in answer.communicators
        for rank in communicator.ranks
    }


def _is_recent(still: Still, now: float) -> bool:
    return now - still.until < FORGET_SECONDS


def _limited(kept: Mapping[str, Seen], answer: Answer) -> Mapping[str, Seen]:
    """Only those of the newest answer, where all together have too many ranks."""
    if sum(len(seen.counts) for seen in kept.values()) <= MAX_RANKS:
        return kept
    newest = {communicator.id for communicator in answer.communicators}
    return {name: seen for name, seen in kept.items() if name in newest}


# One answer of NCCL RAS, and what changed since those before it, as the agent reports it. Pure.
#
# Of a job with thousands of ranks nearly all are alike. Listed are, in each of their communicators, the devices of this
# node, those behind in any communicator, those with an error, and the ranks that are missing.

MAX_LISTED: Final = 1024
"""The most ranks of communicators in one job's report."""

MAX_COMMUNICATORS: Final = 256
"""The most communicators in one job's report: the largest, those with something wrong, then the next in size."""


class Here(NamedTuple):
    """The knowledge of the agent about its own node: which of the hosts are its addresses, what it sees of the
    processes there (running, stopped, gone), by pid, and the name of the job, None where nothing tells it."""

    hosts: frozenset[str]
    processes: Mapping[int, str]
    job_name: str | None


def summarise(answer: Answer, history: History, here: Here, owner: int) -> RasJob:
    """Returns the job that the answer is about, as of that answer. `history` ends with it; `owner` is a uid."""
    listed = _listed_devices(answer, here)
    reports = [_report(it, history, here, listed) for it in answer.communicators]
    world = largest(answer)
    shown = sorted(reports, key=lambda it: (world is None or it.id != world.id, *_importance(it)))[:MAX_COMMUNICATORS]
    return RasJob(
        job_id=here.job_name or job_name(answer),
        owner=owner,
        nccl_version=answer.nccl_version,
        age_seconds=0.0,
        local_hosts=tuple(sorted(here.hosts)),
        communicators=tuple(_cut(shown)),
    )


def largest(answer: Answer) -> Communicator | None:
    """The communicator with the most ranks; of several the one with the first hash."""
    return min(answer.communicators, key=lambda it: (-it.size, it.id), default=None)


def job_name(answer: Answer) -> str:
    """The name of a job that no scheduler named: after its largest communicator, which all its nodes see."""
    world = largest(answer)
    return f"nccl-{world.hash.removeprefix('0x')}" if world else "nccl"


def place_among_nodes(answer: Answer, local_hosts: frozenset[str]) -> int:
    """The number of the job's hosts that come before this node, in the order of their lowest ranks that answered."""
    world = largest(answer)
    in_order = dict.fromkeys(rank.host for rank in sorted(world.ranks, key=lambda it: it.rank)) if world else {}
    places = [place for place, host in enumerate(in_order) if host in local_hosts]
    return min(places, default=len(in_order))


def front(communicator: Communicator) -> Counts:
    """The counts of the ranks that have launched the most collectives; where those differ, the most frequent ones."""
    counts = Counter(counts_of(rank.collective_counts) for rank in communicator.ranks)
    return max(counts, key=lambda each: (sum(count for _, count in each), counts[each]), default=())


def _device(rank: Member) -> Device:
    return Device(rank.host, rank.pid, rank.cuda_dev)


def _listed_devices(answer: Answer, here: Here) -> frozenset[Device]:
    listed: set[Device] = set()
    for communicator in answer.communicators:
        ahead = front(communicator)
        listed.update(_device(rank) for rank in communicator.missing_ranks)
        for rank in communicator.ranks:
            if rank.host in here.hosts or rank.status.async_error or counts_of(rank.collective_counts) != ahead:
                listed.add(_device(rank))
    return frozenset(listed)


def _report(communicator: Communicator, history: History, here: Here, listed: frozenset[Device]) -> RasCommunicator:
    ahead, still = front(communicator), history.communicators[communicator.id].still
    return RasCommunicator(
        id=communicator.id,
        size=communicator.size,
        answered=len(communicator.ranks),
        launches=dict(ahead),
        at_front=sum(counts_of(rank.collective_counts) == ahead for rank in communicator.ranks),
        unchanged_seconds=round(still.seconds, 3),
        readings=still.readings,
        ranks=tuple(_rows(communicator, history, here, listed)),
        starting=any(rank.status.starting for rank in communicator.ranks),
        ending=any(rank.status.ending for rank in communicator.ranks),
    )


def _rows(communicator: Communicator, history: History, here: Here, listed: frozenset[Device]) -> Iterator[RasRank]:
    """The ranks to be listed: missing ones first, then those that are the furthest behind."""
    missing = history.communicators[communicator.id].missing
    for absent in communicator.missing_ranks:
        row = _row(absent, here, missing[absent.rank])
        dead, unresponsive = absent.status.considered_dead, absent.status.unresponsive
        yield RasRank(*row, missing=True, dead=dead, unresponsive=unresponsive, process=_process(absent, here))
    chosen = (rank for rank in communicator.ranks if _device(rank) in listed)
    for rank in sorted(chosen, key=lambda it: (sum(it.collective_counts.values()), it.rank)):
        row = _row(rank, here, history.devices[_device(rank)])
        yield RasRank(*row, async_error=rank.status.async_error, process=_process(rank, here))


class _Row(NamedTuple):
    """The fields that every rank's row has, in the order of RasRank's."""

    rank: int
    host: str
    pid: int
    gpu: int
    launches: dict[str, int]
    unchanged_seconds: float
    readings: int


def _row(rank: Member, here: Here, still: Still) -> _Row:
    launches = dict(counts_of(rank.collective_counts)) if isinstance(rank, Rank) else {}
    host = rank.host or UNKNOWN_HOST
    return _Row(rank.rank, host, rank.pid, rank.cuda_dev, launches, round(still.seconds, 3), still.readings)


def _process(rank: Member, here: Here) -> str:
    return here.processes.get(rank.pid, "") if rank.host in here.hosts else ""


def _importance(it: RasCommunicator) -> tuple[bool, int, str]:
    healthy = it.at_front == it.size and not any(rank.async_error for rank in it.ranks)
    return healthy, -it.size, it.id


def _cut(communicators: list[RasCommunicator]) -> Iterator[RasCommunicator]:
    """The communicators with MAX_LISTED ranks together, and in each how many are left out."""
    room = MAX_LISTED
    for it in communicators:
        left_out = max(0, len(it.ranks) - room)
        yield structs.replace(it, ranks=it.ranks[:room], left_out=left_out)
        room = max(0, room - len(it.ranks))
