"""`/api/v1/stacks`: the stacks that ranks of this node took of themselves, and `/api/v1/stacks/ask`, which asks them to
take some. Both need the token, since names of functions and paths of files are users' own, or that the job's own user
asks on this machine."""

from __future__ import annotations

import hmac
import math
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct

from laggard.agent.ranks.reader import MAX_ASKED, MAX_RANKS, RankCache, RankFiles
from laggard.kit.address import user_of_client
from laggard.kit.http_message import HttpError, Request
from laggard.kit.secret_files import TokenFile, proved_by
from laggard.stacks.ask import (
    FOLDER,
    MAX_SAMPLES,
    MAX_SECONDS,
    MIN_SECONDS_BETWEEN,
    SAMPLES,
    SECONDS,
    new_ask,
    trusted_users,
    write_ask,
)
from laggard.wire.query import Name, read_question
from laggard.wire.stacks import MissingStacks, StacksAsked, StacksDocument

Identifier = Annotated[int, Meta(ge=0, le=2**32 - 1)]
"""The number of a user, which is larger than any rank's."""

SinceBoot = Annotated[float, Meta(ge=0, le=1e9)]
"""Seconds, up to 31 years."""


class Ranks(Struct, frozen=True, kw_only=True):
    since: Annotated[
        SinceBoot | None,
        Meta(description="Seconds since boot, `next` of the answer before, or 0: the steps from there on, too."),
    ] = None


class Collectives(Struct, frozen=True, kw_only=True):
    owner: Annotated[Identifier, Meta(description="The uid of the job's owner.")]
    job: Annotated[Name, Meta(description="The job's id.")]
    rank: Annotated[
        tuple[Identifier, ...],
        Meta(min_length=1, max_length=MAX_ASKED, description="The ranks.", extra_json_schema={"explode": True}),
    ]


class Stacks(Struct, frozen=True, kw_only=True):
    owner: Annotated[Identifier, Meta(description="The uid of the job's owner.")]
    job: Annotated[Name, Meta(description="The job's id.")]
    ranks: Annotated[
        tuple[Identifier, ...],
        Meta(
            max_length=MAX_RANKS,
            description="Ranks, with commas between them. Without: all of the job that are on the node.",
            extra_json_schema={"explode": False},
        ),
    ] = ()


class AskStacks(Stacks, frozen=True, kw_only=True):
    samples: Annotated[int, Meta(ge=1, le=MAX_SAMPLES, description="So many samples of each rank.")] = SAMPLES
    seconds: Annotated[float, Meta(gt=0, le=MAX_SECONDS, description="Over so many seconds.")] = SECONDS


MAX_JOBS: Final = 64
"""The most jobs of which it is remembered when they were asked."""

SEEN_SECONDS: Final = 3.0
"""The time in which every rank of the node has seen an ask: they look each second, and one ask takes the place of the
other."""

OFF: Final = "stacks are off on this node: its agent has `stacks: false`"
NO_TOKEN: Final = (
    "stacks are for the job's own user on this node alone: name a file with a secret, stacks_token_file, in the "
    "agent's settings"
)
REFUSED: Final = "another token than the agent's stacks_token_file: send it as Authorization: Bearer TOKEN"
_HOW: Final = "make it as deploy/systemd/tmpfiles.d does"

_Job = tuple[int, str]


def read_stacks_tokens(stacks: bool, path: str) -> TokenFile:
    """The tokens that are accepted; none where stacks are off. Raises UsageError."""
    return TokenFile(path if stacks else "", "stacks_token_file")


class Turns:
    """The times at which jobs were asked, by which it is a job's turn or not. Pure but for what it
    remembers; times are in monotonic seconds."""

    def __init__(self) -> None:
        self._asked: dict[_Job, float] = {}

    def wait_seconds(self, job: _Job, now: float) -> float:
        """Returns how long to wait until the job may be asked; 0: it may, and counts as asked from now on."""
        self._asked = {each: at for each, at in self._asked.items() if now - at < MIN_SECONDS_BETWEEN}
        waits = [self._asked[job] + MIN_SECONDS_BETWEEN - now] if job in self._asked else []
        waits += [at + SEEN_SECONDS - now for each, at in self._asked.items() if each != job]
        if len(self._asked) >= MAX_JOBS:
            waits.append(min(self._asked.values()) + MIN_SECONDS_BETWEEN - now)
        wait = max(0.0, *waits, 0.0)
        if not wait:
            self._asked[job] = now
        return wait


class StackService(NamedTuple):
    """`tokens`: none where stacks are off, or for the job's own user alone; `off`: the line that says so."""

    ranks: RankFiles
    cached_ranks: RankCache
    tokens: TokenFile
    off: str
    turns: Turns
    lock: threading.Lock
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def made(
        cls, ranks: RankFiles, cached_ranks: RankCache, stacks: bool = True, tokens: TokenFile | None = None
    ) -> StackService:
        return cls(
            ranks, cached_ranks, tokens or TokenFile("", ""), NO_TOKEN if stacks else OFF, Turns(), threading.Lock()
        )

    def document(self, request: Request) -> StacksDocument:
        """Raises HttpError, and WrongQuestion."""
        asked = read_question(Stacks, request.query)
        self._check(request, asked.owner)
        self.cached_ranks.get()  # a scan that is recent
        with self.lock:  # one answer of megabytes at a time
            return self.ranks.stacks(asked.owner, asked.job, frozenset(asked.ranks) or None)

    def ask(self, request: Request) -> StacksAsked:
        """Writes the ask. Raises HttpError, and WrongQuestion."""
        asked = read_question(AskStacks, request.query)
        self._check(request, asked.owner)
        self.cached_ranks.get()
        wanted = frozenset(asked.ranks) or None
        running = self.ranks.ranks_of(asked.owner, asked.job, wanted)
        if not running:
            raise HttpError(HTTPStatus.NOT_FOUND, "no rank of that job runs on this node that it could ask")
        with self.lock:
            wait = self.turns.wait_seconds((asked.owner, asked.job), self.clock())
        if wait:
            retry = (("Retry-After", str(math.ceil(wait))),)
            raise HttpError(HTTPStatus.TOO_MANY_REQUESTS, f"asked a moment ago: again in {wait:.0f} s", retry)
        ask = new_ask(asked.owner, asked.job, frozenset(running), asked.samples, asked.seconds)
        folder = f"{self.ranks.directory}/{FOLDER}"
        try:
            write_ask(folder, ask, trusted_users(self.ranks.directory))
        except OSError as error:
            text = f"cannot ask: {folder}: {error.strerror}; {_HOW}"
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, text) from None
        gone = tuple(
            MissingStacks(rank, "it does not run on this node") for rank in sorted(set(wanted or ()) - {*running})
        )
        return StacksAsked(asked.owner, asked.job, (ask.ident,), running, asked.seconds, gone)

    def _check(self, request: Request, owner: int) -> None:
        """Raises HttpError where the request neither has the token nor is of the job's user, by the kernel's word."""
        if self.off != OFF and request.connection is not None and user_of_client(request.connection) == owner:
            return
        if not self.tokens:
            raise HttpError(HTTPStatus.FORBIDDEN, self.off)
        scheme, _, given = request.authorization.partition(" ")
        sent = given.strip().encode("latin-1")
        known = proved_by(self.tokens.accepted(), lambda token: hmac.compare_digest(sent, token.encode()))
        if scheme.lower() != "bearer" or known is None:
            raise HttpError(HTTPStatus.UNAUTHORIZED, REFUSED, (("WWW-Authenticate", "Bearer"),))
