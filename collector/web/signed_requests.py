"""Requests that are signed with a token: how large their bodies may be, that each counts once, how they are answered,
and the POSTs of a suspect's measurement and for ranks' stacks."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Final, Generic, TypeVar

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from laggard.collector.jobs.job import JobStacks
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.source import ClusterSource
from laggard.kit.secret_files import TokenFile
from laggard.kit.words import printable_line
from laggard.model import JobKey
from laggard.wire import WireError, decode, encode
from laggard.wire.exclusion import ConfirmAsk, ConfirmedDocument
from laggard.wire.idle_rings import RingAsk
from laggard.wire.signing import CONFIRM, STACKS, signer
from laggard.wire.stacks import MissingStacks, RankStacks, StacksAsk, StacksAsked, StacksDocument, rank_stacks

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


MAX_BYTES: Final = 64 << 10
"""The largest body: an ask for more than 4,096 ranks of six digits. All connections together hold some 32 MiB."""


async def read_body(request: Request, most: int) -> bytes:
    """Raises WireError where it is longer than `most`, and ClientDisconnect."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > most:
            raise WireError(f"more than {most} bytes")
    return bytes(data)


log = logging.getLogger("laggard.collector")

CLOCK_SECONDS: Final = 300.0
"""The largest difference between the clocks of who asks and the collector: older questions may be an eavesdropper's."""


T = TypeVar("T", RingAsk, ConfirmAsk, StacksAsk)
"""The documents that are signed: each tells when it was made, and has a nonce, which is used once."""

Handler = Callable[[Request], Awaitable[Response]]


@dataclasses.dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of signed request: `document` is its type, and `what` as of laggard.wire.signing. `off`, `none` and
    `refused`: what is said where there is no token, of what is no such document, and of another token. `max_bytes`:
    of a body; `max_nonces`: so many are kept."""

    document: type[T]
    what: str
    off: str
    none: str
    refused: str = "another token than the collector's"
    max_bytes: int = MAX_BYTES
    max_nonces: int = 1 << 12


def signed_handler(tokens: TokenFile, kind: Kind[T], answer: Callable[[T, str], Awaitable[Struct]]) -> Handler:
    """`answer` makes the document that answers what was asked, with the token that signed it. It may raise
    HTTPException. The handler runs on the event loop: one question comes after the other."""
    nonces = Nonces(CLOCK_SECONDS, kind.max_nonces, time.time())

    async def handle(request: Request) -> Response:
        if not tokens:
            return PlainTextResponse(f"{kind.off}\n", 403)
        try:
            asked = decode(await read_body(request, kind.max_bytes), kind.document)
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


# The stacks that are held of a job, and POST /api/v1/stacks/ask: an operator has ranks sample themselves.

MAX_ANSWER_BYTES: Final = 32 << 20
"""The most bytes of JSON of one answer; each rank's stacks are shortened to its share."""

_NOT_ASKED: Final = "nothing is held of it: nobody has asked it, or it has not answered"


def stacks_tokens(settings: CollectorSettings) -> TokenFile:
    """Raises UsageError."""
    return TokenFile(settings.stacks_token_file, "stacks_token_file")


def stacks_document(key: JobKey, held: JobStacks, ranks: Collection[int] = ()) -> StacksDocument:
    """The document of what is held of these ranks; of all ranks of the job, where none is named."""
    chosen = set(ranks) or set(held.ranks)
    wanted = [rank for rank in held.ranks if rank in chosen]
    most = MAX_ANSWER_BYTES // max(1, len(wanted))
    found: list[RankStacks] = []
    missing = [MissingStacks(rank, "the job has no such rank") for rank in sorted(set(ranks) - set(held.ranks))]
    for rank in wanted:
        if rank in held.by_rank:
            found.append(rank_stacks(held.by_rank[rank], most))
        else:
            missing.append(held.missing.get(rank, MissingStacks(rank, _NOT_ASKED)))
    return StacksDocument(key.owner, key.job_id, tuple(found), tuple(missing))


_STACKS: Final = Kind(
    StacksAsk,
    STACKS,
    off="no rank can be asked here: this collector has no stacks_token_file",
    none="no ask for stacks",
    refused="another token than the collector's stacks_token_file",
)


def stacks_handler(source: ClusterSource, settings: CollectorSettings) -> Handler:
    """Raises UsageError where the token cannot be read."""

    async def ask(asked: StacksAsk, token: str) -> StacksAsked:
        snapshot = source.snapshot
        if ambiguity := snapshot.ambiguity(asked.job or None):
            raise HTTPException(409, f"{ambiguity}\n")
        job = snapshot.job(asked.job or None)
        answer = await source.ask_for_stacks(job.key, asked.ranks, asked.samples, asked.seconds) if job else None
        if job is None or answer is None:
            raise HTTPException(404, "no such job is known here\n")
        log.info("asked %d ranks of %s for their stacks", len(answer.ranks), job.key)
        return answer

    return signed_handler(stacks_tokens(settings), _STACKS, ask)
