"""The middleware that puts security headers on every answer of the collector."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from laggard.http import security_headers

HEADERS: Final = security_headers.page("script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'")
"""What the collector's page may load: its own script, style, icon and API."""


def with_security_headers(app: ASGIApp) -> ASGIApp:
    """Wraps `app`: each answer gets those of HEADERS that `app` has not set itself. Errors that Starlette answers get
    them too, so this is the outermost layer."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS:
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, send_with_headers)

    return wrapped
