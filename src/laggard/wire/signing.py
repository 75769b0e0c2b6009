"""Proof that who made a document knows a token, without sending it: HMAC-SHA256 over the document with an empty
`proof`, and over what it is, so that it passes for nothing else."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final, TypeVar

from msgspec import Struct, structs

from laggard.kit.secret_files import proved_by
from laggard.wire import encode

CONFIRM: Final = "laggard confirm"
STACKS: Final = "laggard stacks"
RING_AGENT, RING_COLLECTOR = "laggard idle rings\0agent", "laggard idle rings\0collector"

T = TypeVar("T", bound=Struct)


def signed(token: str, what: str, document: T) -> T:
    """The document, which has a field `proof`, with its proof. `what`: what it is, and who says it."""
    data = encode(structs.replace(document, proof=""))
    proof = hmac.new(token.encode(), f"{what}\0".encode() + data, hashlib.sha256).hexdigest()
    return structs.replace(document, proof=proof)


def signer(tokens: Sequence[str], what: str, document: Struct) -> str | None:
    """The one of the tokens with which the document was signed; None: it is none of them."""
    told = encode(document)
    return proved_by(tokens, lambda token: hmac.compare_digest(told, encode(signed(token, what, document))))
