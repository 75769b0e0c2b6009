"""Validates what an agent sent. Right types are not enough: a number can be absurd and a name a megabyte long."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from laggard.kit.limits import MAX_CLOCK, MAX_COUNT, MAX_SECONDS
from laggard.locate.job_timings import END, FIRST_PHASE, NO_STEPS, START, STEP, STEP_COLUMNS, WORK, Table
from laggard.model import REPORT_SCHEMA, Report
from laggard.stacks.sampled import Sampled, SampledError, text_of
from laggard.wire import WireError, decode, encode, require
from laggard.wire.ranks import (
    COLLECTIVES_SCHEMA,
    MAX_LISTED,
    RANKS_SCHEMA,
    CollectivesDocument,
    PackedSteps,
    RankCollectives,
    RankRow,
    RanksDocument,
    RasCommunicator,
    RasSource,
)
from laggard.wire.stacks import (
    STACKS_ASKED_SCHEMA,
    STACKS_SCHEMA,
    MissingStacks,
    StacksAsked,
    StacksDocument,
    sampled_of,
)

MAX_STEPS_OF_ANSWER: Final = 1 << 17
"""The most steps of all ranks of an answer, 15 MB as a table: columns that are not sent could stand for any number.
Agents tell of 65,536 at most."""

_TYPES: Final[Mapping[int, np.dtype[Any]]] = {4: np.dtype("<u4"), 8: np.dtype("<i8")}
"""A number of 8 bytes that is too large for a signed one is too large for a step, too: it becomes a negative one, which
is refused."""


def _limits() -> NDArray[np.float64]:
    limits = np.full(STEP_COLUMNS, MAX_SECONDS)
    limits[[STEP, WORK]], limits[[START, END]] = MAX_COUNT, MAX_CLOCK
    return limits


_LIMITS: Final = _limits()


def unpacked(steps: PackedSteps, ranks: int, most: int) -> Table:
    """The steps of all ranks, one after the other, as one Table. On the wire each column stands where the table has it,
    and a step's length in the place of its end. `most`: of a rank. Raises WireError where they are not those of so many
    `ranks`, but looks at no number: that is for is_possible()."""
    require(len(steps.counts) == ranks, "the packed steps are not of as many ranks")
    require(all([0 <= count <= most for count in steps.counts]), f"more than {most} steps of a rank")
    total = sum(steps.counts)
    require(total <= MAX_STEPS_OF_ANSWER, f"more than {MAX_STEPS_OF_ANSWER} steps")
    require(len(steps.widths) == STEP_COLUMNS, f"the packed steps have other than {STEP_COLUMNS} columns")
    require(all([width in (0, 4, 8) for width in steps.widths]), "the width of a packed column is none")
    require(len(steps.columns) == total * sum(steps.widths), "the packed steps are cut off, or too long")
    table = np.empty((total, STEP_COLUMNS))
    begin = 0
    for place, width in enumerate(steps.widths):
        if width:
            table[:, place] = np.frombuffer(steps.columns, _TYPES[width], total, begin)
        else:
            table[:, place] = 0.0
        begin += total * width
    if total:
        _put_ends(table, steps)
        table[:, START:WORK] /= 1e9
        table[:, FIRST_PHASE:] /= 1e9
    table.flags.writeable = False
    return table


def is_possible(table: Table) -> bool:
    """Whether all numbers of a Table are within what a step can be."""
    if not len(table):
        return True
    seconds = table[:, END] - table[:, START]
    within_limits = table.min() >= 0 and bool((table.max(axis=0) <= _LIMITS).all())
    return bool(within_limits and seconds.min() >= 0 and seconds.max() <= MAX_SECONDS)


def steps_by_rank(table: Table, counts: Iterable[int]) -> Iterator[Table]:
    """The part of the table that is each rank's own, of which each has so many steps."""
    begin = 0
    for count in counts:
        yield table[begin : (begin := begin + count)]


def _put_ends(table: NDArray[np.float64], steps: PackedSteps) -> None:
    """Puts the ends in the place of the lengths: added as whole numbers, since a sum of rounded ones differs."""
    first, total = sum(steps.widths[:START]) * len(table), len(table)
    found = np.zeros(total, np.int64)
    for width in steps.widths[START : END + 1]:
        if width:
            found += np.frombuffer(steps.columns, _TYPES[width], total, first)
        first += total * width
    table[:, END] = found


def check_ras(source: RasSource) -> None:
    """What no type says. Raises WireError."""
    for job in source.jobs:
        require(sum(len(it.ranks) for it in job.communicators) <= MAX_LISTED, f"ras: more than {MAX_LISTED} ranks")
        for communicator in job.communicators:
            _check_communicator(communicator)


def _check_communicator(it: RasCommunicator) -> None:
    require(it.at_front <= it.answered <= it.size, "ras: more ranks than the communicator has")
    ranks = {rank.rank for rank in it.ranks}
    require(len(ranks) == len(it.ranks), "ras: a rank stands twice in a communicator")
    require(all(rank < it.size for rank in ranks), "ras: a rank is none of its communicator")


