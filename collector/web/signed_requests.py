"""Requests that are signed with a token: how large their bodies may be, that each counts once, how they are answered,
and POST /api/v1/confirm of a suspect's measurement."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from laggard.collector.settings import CollectorSettings
from laggard.collector.web.source import ClusterSource
from laggard.kit.secret_files import TokenFile
from laggard.kit.words import printable_line
from laggard.wire import WireError, decode, encode
from laggard.wire.exclusion import ConfirmAsk, ConfirmedDocument
from laggard.wire.idle_rings import RingAsk
from laggard.wire.signing import CONFIRM, signer
from laggard.wire.stacks import StacksAsk

# Signed questions count once, and not much later than they were asked. Pure, but for the monotonic clock.
#
# What was heard is kept by the monotonic clock: a step of the clock, there and back, must not make an old question new.
# What was asked before this collector started it may have heard before.


class Nonces:
    """Not thread-safe. `clock_seconds`: the largest difference between the clocks of who asks and of this
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


log = logging.getLogger("laggard.collector")

CLOCK_SECONDS: Final = 300.0
"""The largest difference between the clocks of who asks and the collector: older questions may be an eavesdropper's."""


T = TypeVar("T", RingAsk, ConfirmAsk, StacksAsk)
"""The documents that are signed: each tells when it was made, and has a nonce, which is used once."""

Handler = Callable[[Request], Awaitable[Response]]


@dataclasses.dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of signed request: `document` is its type, and `what` as of laggard.wire.signing. `off`, `none` and
    `refused`: what is said where there is no token, of what is no such document, and of another token. `at_once`:
    how many large bodies are read at once, of `max_bytes` each; 0: any number. `max_nonces`: so many are kept."""

    document: type[T]
    what: str
    off: str
    none: str
    refused: str = "another token than the collector's"
    max_bytes: int = 64 << 10
    max_nonces: int = 1 << 12
    at_once: int = 0


def signed_handler(tokens: TokenFile, kind: Kind[T], answer: Callable[[T, str], Awaitable[Struct]]) -> Handler:
    """`answer` makes the document that answers what was asked, with the token that signed it. It may raise
    HTTPException. The handler runs on the event loop: one question comes after the other."""
    nonces = Nonces(CLOCK_SECONDS, kind.max_nonces, time.time())
    together = LargeBodies(kind.at_once * kind.max_bytes) if kind.at_once else None

    async def handle(request: Request) -> Response:
        if not tokens:
            return PlainTextResponse(f"{kind.off}\n", 403)
        try:
            bodies = together or LargeBodies(kind.max_bytes)
            asked = decode(await bodies.read(request, kind.max_bytes), kind.document)
        except (WireError, ClientDisconnect) as error:
            return PlainTextResponse(f"{kind.none}: {error}\n", 400)
        token = signer(tokens.accepted(), kind.what, asked)
        if token is None:
            return PlainTextResponse(f"{kind.refused}\n", 403)
        if refusal := nonces.refusal(asked.nonce, asked.at, time.time()):
            return PlainTextResponse(f"{refusal}\n", 409)
        return Response(encode(await answer(asked, token)), media_type="application/json")

    return handle


_CONFIRM: Final = Kind(
    ConfirmAsk,
    CONFIRM,
    off="no measurement of a suspect is taken here: this collector has no confirm_token_file",
    none="no measurement of a suspect",
)


def confirm_handler(source: ClusterSource, settings: CollectorSettings) -> Handler:
    """Raises UsageError where the token cannot be read."""

    async def confirm(ask: ConfirmAsk, token: str) -> ConfirmedDocument:
        if wrong := _wrong(source, ask):
            raise HTTPException(409, f"{wrong}\n")
        it = ask.confirmation
        incidents = source.incidents.confirm(it)
        log.info(
            "%s measured %s, %s: %s", *(printable_line(text, 200) for text in (it.by, it.node, it.outcome, it.why))
        )
        return ConfirmedDocument(it, incidents)

    return signed_handler(TokenFile(settings.confirm_token_file, "confirm_token_file"), _CONFIRM, confirm)


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
