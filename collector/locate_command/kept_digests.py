"""Digests of runs that a collector holds or keeps."""

from __future__ import annotations

from laggard import wire
from laggard.address import without_login
from laggard.collector.locate_command.collector import ask
from laggard.collector_client import answer
from laggard.errors import UsageError
from laggard.model import Location
from laggard.text.users import by_uid
from laggard.wire.digest import Digest


def digest_now(url: str, job: str | None) -> tuple[Digest, Location]:
    """The digest of what the collector at `url` holds of a job, and its verdict. Raises UsageError."""
    source = ask(url, job)
    return _digest(url, job, "now"), source.location


def digest_kept(url: str, job: str | None, run: str) -> Digest:
    """`run`: last, first or incident:ID. Raises UsageError."""
    return _digest(url, job, run)


def _digest(url: str, job: str | None, run: str) -> Digest:
    asked, (kind, _, number) = by_uid(job), run.partition(":")
    query = {"run": kind, **({"incident": number} if number else {}), **({"job": asked} if asked else {})}
    with answer(url, "digest", query) as found:
        try:
            return wire.decode(found.read(), Digest)
        except wire.WireError as error:
            raise UsageError(f"the collector at {without_login(url)} is of another version: {error}") from None
