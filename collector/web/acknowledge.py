"""POST /api/v1/acknowledge: an operator acknowledges a finding, or withdraws that. It needs the token, and is off
without one."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from laggard.acknowledge.asked import NotAcknowledged, is_signed
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.bodies import LargeBodies
from laggard.collector.web.source import ClusterSource
from laggard.secret_files import TokenFile
from laggard.text.words import printable_line
from laggard.wire import WireError, decode, encode
from laggard.wire.acknowledgement import AcknowledgeAsk, AcknowledgementsDocument

log = logging.getLogger("laggard.collector")

_MAX_BYTES: Final = 2 << 20
"""More than 4,096 names of 256 characters."""
_LARGE_AT_ONCE: Final = 4
_OFF: Final = "nothing can be acknowledged here: this collector has no acknowledge_token_file\n"
_REFUSED: Final = "another token than the collector's\n"


def acknowledge_handler(source: ClusterSource, settings: CollectorSettings) -> Callable[[Request], Awaitable[Response]]:
    """Raises UsageError where the token cannot be read."""
    tokens = TokenFile(settings.acknowledge_token_file, "acknowledge_token_file")
    bodies = LargeBodies(_LARGE_AT_ONCE * _MAX_BYTES)

    async def acknowledge(request: Request) -> Response:
        if not tokens:
            return PlainTextResponse(_OFF, 403)
        try:
            ask = decode(await bodies.read(request, _MAX_BYTES), AcknowledgeAsk)
        except (WireError, ClientDisconnect) as error:
            return PlainTextResponse(f"no acknowledgement: {error}\n", 400)
        if not is_signed(tokens.accepted(), ask):
            return PlainTextResponse(_REFUSED, 403)
        now = time.time()
        if refusal := source.acknowledgements.refusal(ask, now):
            return PlainTextResponse(f"{refusal}\n", 409)
        present = [it.finding for it in source.snapshot.findings if it.node in ask.nodes]
        try:
            granted = await run_in_threadpool(source.acknowledgements.grant, ask, present, now)
        except NotAcknowledged as error:
            return PlainTextResponse(f"{error}\n", 409)
        what = f"withdrew {ask.withdraw}" if ask.withdraw else f"acknowledged {ask.code} for {ask.seconds:.0f} s"
        log.info("%s %s: %s", printable_line(ask.by, 64), what, printable_line(ask.reason, 200))
        return Response(encode(AcknowledgementsDocument(granted)), media_type="application/json")

    return acknowledge
