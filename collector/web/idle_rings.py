"""POST /api/v1/rings/due: an agent whose node is idle asks whether a ring is due. It needs the token, and is off
without one."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from laggard.collector.fleet.idle_rings import IdleRings, IdleRingSettings
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.bodies import read_body
from laggard.collector.web.ring_suspects import ring_suspects
from laggard.collector.web.source import ClusterSource
from laggard.rings.authentication import signed, signer
from laggard.secret_files import TokenFile
from laggard.wire import WireError, decode, encode
from laggard.wire.idle_rings import RingAsk, RingDue

_MAX_BYTES: Final = 4096
_OFF: Final = "no ring is ever due here: this collector has no ring_token_file\n"
_REFUSED: Final = "another token than the collector's\n"


def idle_ring_handler(source: ClusterSource, settings: CollectorSettings) -> Callable[[Request], Awaitable[Response]]:
    """Raises UsageError where the token cannot be read."""
    tokens = TokenFile(settings.ring_token_file, "ring_token_file")
    rings = IdleRings(
        IdleRingSettings(
            settings.ring_period_seconds, settings.ring_nodes, settings.ring_ask_seconds, settings.ring_port
        ),
        time.time(),
    )

    async def due(request: Request) -> Response:
        if not tokens:
            return PlainTextResponse(_OFF, 403)
        try:
            ask = decode(await read_body(request, _MAX_BYTES), RingAsk)
        except (WireError, ClientDisconnect) as error:
            return PlainTextResponse(f"no question about a ring: {error}\n", 400)
        token = signer(tokens.accepted(), "agent", ask)
        if token is None:
            return PlainTextResponse(_REFUSED, 403)
        refusal = rings.refusal(ask, time.time())
        if refusal:
            return PlainTextResponse(f"{refusal}\n", 409)
        suspects = ring_suspects(source, settings.ring_period_seconds)
        answer = rings.answer(ask.node, source.snapshot.nodes, suspects, time.monotonic())
        document = RingDue(ask.nonce, answer.reason, settings.ring_ask_seconds, answer.ring)
        answered = signed(token, "collector", document)  # by the one that this agent knows
        return Response(encode(answered), media_type="application/json")

    return due
