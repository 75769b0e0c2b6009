"""The stacks that are held of a job, and POST /api/v1/stacks/ask: an operator has ranks sample themselves. That needs
the token, and is off without one."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from laggard.collector.jobs.job import JobKey, JobStacks
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.signed_requests import LargeBodies, Nonces
from laggard.collector.web.source import ClusterSource
from laggard.kit.secret_files import TokenFile
from laggard.wire import WireError, decode, encode
from laggard.wire.stacks import MissingStacks, RankStacks, StacksAsk, StacksDocument, is_signed, rank_stacks

log = logging.getLogger("laggard.collector")

MAX_ANSWER_BYTES: Final = 32 << 20
"""The most bytes of JSON of one answer; each rank's stacks are shortened to its share."""

CLOCK_SECONDS: Final = 300.0
_MAX_NONCES: Final = 1 << 12
_MAX_BYTES: Final = 64 << 10
"""More than 4,096 ranks of six digits."""
_LARGE_AT_ONCE: Final = 4
_OFF: Final = "no rank can be asked here: this collector has no stacks_token_file\n"
_REFUSED: Final = "another token than the collector's stacks_token_file\n"
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


def stacks_handler(source: ClusterSource, settings: CollectorSettings) -> Callable[[Request], Awaitable[Response]]:
    """Raises UsageError where the token cannot be read."""
    tokens = stacks_tokens(settings)
    bodies = LargeBodies(_LARGE_AT_ONCE * _MAX_BYTES)
    nonces = Nonces(CLOCK_SECONDS, _MAX_NONCES, time.time())

    async def ask(request: Request) -> Response:
        if not tokens:
            return PlainTextResponse(_OFF, 403)
        try:
            asked = decode(await bodies.read(request, _MAX_BYTES), StacksAsk)
        except (WireError, ClientDisconnect) as error:
            return PlainTextResponse(f"no ask for stacks: {error}\n", 400)
        if not is_signed(tokens.accepted(), asked):
            return PlainTextResponse(_REFUSED, 403)
        if refusal := nonces.refusal(asked.nonce, asked.at, time.time()):
            return PlainTextResponse(f"{refusal}\n", 409)
        snapshot = source.snapshot
        if ambiguity := snapshot.ambiguity(asked.job or None):
            return PlainTextResponse(f"{ambiguity}\n", 409)
        job = snapshot.job(asked.job or None)
        answer = await source.ask_for_stacks(job.key, asked.ranks, asked.samples, asked.seconds) if job else None
        if job is None or answer is None:
            return PlainTextResponse("no such job is known here\n", 404)
        log.info("asked %d ranks of %s for their stacks", len(answer.ranks), job.key)
        return Response(encode(answer), media_type="application/json")

    return ask
