"""Requests that need a token: how large their bodies may be, that each counts once, and POST /api/v1/confirm of a
suspect's measurement."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from laggard.collector.settings import CollectorSettings
from laggard.collector.web.source import ClusterSource
from laggard.kit.secret_files import TokenFile
from laggard.kit.words import printable_line
from laggard.wire import WireError, decode, encode
from laggard.wire.exclusion import ConfirmAsk, ConfirmedDocument, is_signed

# Signed questions count once, and not much later than they were asked. Pure, but for the monotonic clock.
#
# What was heard is kept by the monotonic clock: a step of the clock, there and back, must not make an old question new.
# What was asked before this collector started it may have heard before.


class Nonces:
    """To be used under a lock. `clock_seconds`: the largest difference between the clocks of who asks and of this
    collector; `most`: how many questions are kept; `since`: questions of an earlier Unix time count for nothing."""

    def __init__(
        self, clock_seconds: float, most: int, since: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock_seconds, self._most, self._since, self._clock = clock_seconds, most, since, clock
        self._heard: dict[str, float] = {}

    def refusal(self, nonce: str, at: float, wall: float) -> str:
        """The reason why the question, asked at `at`, counts for nothing; empty where it counts, and never again."""
        if not abs(at - wall) <= self._clock_seconds:
            return f"your clock and the collector's are {abs(at - wall):.0f} s apart: set them"
        if at < self._since:
            return "this was asked before the collector started: ask again"
        if nonce in self._heard or not 16 <= len(nonce) <= 64:
            return "this was asked before"
        now = self._clock()
        if len(self._heard) >= self._most:
            self._heard = {each: heard for each, heard in self._heard.items() if heard > now - 2 * self._clock_seconds}
        if len(self._heard) >= self._most:
            return "too many questions: ask again later"
        self._heard[nonce] = now
        return ""


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
    """The reason why the measurement counts for nothing; empty where it does."""
    known = {row.node for row in source.snapshot.nodes}
    if ask.confirmation.node not in known:
        return (
            f"no agent has reported as {printable_line(ask.confirmation.node, 80)}: its name is what the agent reports"
        )
    if ask.confirmation.at > ask.at + CLOCK_SECONDS:
        return "the measurement is of a later time than the question"
    return ""
