"""The stacks that are held of a job, and POST /api/v1/stacks/ask: an operator has ranks sample themselves. That needs
the token, and is off without one."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from starlette.exceptions import HTTPException

from laggard.collector.jobs.job import JobStacks
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.signed_requests import Handler, Kind, signed_handler
from laggard.collector.web.source import ClusterSource
from laggard.kit.secret_files import TokenFile
from laggard.model import JobKey
from laggard.wire.signing import STACKS
from laggard.wire.stacks import MissingStacks, RankStacks, StacksAsk, StacksAsked, StacksDocument, rank_stacks

log = logging.getLogger("laggard.collector")

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


_ASK: Final = Kind(
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

    return signed_handler(stacks_tokens(settings), _ASK, ask)
