"""The bodies of requests, which anybody may send before a token is checked: how large one may be, and all together."""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from laggard.wire import WireError

SMALL_BYTES: Final = 16 << 10
"""The size up to which a body needs no room among the large ones, so that those who send large ones keep nobody out."""


class LargeBodies:
    """The bytes that all bodies beyond SMALL_BYTES hold together: at most `most`."""

    def __init__(self, most: int) -> None:
        self._left = most

    async def read(self, request: Request, most: int) -> bytes:
        """The body, of `most` bytes. Raises WireError where it is longer, HTTPException with 503 where others leave no
        room for it, and ClientDisconnect."""
        data, held = bytearray(), 0
        try:
            async for chunk in request.stream():
                data += chunk
                if len(data) > most:
                    raise WireError(f"more than {most} bytes")
                if len(data) > SMALL_BYTES and not held:
                    if self._left < most:
                        raise HTTPException(
                            503, "too many clients send at once: send again later\n", {"Retry-After": "5"}
                        )
                    held = most
                    self._left -= held
            return bytes(data)
        finally:
            self._left += held


async def read_body(request: Request, most: int) -> bytes:
    """The body, of `most` bytes, which are few. Raises WireError where it is longer, and ClientDisconnect."""
    return await LargeBodies(most).read(request, most)
