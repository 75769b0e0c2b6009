"""Validates the collectives that an agent sent, which stand in files that any user may write."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from laggard.collector.scrape.bounds import (
    MAX_CLOCK,
    MAX_COUNT,
    MAX_SECONDS,
    MAX_WORLD,
    check_length,
    require,
    within,
)
from laggard.collector.scrape.validation import MAX_LANES, decode_bounded
from laggard.wire.collectives import COLLECTIVES_SCHEMA, CollectiveRow, CollectivesDocument, RankCollectives

MAX_ROWS = 4096

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
    where = f"rank {it.rank}"
    require(len(it.lanes) <= MAX_LANES, f"{where}: more than {MAX_LANES} lanes")
    require(len(it.rows) <= MAX_ROWS, f"{where}: more than {MAX_ROWS} collectives")
    for lane in it.lanes:
        for text in (lane.op, lane.role, lane.group):
            check_length(f"{where}: a lane", text)
        require(within(lane.peer + 1, MAX_WORLD), f"{where}: a lane's peer is no rank")
    require(all(_is_possible(row, len(it.lanes)) for row in it.rows), f"{where}: a collective's number is out of range")


def _is_possible(row: CollectiveRow, lanes: int) -> bool:
    return (
        0 <= row.step <= MAX_COUNT
        and 0 <= row.lane < lanes
        and 0 <= row.seq <= MAX_COUNT
        and 0 <= row.start <= row.end <= MAX_CLOCK
        and row.end - row.start <= MAX_SECONDS
        and 0 <= row.waited <= MAX_SECONDS
        and 0 <= row.size <= MAX_COUNT
    )
