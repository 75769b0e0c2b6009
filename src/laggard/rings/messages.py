"""The messages of a ring's processes to each other, as JSON lines.

Each node has one supervisor (member.py). It starts a worker for each of its ranks, and connects to the coordinator,
which runs in the supervisor of node 0. The coordinator commands ranks, and supervisors pass on what it and the workers
say. The types are strict and a line is bounded: whoever connects may send anything.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from laggard.rings.membership import NodeShare
from laggard.rings.options import RingOptions
from laggard.wire import decode, encode

MAX_BYTES: Final = 1 << 16
"""The most bytes that a message may have."""

MAX_PART_BYTES: Final = 1 << 15
"""The most bytes of a value that one message carries: in base64 they are a third more."""


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="say"):
    pass


# From a worker to its supervisor, and on to the coordinator.


class Ready(_Message, frozen=True, tag="ready"):
    """The worker has imported torch. `reason`: why it cannot take part; empty: it can. Only the first worker of a node
    counts `devices`."""

    device: str  # cuda or cpu
    devices: int
    model: str
    torch: str
    nccl: str
    reason: str = ""


class Done(_Message, frozen=True, tag="done"):
    """The rank has done a command that has no result of its own."""


class Put(_Message, frozen=True, tag="put"):
    """A part of what the rank tells the others under `key`, by which they find one another: `part`, counted from 0, of
    `parts`."""

    key: str
    part: int
    parts: int
    value: bytes


class Want(_Message, frozen=True, tag="want"):
    """The rank waits for a part of what another one tells under `key`."""

    key: str
    part: int


class Connected(_Message, frozen=True, tag="connected"):
    """The ends (`10.0.0.1:4711`) of the rank's TCP connections and listening sockets, its own, and the other ends of
    those that it has `taken` from whoever connected."""

    ends: tuple[str, ...]
    taken: tuple[str, ...]


class Learned(_Message, frozen=True, tag="learned"):
    """The coordinator's address, which torchrun's store holds."""

    text: str


class Measured(_Message, frozen=True, tag="measured"):
    """Times of one operation at one size, as one rank saw them, and how many elements of its results were wrong."""

    op: str
    size_bytes: int
    iterations: int
    mean: float
    best: float
    p50: float
    p95: float
    p99: float
    worst: float
    wrong: int


class Computed(_Message, frozen=True, tag="computed"):
    """The speed of the rank's device in a matrix multiplication, and how many values of the product were wrong."""

    per_second: float
    checked: int
    wrong: int
    error: str = ""


class Paired(_Message, frozen=True, tag="paired"):
    """An all-reduce between two nodes as one rank saw it. `error`: it failed, and the times mean nothing."""

    name: str
    seconds: float
    wrong: int
    iterations: int = 0
    error: str = ""


class Observed(_Message, frozen=True, tag="observed"):
    """The transports that the rank's NCCL logged (`nccl/transport.py`), and whether its machine has RDMA."""

    transport: str
    rdma: bool | None


class Failed(_Message, frozen=True, tag="failed"):
    """The rank could not do what it was commanded."""

    text: str


Report: TypeAlias = Ready | Done | Put | Want | Connected | Learned | Measured | Computed | Paired | Observed | Failed


# To a rank: from the coordinator, and two from its own supervisor.


class Publish(_Message, frozen=True, tag="publish"):
    """The rank is to write the coordinator's address into torchrun's store at `host`:`port`."""

    host: str
    port: int
    text: str


class Learn(_Message, frozen=True, tag="learn"):
    """The rank is to read it there, and to wait for it as long as `seconds`."""

    host: str
    port: int
    seconds: float


class Join(_Message, frozen=True, tag="join"):
    """The rank learns its place. Its supervisor fills in `address`, unless the coordinator knows better: that of this
    node on the way to the coordinator."""

    rank: int
    world: int
    address: str = ""


class Value(_Message, frozen=True, tag="value"):
    """A part that the rank waits for (Want), as another rank told it (Put)."""

    key: str
    part: int
    parts: int
    value: bytes


class Sweep(_Message, frozen=True, tag="sweep"):
    options: RingOptions
    deadline_seconds: float


class Compute(_Message, frozen=True, tag="compute"):
    seconds: float


class Pair(_Message, frozen=True, tag="pair"):
    """The ranks `members` are to all-reduce among themselves, for about `seconds`."""

    name: str
    members: tuple[int, ...]
    size_bytes: int
    seconds: float
    deadline_seconds: float


class Observe(_Message, frozen=True, tag="observe"):
    """The rank is to report which transports its NCCL uses, after a collective."""


Command: TypeAlias = Publish | Learn | Join | Value | Sweep | Compute | Pair | Observe


# Between a supervisor and the coordinator.


class Challenge(_Message, frozen=True, tag="challenge"):
    """The coordinator's first words to whoever connects."""

    nonce: str
    token: bool


class Hello(_Message, frozen=True, tag="hello"):
    """A node and what it brings. `launched`: it is one of a launcher's processes, of which a machine has several."""

    index: int
    launched: bool
    nodes: int
    node: str
    boot_id: str
    ranks: int
    device: str
    model: str
    laggard: str
    torch: str
    nccl: str
    job: str
    options: RingOptions
    nonce: str
    proof: str


class Accepted(_Message, frozen=True, tag="accepted"):
    proof: str


class Refused(_Message, frozen=True, tag="refused"):
    text: str


class Begin(_Message, frozen=True, tag="begin"):
    """All nodes have come; this one's ranks are `first_rank` and those after it."""

    first_rank: int


class ToRank(_Message, frozen=True, tag="to_rank"):
    rank: int
    command: Command


class FromRank(_Message, frozen=True, tag="from_rank"):
    rank: int
    report: Report


class RankDied(_Message, frozen=True, tag="rank_died"):
    rank: int
    text: str


class Leave(_Message, frozen=True, tag="leave"):
    """The node has ended its ranks, and goes: nothing is wrong with it. `text`: why."""

    text: str


class Beat(_Message, frozen=True, tag="beat"):
    """A sign of life, once a second, from each side."""


class End(_Message, frozen=True, tag="end"):
    """The ring is over. `status`: how every node's process exits; `text`: why, where it is not 0; `share`: this
    node's, in a gang."""

    status: int
    text: str = ""
    share: NodeShare | None = None


FromMember: TypeAlias = Hello | FromRank | RankDied | Leave | Beat
FromCoordinator: TypeAlias = Challenge | Accepted | Refused | Begin | ToRank | Beat | End


def line(message: msgspec.Struct) -> bytes:
    return encode(message) + b"\n"


def read_report(data: bytes) -> Report:
    """Raises WireError, as the other functions here."""
    return decode(data, Report)  # type: ignore[arg-type]


def read_command(data: bytes) -> Command:
    return decode(data, Command)  # type: ignore[arg-type]


def read_from_member(data: bytes) -> FromMember:
    return decode(data, FromMember)  # type: ignore[arg-type]


def read_from_coordinator(data: bytes) -> FromCoordinator:
    return decode(data, FromCoordinator)  # type: ignore[arg-type]
