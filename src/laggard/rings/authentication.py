"""Proof that a node knows the ring's token, without sending it: HMAC-SHA256 over both sides' nonces, and over what an
agent and its collector say to each other. Pure but for the nonces.

It keeps strangers and other rings' nodes out of this one, and what nodes and coordinator say afterwards is signed, line
by line, with a key that only these two know. Nothing is encrypted, and the data that ranks exchange by gloo or NCCL is
not signed: a ring belongs on the network that the training itself trusts.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import TypeVar

from msgspec import structs

from laggard.rings.messages import Hello
from laggard.secret_files import proved_by
from laggard.wire.codec import encode
from laggard.wire.idle_rings import RingAsk, RingDue

Signable = RingAsk | RingDue
T = TypeVar("T", RingAsk, RingDue)


def new_nonce() -> str:
    return secrets.token_hex(16)


def member_proof(token: str, challenge: str, hello: Hello) -> str:
    """The proof is over all that the node says of itself."""
    return _proof(token, "member", challenge, encode(structs.replace(hello, proof="")).decode())


def shown_token(tokens: Sequence[str], challenge: str, hello: Hello) -> str:
    """Returns the one of the tokens that the node has proved to know; the first where it proves none. Where no token
    is needed it is empty."""
    proved = proved_by(tokens or ("",), lambda token: is_proof(hello.proof, member_proof(token, challenge, hello)))
    return next(iter(tokens), "") if proved is None else proved


def coordinator_proof(token: str, challenge: str, nonce: str) -> str:
    return _proof(token, "coordinator", challenge, nonce)


def session_key(token: str, challenge: str, nonce: str) -> bytes:
    """Returns the key of what a node and the coordinator say to each other on this connection, and on no other."""
    return bytes.fromhex(_proof(token, "session", challenge, nonce))


def line_proof(key: bytes, side: str, number: int, line: bytes) -> bytes:
    """Returns the proof of the line `number`, counted from 0, that `side` (`member`, `coordinator`) says. No line can
    be altered, left out, said again, or turned back upon its sender."""
    return hmac.new(key, f"{side} {number} ".encode() + line, hashlib.sha256).hexdigest().encode()


def is_proof(proof: str, expected: str) -> bool:
    return hmac.compare_digest(proof.encode(), expected.encode())


def _proof(token: str, side: str, challenge: str, nonce: str) -> str:
    text = "\0".join(("laggard ring", side, challenge, nonce))
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()


def signed(token: str, side: str, document: T) -> T:
    """Returns the document with its proof: `side` says it (`agent`, `collector`), and knows the token."""
    return structs.replace(document, proof=_document_proof(token, side, document))


def is_signed(token: str, side: str, document: Signable) -> bool:
    """Whether somebody who knows the token said this, as `side`."""
    return is_proof(document.proof, _document_proof(token, side, document))


def signer(tokens: Sequence[str], side: str, document: Signable) -> str | None:
    """Returns the one of the tokens with which somebody said this, as `side`; None: it is none of them."""
    return proved_by(tokens, lambda token: is_signed(token, side, document))


def token_of_ring(token: str, ring_id: str) -> str:
    """Returns the secret of one ring, so that a node which comes late to another one is none of it."""
    return hmac.new(token.encode(), f"laggard idle ring\0{ring_id}".encode(), hashlib.sha256).hexdigest()


def _document_proof(token: str, side: str, document: Signable) -> str:
    data = encode(structs.replace(document, proof=""))
    return hmac.new(token.encode(), f"laggard idle rings\0{side}\0".encode() + data, hashlib.sha256).hexdigest()
