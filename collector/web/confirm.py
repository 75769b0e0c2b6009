"""POST /api/v1/confirm: an operator tells that a suspect was measured, and what came of it. It needs their token,
and is off without one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from laggard.collector.fleet.nonces import Nonces
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.bodies import read_body
from laggard.collector.web.source import ClusterSource
from laggard.secret_files import TokenFile
from laggard.text.words import printable_line
from laggard.wire import WireError, decode, encode
from laggard.wire.exclusion import ConfirmAsk, ConfirmedDocument, is_signed

log = logging.getLogger("laggard.collector")

CLOCK_SECONDS: Final = 300.0
"""The largest difference between the clocks of who asks and the collector: older questions may be an eavesdropper's."""
_MAX_BYTES: Final = 64 << 10
_MAX_NONCES: Final = 1 << 12
_OFF: Final = "no measurement of a suspect is taken here: this collector has no confirm_token_file\n"
_REFUSED: Final = "another token than the collector's\n"


def confirm_handler(source: ClusterSource, settings: CollectorSettings) -> Callable[[Request], Awaitable[Response]]:
    """Raises UsageError where the token cannot be read."""
    tokens = TokenFile(settings.confirm_token_file, "confirm_token_file")
    nonces, lock = Nonces(CLOCK_SECONDS, _MAX_NONCES, time.time()), threading.Lock()

    async def confirm(request: Request) -> Response:
        if not tokens:
            return PlainTextResponse(_OFF, 403)
        try:
            ask = decode(await read_body(request, _MAX_BYTES), ConfirmAsk)
        except (WireError, ClientDisconnect) as error:
            return PlainTextResponse(f"no measurement of a suspect: {error}\n", 400)
        if not is_signed(tokens.accepted(), ask):
            return PlainTextResponse(_REFUSED, 403)
        with lock:
            refusal = nonces.refusal(ask.nonce, ask.at, time.time())
        if refusal := refusal or _wrong(source, ask):
            return PlainTextResponse(f"{refusal}\n", 409)
        it = ask.confirmation
        incidents = source.incidents.confirm(it)
        log.info(
            "%s measured %s, %s: %s", *(printable_line(text, 200) for text in (it.by, it.node, it.outcome, it.why))
        )
        return Response(encode(ConfirmedDocument(it, incidents)), media_type="application/json")

    return confirm


def _wrong(source: ClusterSource, ask: ConfirmAsk) -> str:
    """Why the measurement counts for nothing; empty where it does."""
    known = {row.node for row in source.snapshot.nodes}
    if ask.confirmation.node not in known:
        return (
            f"no agent has reported as {printable_line(ask.confirmation.node, 80)}: its name is what the agent reports"
        )
    if ask.confirmation.at > ask.at + CLOCK_SECONDS:
        return "the measurement is of a later time than the question"
    return ""
