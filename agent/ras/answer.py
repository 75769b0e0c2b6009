"""NCCL RAS's status, from JSON to values. It may come from any user's program: what is absurd is refused as a whole.

The form is that of NCCL 2.28.7 to 2.30.7, src/ras/client_support.cc: rasDumpCommsToJSON and the functions that it
calls. AMD's RCCL has the same since it follows those (ROCm/rocm-systems 2386d61, projects/rccl): in `nccl_version` its
own version, in `cuda_runtime_version` HIP's, and its own operations among the counts. Fields that are not used are not
read, and new ones do no harm.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

import msgspec

from laggard.nccl.ras import RasError

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
    if text in ("", UNKNOWN_HOST):
        return True
    try:
        return len(text) <= _MAX_WORD and bool(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return False


def _version(text: str) -> tuple[int, ...]:
    found = re.match(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})", text)
    return tuple(map(int, found.groups())) if found and len(text) <= _MAX_WORD else ()


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise RasError(f"its answer is absurd: {problem}")
