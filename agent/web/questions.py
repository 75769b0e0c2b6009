"""What the agent's routes may be asked: a Struct for each that takes parameters, as laggard.wire.query reads it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from laggard.agent.ranks.reader import MAX_ASKED, MAX_RANKS
from laggard.stacks.ask import MAX_SAMPLES, MAX_SECONDS, SAMPLES, SECONDS
from laggard.wire.query import Name

Identifier = Annotated[int, Meta(ge=0, le=2**32 - 1)]
"""The number of a user, which is larger than any rank's."""

SinceBoot = Annotated[float, Meta(ge=0, le=1e9)]
"""Up to 31 years."""


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
