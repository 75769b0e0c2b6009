"""`laggard.collectives/1`: the last collectives of single ranks, which an agent reads from their rank files when it is
asked for them."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from laggard.limits import Clock, Count, Peer, Seconds, Text
from laggard.wire.ranks import MAX_LANES

MAX_ROWS: Final = 4096

COLLECTIVES_SCHEMA = "laggard.collectives/1"


class CollectiveLane(msgspec.Struct, frozen=True, array_like=True):
    """The key by which a rank's collectives of one operation in one group are counted; `peer` as in InFlight."""

    op: Text
    role: Text
    group: Text
    peer: Peer


class CollectiveRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A collective that is over. `lane`: its place among the lanes; `seq` counts those of the lane from 0. Times in
    seconds on the node's monotonic clock; `waited`: how long the caller was blocked; `size` in bytes."""

    step: Count
    lane: Count
    seq: Count
    start: Clock
    end: Clock
    waited: Seconds
    size: Count


class RankCollectives(msgspec.Struct, frozen=True):
    """The last collectives of one rank, in the order of their begin."""

    rank: int
    lanes: Annotated[tuple[CollectiveLane, ...], Meta(max_length=MAX_LANES)]
    rows: Annotated[tuple[CollectiveRow, ...], Meta(max_length=MAX_ROWS)]


class CollectivesDocument(msgspec.Struct, frozen=True):
    """Those of the ranks that were asked for, as far as they run on the node."""

    node: str
    owner: int
    job_id: str
    ranks: tuple[RankCollectives, ...]
    schema: str = COLLECTIVES_SCHEMA
