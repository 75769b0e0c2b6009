"""Findings that an operator knows of, and that drain nothing until a moment that the operator chose."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

ALL_CODES = "*"
"""The word in place of a code that means all findings of the nodes, as in a maintenance window."""
ANY_DEVICE = "*"

MAX_SECONDS = 90 * 86400.0
MAX_NODES = 4096
Text = Annotated[str, Meta(max_length=500)]
Name = Annotated[str, Meta(max_length=256)]
Code = Annotated[str, Meta(max_length=64, pattern=r"^(\*|[A-Z0-9_]+)$")]
UnixTime = Annotated[float, Meta(ge=0, le=1e11)]


class Covered(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finding as it was when it was acknowledged: on this device, no graver than `severity`, and of this `kind`, such
    as the number of an Xid. Empty: any."""

    device: Name
    severity: Name = ""
    kind: Name = ""


class Acknowledgement(msgspec.Struct, frozen=True, omit_defaults=True):
    """`by` has acknowledged `code` on `nodes`, from `at` until `until` (Unix seconds). `covers`: the findings that it
    is about; empty: all of the code. `id`: the name by which it is withdrawn."""

    id: Name
    code: Code
    nodes: Annotated[tuple[Name, ...], Meta(max_length=MAX_NODES)]
    by: Name
    reason: Text
    at: UnixTime
    until: UnixTime
    covers: Annotated[tuple[Covered, ...], Meta(max_length=512)] = ()


class AcknowledgementsDocument(msgspec.Struct, frozen=True):
    """`laggard.acknowledgements/1`: those that hold, in the order in which they end. Also what the files hold."""

    acknowledgements: tuple[Acknowledgement, ...] = ()
    schema: str = "laggard.acknowledgements/1"


class AcknowledgeAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`laggard.acknowledge/1`: acknowledge `code` on `nodes` for `seconds`; or, where `withdraw` is an id, end that
    one. `device`: the only one; empty: those that have the finding now; `*`: any. `at`: Unix time; `nonce`: used
    once."""

    by: Name
    at: UnixTime
    nonce: Name
    code: Name = ""
    nodes: Annotated[tuple[Name, ...], Meta(max_length=MAX_NODES)] = ()
    device: Name = ""
    seconds: Annotated[float, Meta(ge=0, le=MAX_SECONDS)] = 0.0
    reason: Text = ""
    withdraw: Name = ""
    proof: Name = ""
    schema: str = "laggard.acknowledge/1"
