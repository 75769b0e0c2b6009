"""Validates what an agent sent. Right types are not enough: a number can be absurd and a name a megabyte long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec

from laggard.collector.scrape.packed_steps import is_possible, steps_by_rank, unpacked
from laggard.collector.scrape.ras_validation import check_ras
from laggard.locate.step_tables import NO_STEPS, Table
from laggard.model import REPORT_SCHEMA, Report
from laggard.wire import WireError, decode, encode
from laggard.wire.codec import require
from laggard.wire.ranks import (
    RANKS_SCHEMA,
    PackedSteps,
    RankRow,
    RanksDocument,
)

T = TypeVar("T")

MAX_STEPS = 8192  # of one rank in one answer
MAX_FACTS = 64 << 10  # bytes

# msgspec (0.22) learns a type at its first use, and crashes where another thread uses it meanwhile. Agents' answers are
# decoded in threads, the first ones all at once: so both types are learned here.
for _kind in (RanksDocument, Report):
    msgspec.json.Decoder(_kind)


class RanksAnswer(NamedTuple):
    """An agent's document, and the steps of each of its ranks."""

    document: RanksDocument
    steps: tuple[Table, ...]


def validate_ranks(body: bytes) -> RanksDocument:
    """The ranks document in `body`. Raises WireError that says what is wrong with it."""
    return validate_ranks_answer(body).document


def validate_ranks_answer(body: bytes) -> RanksAnswer:
    """The ranks document in `body`, with its steps as arrays. Raises WireError that says what is wrong with it."""
    document = decode_bounded(body, RanksDocument)
    require(document.schema == RANKS_SCHEMA, f"schema is not {RANKS_SCHEMA}")
    for row in document.ranks:
        _check_rank(row)
    steps = _steps(document.ranks, document.steps)
    if document.ras:
        check_ras(document.ras)
    return RanksAnswer(document, steps)


def _steps(ranks: Sequence[RankRow], steps: PackedSteps | None) -> tuple[Table, ...]:
    """The steps of each rank, from the columns of all."""
    if steps is None:
        return (NO_STEPS,) * len(ranks)
    table = unpacked(steps, len(ranks), MAX_STEPS)
    by_rank = tuple(steps_by_rank(table, steps.counts))
    if not is_possible(table):
        wrong = (row for row, its in zip(ranks, by_rank, strict=True) if not is_possible(its))
        raise WireError(f"rank {next(wrong).rank}: a number of a step is out of range")
    return by_rank


def validate_report(body: bytes) -> Report:
    """The report in `body`. Raises WireError that says what is wrong with it."""
    report = decode_bounded(body, Report)
    require(report.schema == REPORT_SCHEMA, f"schema is not {REPORT_SCHEMA}")
    return report


def decode_bounded(body: bytes, kind: type[T]) -> T:
    """The document in `body`; raises WireError."""
    try:
        return decode(body, kind)
    except WireError as error:
        raise WireError(f"not the JSON expected: {error}") from None
    except (RecursionError, OverflowError, MemoryError):
        raise WireError("not the JSON expected: nested too deeply or a number too large") from None


def _check_rank(row: RankRow) -> None:
    """What no type says. Raises WireError."""
    require(row.rank < row.world_size, f"rank {row.rank} is not a rank of {row.world_size}")
    require(len(encode(row.facts)) <= MAX_FACTS, f"rank {row.rank}: the facts are more than {MAX_FACTS} bytes")
