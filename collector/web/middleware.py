"""The middleware of the collector: security headers on every answer, and no answer for a name that is not its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from laggard.collector.web.hosts import is_own_name
from laggard.http import security_headers
from laggard.text.words import printable_line

HEADERS: Final = security_headers.page("script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'")
"""The headers of the collector's page, which say what it may load: its own script, style, icon and API."""


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


def with_host_check(app: ASGIApp, allowed: Sequence[str]) -> ASGIApp:
    """Wraps `app`: a request under another name than those of hosts.is_own_name() gets status 421. Starlette's own
    check takes names alone, and most clients here write an address."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host", "") if scope["type"] == "http" else ""
        if is_own_name(host, allowed):
            await app(scope, receive, send)
            return
        text = f"{printable_line(host, 100)} is not a name of this collector: list it under allowed_hosts\n"
        await PlainTextResponse(text, 421)(scope, receive, send)

    return wrapped