T = TypeVar("T", RanksDocument, Report, CollectivesDocument, StacksDocument, StacksAsked)
J = TypeVar("J", CollectivesDocument, StacksDocument)

MAX_STEPS = 8192  # of one rank in one answer
MAX_FACTS = 64 << 10  # bytes

# msgspec (0.22) learns a type at its first use, and crashes where another thread uses it meanwhile. Agents' answers are
# decoded in threads, the first ones all at once: so all types are learned here.
for _kind in (RanksDocument, Report, CollectivesDocument, StacksDocument, StacksAsked):
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
    document = _document(body, RanksDocument, RANKS_SCHEMA)
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
    return _document(body, Report, REPORT_SCHEMA)


def _document(body: bytes, kind: type[T], schema: str) -> T:
    """The document in `body`; raises WireError."""
    try:
        document = decode(body, kind)
    except WireError as error:
        raise WireError(f"not the JSON expected: {error}") from None
    except (RecursionError, OverflowError, MemoryError):
        raise WireError("not the JSON expected: nested too deeply or a number too large") from None
    require(document.schema == schema, f"schema is not {schema}")
    return document


def _of_job(body: bytes, kind: type[J], schema: str, key: tuple[int, str], asked: Collection[int], what: str) -> J:
    """The document of these ranks of the job, or of some of them. Raises WireError, also where it is of another job, or
    of a rank that it was not asked for."""
    document = _document(body, kind, schema)
    require((document.owner, document.job_id) == key, f"{what} of another job")
    ranks = [each.rank for each in document.ranks]
    require(len(ranks) == len(set(ranks)) and set(ranks) <= set(asked), f"{what} of ranks not asked for")
    return document


def _check_rank(row: RankRow) -> None:
    """What no type says. Raises WireError."""
    require(row.rank < row.world_size, f"rank {row.rank} is not a rank of {row.world_size}")
    require(len(encode(row.facts)) <= MAX_FACTS, f"rank {row.rank}: the facts are more than {MAX_FACTS} bytes")


def validate_collectives(body: bytes, owner: int, job_id: str, asked: Collection[int]) -> CollectivesDocument:
    """The document in `body`. Raises WireError that says what is wrong with it; that it is about another job, or about
    a rank that it was not asked for, is wrong, too."""
    document = _of_job(body, CollectivesDocument, COLLECTIVES_SCHEMA, (owner, job_id), asked, "collectives")
    for each in document.ranks:
        _check(each)
    return document


def _check(it: RankCollectives) -> None:
    lanes = len(it.lanes)
    possible = all(row.lane < lanes and 0 <= row.end - row.start <= MAX_SECONDS for row in it.rows)
    require(possible, f"rank {it.rank}: a collective's number is out of range")


_IDENT: Final = re.compile(r"[0-9a-f]{16}")
_REASON_CHARACTERS: Final = 200


def validate_stacks(
    body: bytes, owner: int, job_id: str, asked: Collection[int]
) -> tuple[Mapping[int, Sampled], tuple[MissingStacks, ...]]:
    """The stacks by rank, and the ranks without. Raises WireError that says what is wrong; that it is about
    another job, or about a rank that it was not asked for, is wrong, too."""
    document = _of_job(body, StacksDocument, STACKS_SCHEMA, (owner, job_id), asked, "stacks")
    require(len(document.missing) <= len(asked), "more ranks without stacks than were asked for")
    try:
        found = {each.rank: sampled_of(each) for each in document.ranks}
        missing = tuple(_missing(each, asked) for each in document.missing)
    except (SampledError, ValueError) as error:
        raise WireError(str(error)) from None
    require(all(each.job_id == text_of(job_id) for each in found.values()), "stacks of another job")
    return found, missing


def validate_asked(body: bytes, owner: int, job_id: str, ranks: Collection[int]) -> StacksAsked:
    """Raises WireError."""
    document = _document(body, StacksAsked, STACKS_ASKED_SCHEMA)
    require((document.owner, document.job_id) == (owner, job_id), "an ask of another job")
    require(len(document.idents) == 1 and bool(_IDENT.fullmatch(document.idents[0])), "no ident of an ask")
    require(set(document.ranks) <= set(ranks), "ranks that were not to be asked")
    require(len(document.missing) <= len(ranks), "more ranks missing than were to be asked")
    try:
        missing = tuple(_missing(each, ranks) for each in document.missing)
    except ValueError as error:
        raise WireError(str(error)) from None
    return msgspec.structs.replace(document, missing=missing, ranks=tuple(sorted(set(document.ranks))))


def _missing(it: MissingStacks, asked: Collection[int]) -> MissingStacks:
    if it.rank not in asked:
        raise ValueError("a rank that was not asked for")
    return MissingStacks(it.rank, text_of(it.reason[:_REASON_CHARACTERS]), text_of(it.kernel[:_REASON_CHARACTERS]))
