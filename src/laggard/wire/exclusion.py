"""The nodes that the next job is to leave out, and what the measurement of a suspect confirmed or refuted."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

MAX_SECONDS = 7 * 86400.0
"""The longest time for which a node is left out that is not named again."""
MAX_SWAPS = 64
MAX_PEERS = 16
Name = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=500)]
UnixTime = Annotated[float, Meta(ge=0, le=1e11)]
Ratio = Annotated[float, Meta(ge=0, le=1e6)]


class SwapFigure(msgspec.Struct, frozen=True):
    """The best rate of an all-reduce in which `first` had the first place and `second` the second one, in bytes per
    second of bus bandwidth; None: it failed each time."""

    first: Name
    second: Name
    busbw_bytes_per_second: Annotated[float, Meta(ge=0)] | None


class Confirmation(msgspec.Struct, frozen=True):
    """The measurement of the suspect `node` in the places of its `peers`, which confirmed that it is slow or acquitted
    it. `at`: Unix time; `by`: who had it measured. `rate_ratio`: its exchanges' rate over that of the peers among
    themselves; `compute_ratio`: the same of computing."""

    node: Name
    outcome: Annotated[str, Meta(pattern="^(confirmed|acquitted)$")]
    at: UnixTime
    by: Name
    why: Text
    peers: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MAX_PEERS)]
    rate_ratio: Ratio | None = None
    compute_ratio: Ratio | None = None
    swaps: Annotated[tuple[SwapFigure, ...], Meta(max_length=MAX_SWAPS)] = ()


class ConfirmAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`laggard.confirm/1`: an operator's word to the collector that a suspect was measured. `at`: Unix time; `nonce`:
    used once."""

    confirmation: Confirmation
    at: UnixTime
    nonce: Name
    proof: Name = ""
    schema: str = "laggard.confirm/1"


class ConfirmedDocument(msgspec.Struct, frozen=True):
    """`laggard.confirmed/1`: what was kept. `incidents`: the ids of the node's incidents in which it stands now."""

    confirmation: Confirmation
    incidents: tuple[int, ...]
    schema: str = "laggard.confirmed/1"


BASES: Final = ("confirmed", "finding", "culprit")


class Exclusion(msgspec.Struct, frozen=True):
    """A node that the next job is to leave out. `basis`: confirmed (by a measurement), finding (a critical one) or
    culprit (of a job). `since` and `until`: Unix time; None: before the collector started, and as long as its checks
    fail. `incidents`: those that name it."""

    node: str
    basis: str
    reason: str
    since: float | None
    until: float | None
    codes: tuple[str, ...] = ()
    incidents: tuple[int, ...] = ()
    recoverable_ratio: float | None = None
    confirmation: Confirmation | None = None


class LeftIn(msgspec.Struct, frozen=True):
    """A node that was named, and is not left out, and why."""

    node: str
    why: str


class ExclusionsDocument(msgspec.Struct, frozen=True):
    """`laggard.exclusions/1`: the nodes that the next job is to leave out, the worst first, of which a list may have
    the first `cap`. `unknown`: why nothing can be said; empty: the list is whole. `seconds`: how long a node stays in
    it that is not named again."""

    exclusions: tuple[Exclusion, ...]
    cap: int
    answering: int
    nodes: int
    seconds: float
    now: float
    unknown: str = ""
    left_in: tuple[LeftIn, ...] = ()
    schema: str = "laggard.exclusions/1"


class ExcludeDocument(msgspec.Struct, frozen=True):
    """`laggard.exclude/1`, of `laggard exclude`: `names` are the nodes to leave out as the scheduler has them, the
    worst first, and `hostlist` the same as SLURM writes them; `listed` says why. `over_cap` are those that the cap
    keeps out of the list, `not_known` the names that the scheduler has no more. `scheduler`: who was asked (slurm,
    kubernetes, none)."""

    names: tuple[str, ...]
    hostlist: str
    listed: tuple[Exclusion, ...]
    over_cap: tuple[Exclusion, ...]
    not_known: tuple[str, ...]
    left_in: tuple[LeftIn, ...]
    scheduler: str
    cap: int
    answering: int
    seconds: float
    now: float
    schema: str = "laggard.exclude/1"


class SuspectDocument(msgspec.Struct, frozen=True):
    """`laggard.suspect/1`, of `laggard confirm`: what the measurement of `node` came to, and why. `confirmation`: with
    its figures; null: it could not be measured, or not told. `written`: whether the collector keeps it, which then
    stands in `incidents`."""

    node: str
    outcome: str  # confirmed, acquitted, unknown
    why: str
    confirmation: Confirmation | None = None
    written: bool = False
    incidents: tuple[int, ...] = ()
    schema: str = "laggard.suspect/1"
