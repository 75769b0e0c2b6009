"""Validates the stacks that an agent sent, which stand in files that any user may write."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from laggard.collector.scrape.validation import decode_bounded
from laggard.stacks.sampled import Sampled, SampledError, text_of
from laggard.wire import WireError
from laggard.wire.codec import require
from laggard.wire.stacks import (
    STACKS_ASKED_SCHEMA,
    STACKS_SCHEMA,
    MissingStacks,
    StacksAsked,
    StacksDocument,
    sampled_of,
)

_IDENT: Final = re.compile(r"[0-9a-f]{16}")
_REASON_CHARACTERS: Final = 200

msgspec.json.Decoder(StacksDocument)  # learned here, as the types of validation.py
msgspec.json.Decoder(StacksAsked)


def validate_stacks(
    body: bytes, owner: int, job_id: str, asked: Collection[int]
) -> tuple[Mapping[int, Sampled], tuple[MissingStacks, ...]]:
    """The stacks by rank, and the ranks without. Raises WireError that says what is wrong; that it is about
    another job, or about a rank that it was not asked for, is wrong, too."""
    document = decode_bounded(body, StacksDocument)
    require(document.schema == STACKS_SCHEMA, f"schema is not {STACKS_SCHEMA}")
    require((document.owner, document.job_id) == (owner, job_id), "stacks of another job")
    ranks = [each.rank for each in document.ranks]
    require(len(ranks) == len(set(ranks)) and set(ranks) <= set(asked), "stacks of ranks not asked for")
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
    document = decode_bounded(body, StacksAsked)
    require(document.schema == STACKS_ASKED_SCHEMA, f"schema is not {STACKS_ASKED_SCHEMA}")
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
