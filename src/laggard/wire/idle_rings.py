"""The messages of an agent and its collector about rings on idle nodes: is one due, and which.

A ring is a fixed, typed description and never a command line. Both sides sign what they say with the token
(`wire.signing`); `proof` is over the document with an empty proof.
"""

from __future__ import annotations

import msgspec


class RingAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`laggard.ring_ask/1`: `node` is idle, and asks whether a ring is due. `at`: Unix time; `nonce`: used once."""

    node: str
    at: float
    nonce: str
    proof: str = ""
    schema: str = "laggard.ring_ask/1"


class RingTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ring in pairs among `nodes`, of which the asking node is `number`. Node 0 listens at `host`:`port`; where it
    does not come, node 1 at `second_host`. It begins in `begin_seconds`, measures for `seconds`, and is over after
    `deadline_seconds` from its beginning."""

    id: str
    number: int
    nodes: tuple[str, ...]
    host: str
    second_host: str
    port: int
    begin_seconds: float
    join_seconds: float
    seconds: float
    deadline_seconds: float


class RingDue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`laggard.ring_due/1`: the ring that the node is to take part in; None: `reason` says why there is none.
    `nonce`: the ask's."""

    nonce: str
    reason: str
    ask_again_seconds: float
    ring: RingTask | None = None
    proof: str = ""
    schema: str = "laggard.ring_due/1"
