"""Proof that a node knows the ring's token, without sending it: HMAC-SHA256 over both sides' nonces. Standard library
only, and pure but for the nonces.

It keeps strangers and other rings' nodes out of this one. It does not encrypt, and what ranks then exchange is not
signed: a ring belongs on the network that the training itself trusts.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets


def new_nonce() -> str:
    return secrets.token_hex(16)


def member_proof(token: str, index: int, challenge: str, nonce: str) -> str:
    return _proof(token, f"member {index}", challenge, nonce)


def coordinator_proof(token: str, challenge: str, nonce: str) -> str:
    return _proof(token, "coordinator", challenge, nonce)


def is_proof(proof: str, expected: str) -> bool:
    return hmac.compare_digest(proof.encode(), expected.encode())


def _proof(token: str, side: str, challenge: str, nonce: str) -> str:
    text = "\0".join(("laggard ring", side, challenge, nonce))
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()
