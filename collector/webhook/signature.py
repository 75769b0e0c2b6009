"""The signature of a webhook's request, as Standard Webhooks has it (standardwebhooks.com, version 1): HMAC-SHA256, by
a shared secret, of the message's id, the time of this try, and the body. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

PREFIX: Final = "whsec_"

MIN_KEY_BYTES, MAX_KEY_BYTES = 24, 64
"""The length of a key, by the same specification."""


def key_of(secret: str) -> bytes:
    """The key that a secret stands for: `whsec_` and the key in base64. Raises ValueError."""
    encoded = secret.removeprefix(PREFIX)
    try:
        key = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise ValueError(f"is no {PREFIX} with {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes in base64 after it")
    return key


def signed(key: bytes | None, number: str, seconds: int, body: bytes) -> Mapping[str, str]:
    """The headers of a message: its id, the time in Unix seconds, and where there is a key the signature."""
    headers = {"webhook-id": number, "webhook-timestamp": str(seconds)}
    if key is None:
        return headers
    digest = hmac.new(key, f"{number}.{seconds}.".encode() + body, hashlib.sha256).digest()
    return {**headers, "webhook-signature": f"v1,{base64.b64encode(digest).decode()}"}
