"""Asks a collector for the stacks of a job's ranks; with the token it has them take new ones."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Final, TypeVar

from laggard import wire
from laggard.address import without_login
from laggard.collector_client import answer, ask
from laggard.errors import UsageError
from laggard.stack_answers.node import Gathered, Told
from laggard.stacks.sampled import Sampled, SampledError
from laggard.wire.stacks import MissingStacks, StacksAsk, StacksAsked, StacksDocument, sampled_of, signed

Document = TypeVar("Document", StacksDocument, StacksAsked)

WAIT_SECONDS: Final = 28.0
"""The time for which a collector looks for answers, beyond the samples themselves."""

_LOOK_SECONDS: Final = 2.0


def ask_collector(
    url: str, token: str, name: str | None, ranks: Sequence[int], samples: int, seconds: float, told: Told
) -> Gathered:
    """The stacks that the collector holds of the ranks, all where none is named; with a token, once they have
    answered anew. Raises UsageError."""
    if not token:
        return _gathered(_held(url, name, ranks), {})
    asked = StacksAsk(time.time(), secrets.token_hex(16), name or "", tuple(ranks), samples, seconds)
    reply = _decoded(ask(url, "stacks/ask", wire.encode(signed(token, asked))), StacksAsked, url)
    refused = {it.rank: it.reason for it in reply.missing}
    if not reply.ranks:
        return Gathered(reply.owner, reply.job_id, {}, tuple(MissingStacks(*it) for it in sorted(refused.items())))
    return _waited(url, reply, refused, told)


def _waited(url: str, reply: StacksAsked, refused: dict[int, str], told: Told) -> Gathered:
    key, idents, began = f"{reply.owner}:{reply.job_id}", set(reply.idents), time.monotonic()
    while True:
        waited = time.monotonic() - began
        told(min(1.0, waited / reply.seconds), f"{len(reply.ranks)} ranks take their stacks")
        time.sleep(_LOOK_SECONDS if waited > reply.seconds else min(_LOOK_SECONDS, reply.seconds))
        if waited < reply.seconds:
            continue
        held = _held(url, key, reply.ranks)
        answered = sum(each.ask in idents for each in held.ranks)
        if answered == len(reply.ranks) or waited > reply.seconds + WAIT_SECONDS:
            return _gathered(held, refused, idents)


def _gathered(held: StacksDocument, refused: dict[int, str], idents: set[str] | None = None) -> Gathered:
    sampled: dict[int, Sampled] = {}
    missing = {it.rank: it.reason for it in held.missing} | refused
    kernel = {it.rank: it.kernel for it in held.missing}
    for each in held.ranks:
        try:
            found = sampled_of(each)
        except SampledError as error:
            missing[each.rank] = str(error)
            continue
        if idents is not None and found.why == "asked" and found.ask not in idents:
            missing[each.rank] = "it has not answered this ask; an older answer is left out"
        else:
            sampled[each.rank] = found
    without = (MissingStacks(rank, reason, kernel.get(rank, "")) for rank, reason in sorted(missing.items()))
    return Gathered(held.owner, held.job_id, sampled, tuple(without))


def _held(url: str, name: str | None, ranks: Sequence[int]) -> StacksDocument:
    query = {"job": name} if name else {}
    if ranks:
        query["ranks"] = ",".join(map(str, ranks))
    with answer(url, "stacks", query) as found:
        return _decoded(found.read(), StacksDocument, url)


def _decoded(body: bytes, kind: type[Document], url: str) -> Document:
    try:
        return wire.decode(body, kind)
    except wire.WireError as error:
        raise UsageError(f"the collector at {without_login(url)} is of another version: {error}") from None
