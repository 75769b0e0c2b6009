"""Validates the collectives that an agent sent, which stand in files that any user may write."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from laggard.collector.scrape.validation import decode_bounded
from laggard.limits import MAX_SECONDS
from laggard.wire.codec import require
from laggard.wire.collectives import COLLECTIVES_SCHEMA, CollectivesDocument, RankCollectives

msgspec.json.Decoder(CollectivesDocument)  # learned here, as the types of validation.py


def validate_collectives(body: bytes, owner: int, job_id: str, asked: Collection[int]) -> CollectivesDocument:
    """The document in `body`. Raises WireError that says what is wrong with it; that it is about another job, or about
    a rank that it was not asked for, is wrong, too."""
    document = decode_bounded(body, CollectivesDocument)
    require(document.schema == COLLECTIVES_SCHEMA, f"schema is not {COLLECTIVES_SCHEMA}")
    require((document.owner, document.job_id) == (owner, job_id), "collectives of another job")
    ranks = [each.rank for each in document.ranks]
    require(len(ranks) == len(set(ranks)) and set(ranks) <= set(asked), "collectives of ranks not asked for")
    for each in document.ranks:
        _check(each)
    return document


def _check(it: RankCollectives) -> None:
    lanes = len(it.lanes)
    possible = all(row.lane < lanes and 0 <= row.end - row.start <= MAX_SECONDS for row in it.rows)
    require(possible, f"rank {it.rank}: a collective's number is out of range")
